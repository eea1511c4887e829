"""What [repair.sandbox] and [repair.environments] must not say together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.config.checks import cross_check
from reasond_server.config.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def find(**repair: Any) -> dict[str, str]:
    settings = Settings.model_validate({"repair": repair})
    return {found.field: found.description for found in cross_check(settings) if found.field.startswith("repair.")}


def test_folders_that_are_there_are_fine(tmp_path: Path) -> None:
    environments = {"python": {"preset": "python", "root": str(tmp_path)}, "image": {"root": str(tmp_path)}}
    assert not find(sandbox={"folder": str(tmp_path)}, environments=environments)


@pytest.mark.parametrize(
    ("root", "problem"),
    [("venv", "is not an absolute path"), ("/no/such/folder", "is no folder"), ("/", "is the root of this machine")],
)
def test_a_folder_is_absolute_there_and_not_everything(root: str, problem: str) -> None:
    found = find(sandbox={"folder": root}, environments={"python": {"root": root}})
    assert sorted(found) == ["repair.environments.python.root", "repair.sandbox.folder"]
    assert all(problem in description for description in found.values())


def test_an_image_needs_its_folder_and_a_level_that_shows_it(tmp_path: Path) -> None:
    assert list(find(environments={"image": {"is_image": True}})) == ["repair.environments.image.root"]
    found = find(sandbox={"level": "landlock"}, environments={"image": {"is_image": True, "root": str(tmp_path)}})
    assert list(found) == ["repair.environments.image.is_image"]

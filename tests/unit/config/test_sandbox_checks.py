"""What [repair.sandbox], [repair.environments] and programs of models must not say together."""

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


@pytest.mark.parametrize(
    ("repair", "problems"),
    [
        ({"environments": {"python": {}}}, []),
        ({}, ["'python' is no environment of [repair.environments]"]),
        ({"environments": {"pithon": {}}}, ["'python' is no environment of [repair.environments]; did you mean"]),
        ({"environments": {"python": {}}, "sandbox": {"level": "off"}}, ['is set, but repair.sandbox.level = "off"']),
    ],
)
def test_programs_need_an_environment_that_there_is_and_a_sandbox(repair: dict[str, Any], problems: list[str]) -> None:
    settings = Settings.model_validate({"repair": repair, "reasoning": {"program_environment": "python"}})
    found = [each for each in cross_check(settings) if each.field == "reasoning.program_environment"]
    assert len(found) == len(problems)
    assert all(problem in each.description for each, problem in zip(found, problems, strict=True))

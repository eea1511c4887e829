"""The wheels of this tree, built once for all tests of this folder."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.packaging.environments import BUILD, CLIENT, SERVER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels, by distribution name."""
    folder = tmp_path_factory.mktemp("dist")
    for project in (CLIENT, SERVER):
        command: list[str | Path] = [*BUILD, "--outdir", folder, project]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}

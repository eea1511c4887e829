"""Clean virtual environments, and the command that builds a wheel."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

ROOT = Path(__file__).resolve().parents[2]
CLIENT, SERVER = ROOT / "clients" / "python", ROOT
# Without isolation the pinned backend builds; it is still checked that it is all a project says it needs.
DECLARING = (ROOT / "constraints.txt", CLIENT / "pyproject.toml", SERVER / "pyproject.toml")
BUILD = (sys.executable, "-m", "build", "--wheel", "--no-isolation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment."""

    home: Path

    def run(self, *command: str | Path) -> str:
        """Run a program of the environment outside the repository; if it fails, fail with all its output."""
        program, *arguments = command
        done = subprocess.run(
            [self.home / "bin" / program, *arguments], cwd=self.home, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pip(self, *arguments: str | Path) -> str:
        """Run the pip of the tests for this environment, which has none: to make one takes longer than an install."""
        command = [sys.executable, "-m", "pip", "--python", self.home / "bin" / "python", *arguments]
        done = subprocess.run(command, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, *arguments: str | Path) -> None:
        """Install without compiling: most of the modules are never imported."""
        self.pip("install", "-q", "--no-compile", *arguments)

    def distributions(self) -> dict[str, str]:
        """Return name -> version of the installed packages."""
        # Read here: a list of pip takes half a second.
        folder = self.home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        return {found.name.lower(): found.version for found in metadata.distributions(path=[str(folder)])}


def fill_wheelhouse(folder: Path, wheels: Collection[Path], *arguments: str) -> None:
    """Fill `folder` with `wheels` and with what pip downloads for them and `arguments`.

    The downloads are kept in .cache as long as what is asked for stays the same: reading the pages of an index takes
    several seconds of a processor. A fresh machine, as in CI, reads them.
    """
    told = [sys.version, *arguments, *(path.read_text("utf-8") for path in DECLARING)]
    kept = ROOT / ".cache" / f"wheels-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=kept.parent, prefix="wheels-") as made:
            command: list[str | Path] = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "-d",
                f"{made}/all",
                *arguments,
                *wheels,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            for wheel in wheels:
                (Path(made) / "all" / wheel.name).unlink()
            # Whole or not at all, even if two runs do this.
            with suppress(FileExistsError):
                (Path(made) / "all").rename(kept)
    for path in (*kept.iterdir(), *wheels):
        shutil.copy(path, folder)


def new_environment(home: Path) -> Environment:
    venv.create(home)
    return Environment(home=home)

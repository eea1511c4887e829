"""Install the programs that tests use and that pip does not have, into .cache/bin, once.

Usage: `python -m scripts.programs MODULE@VERSION …` with Go modules. Without Go, or without a network, this is no
failure here: the tests that need the program say so, and fail where CI=true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

BIN = Path(__file__).resolve().parent.parent / ".cache" / "bin"
LIMIT_S = 300.0


def install(module: str) -> str:
    """Install the Go program `module`, unless that version is there, and return what happened."""
    name = module.partition("@")[0].rpartition("/")[2]
    stamp = BIN / f"{name}.version"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == module and (BIN / name).exists():
        return f"{name} is there"
    go = shutil.which("go")
    if go is None:
        return f"note: {name} was not installed, because there is no go"
    try:
        done = subprocess.run(
            [go, "install", module], env={**os.environ, "GOBIN": str(BIN)}, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"note: {name} was not installed within {LIMIT_S:g} s"
    if done.returncode:
        return f"note: {name} was not installed; go's message stands above"
    stamp.write_text(module, encoding="utf-8")
    return f"{name} was installed"


def main() -> int:
    """Install what the arguments name."""
    BIN.mkdir(parents=True, exist_ok=True)
    for module in sys.argv[1:]:
        print(install(module))
    return 0


if __name__ == "__main__":
    sys.exit(main())

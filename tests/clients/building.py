"""Runs the commands that build and check a client, again only where a source, a command or a tool has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.clients.drivers import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.clients.drivers import Command, DriverProgram

STAMPS: Final = ROOT / ".cache" / "clients"
COMMAND_LIMIT_S: Final = 600.0
_TOOL_VARIABLES: Final = ("GOTOOLCHAIN", "GOFLAGS", "JAVA_HOME", "MAVEN_OPTS")


def run_commands(program: DriverProgram, commands: Sequence[Command], **environ: str) -> str:
    """Run commands in the folder of a client and return what they wrote; fail with that of the first that fails."""
    written = ""
    for command in commands:
        done = subprocess.run(
            command,
            cwd=program.folder,
            env={**os.environ, **dict(program.environ), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}"
        written += done.stdout
    return written


def run_if_changed(program: DriverProgram, commands: Sequence[Command], *, stamps: Path = STAMPS) -> bool:
    """Run commands unless they succeeded with the same sources and tools; return whether they ran."""
    name = hashlib.sha256(repr((program.language, commands)).encode()).hexdigest()
    stamp = stamps / name
    key = hash_inputs(program)
    has_products = all(path.exists() for path in program.products)
    if has_products and stamp.exists() and stamp.read_text("utf-8") == key:
        return False
    run_commands(program, commands)
    stamps.mkdir(parents=True, exist_ok=True)
    # Of before the commands ran: a source that changed meanwhile is seen the next time.
    stamp.write_text(key, "utf-8")
    return True


def hash_inputs(program: DriverProgram) -> str:
    """Return the hash of the sources of a client, and of which tools would work on them."""
    digest = hashlib.sha256()
    for name in program.needs:
        if path := shutil.which(name):
            tool = Path(path).stat()
            digest.update(f"{Path(path).resolve()} {tool.st_size} {tool.st_mtime_ns}\n".encode())
    for name in _TOOL_VARIABLES:
        digest.update(f"{name}={os.environ.get(name, '')}\n".encode())
    for pattern in program.sources:
        for source in sorted(path for path in ROOT.glob(pattern) if path.is_file()):
            digest.update(f"{source} {source.stat().st_size}\n".encode() + source.read_bytes())
    return digest.hexdigest()

"""Runs commands of `reasond` in forks of one process that has imported everything: a start costs a tenth of the time.

Each command has its own process, environment, folder and output. Only the start of the interpreter, the imports and
the end of the interpreter are left out; `tests/integration/test_cli.py` has enough commands that run with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAM = """
import gc, json, os, sys
import reasond, reasond_server.app, reasond_server.cli.serving, reasond_server.cli.starting
from importlib.metadata import entry_points
from reasond_server.cli import main

for group in ("reasond.strategies", "reasond.tools"):
    for point in entry_points(group=group):
        point.load()
gc.freeze()

for line in sys.stdin:
    child = os.fork()
    if not child:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["folder"])
        for number, name in enumerate((os.devnull, asked["stdout"], asked["stderr"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
        sys.argv = ["reasond", *asked["arguments"]]
        try:
            code = main()
        except SystemExit as ended:
            code = ended.code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class ForkedCommands:
    """The process that forks."""

    process: subprocess.Popen[str]

    def run(self, *arguments: str, environ: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with no input and no environment but `environ`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as name:
            files = {stream: str(Path(name) / stream) for stream in ("stdout", "stderr")}
            asked = {"arguments": arguments, "environ": dict(environ), "folder": str(folder), **files}
            self.process.stdin.write(f"{json.dumps(asked)}\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            out, err = (Path(file).read_text("utf-8") for file in files.values())
        return subprocess.CompletedProcess(arguments, code, out, err)


@contextmanager
def run_forking_process() -> Iterator[ForkedCommands]:
    """Run the process that forks."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield ForkedCommands(process)

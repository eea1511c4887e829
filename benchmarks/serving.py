"""Servers in their own processes, each on its own processor, that report their processor time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import new_event_loop, pin
from reasond_server.telemetry.logs import configure

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("src", "clients/python/src")
_STOP_LIMIT_S = 20.0
_PAGE_BYTES = 4096


class ServerProcess:
    """A server that is measured from outside; `told` is the message that it sent when it was ready."""

    def __init__(self, process: subprocess.Popen[str], told: dict[str, Any]) -> None:
        self._process = process
        self.told = told

    @property
    def target(self) -> str:
        """Its address."""
        return str(self.told["target"])

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that a caller sends."""
        return (("authorization", f"Bearer {self.told.get('token', '')}"),)

    def cpu_s(self) -> float:
        """Return the processor time of all its threads so far."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the server has no pipes")
        self._process.stdin.write("?")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / 1e9

    def resident_bytes(self) -> int:
        """Return its current resident memory in bytes; 0 if the system does not say."""
        path = Path(f"/proc/{self._process.pid}/statm")
        return int(path.read_text().split()[1]) * _PAGE_BYTES if path.exists() else 0


@contextmanager
def running(module: str, *arguments: str, core: int, tree: Path = ROOT) -> Iterator[ServerProcess]:
    """Run `python -m module --serve ... --core N` of a checkout, with its own server, while the context lasts."""
    command: Sequence[str] = [sys.executable, "-m", module, "--core", str(core), "--serve", *arguments]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / part) for part in SOURCES)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=tree
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the server has no pipes")
        try:
            told = process.stdout.readline()
            if not told:
                raise SystemExit(f"{module} {' '.join(arguments)[:200]} did not start")
            yield ServerProcess(process, json.loads(told))
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def be_measured(serving: Coroutine[Any, Any, None], *, core: int) -> None:
    """Run as a measured process: on the given processor, with a log that is discarded."""
    pin(core)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, asyncio.Runner(loop_factory=new_event_loop) as runner:
        configure(nowhere, is_human=False)
        runner.run(serving)


async def serve_until_told(**told: Any) -> None:  # noqa: ANN401 - any JSON
    """Run the other side of `running`: send `told`, and answer every byte of input with the processor time so far."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def answer() -> None:
        if os.read(sys.stdin.fileno(), 1):
            print(time.process_time_ns(), flush=True)
        else:
            ended.set()

    print(json.dumps(told), flush=True)
    loop.add_reader(sys.stdin, answer)
    await ended.wait()


def migrate_store(url: str) -> None:
    """Bring the database at `url` to the schema of the installed server, as `reasond migrate` does."""
    environ = {**os.environ, "REASOND__STORE__URL": url}
    subprocess.run([sys.executable, "-m", "reasond_server", "migrate"], env=environ, check=True, capture_output=True)

"""A server in its own process that tests kill: `main` in a forked process, with the ready file as its argument.

All settings come from the environment. It is the same as `reasond serve --dev`, with the simulation's strategy instead
of the installed ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.assembly.app import Server
from reasond_server.config import load
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.telemetry.logs import configure
from tests.faults.parts import FREE_PORTS
from tests.forking import ForkedProcess
from tests.simulation.scripted import Listed

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_S = 180.0
POLL_S = 0.02


async def serve(ready_file: Path) -> None:
    """Serve until SIGTERM, then drain."""
    configure(sys.stderr, is_human=False)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print_tasks)
    loaded = load(None, os.environ)
    server = Server(loaded, environ=os.environ, dev=True, registry=StrategyRegistry([Listed()]))
    listening = await server.start()
    told = {"target": listening.grpc, "http": listening.http, "token": listening.token}
    unfinished = ready_file.with_suffix(".part")
    unfinished.write_text(json.dumps(told), encoding="utf-8")
    unfinished.replace(ready_file)
    await stopped.wait()
    await server.drain()


def print_tasks() -> None:
    """Print where each task waits, and end the process."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


@dataclass(eq=False)
class ServerProcess:
    """A running server: its addresses and its process."""

    process: ForkedProcess
    log: Path
    target: str = ""
    http: str = ""
    token: str = ""

    @classmethod
    def start(cls, folder: Path, name: str, environ: Mapping[str, str]) -> ServerProcess:
        """Start a server with its log and ready file in `folder`; `until_ready` waits for it."""
        log = folder / f"{name}.log"
        log.write_bytes(b"")
        process = ForkedProcess(
            folder / f"{name}.ready",
            call=f"{__name__}:{main.__name__}",
            environ={**os.environ, **FREE_PORTS, **environ},
            folder=folder,
            stderr=log,
        )
        return cls(process=process, log=log)

    async def until_ready(self) -> ServerProcess:
        """Wait until it has written its addresses."""
        ready = self.log.with_suffix(".ready")
        limit = time.monotonic() + LIMIT_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise AssertionError(f"the server did not start:\n{self.log.read_text('utf-8', 'replace')[-3000:]}")
            await asyncio.sleep(POLL_S)
        told = json.loads(ready.read_text("utf-8"))
        self.target, self.http, self.token = told["target"], told["http"], told["token"]
        return self

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL, like a crash."""
        self.process.kill()
        self.process.wait()

    async def end(self) -> int:
        """End it by SIGTERM and return its exit code; one that does not end tells where its tasks wait."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self.process.wait, LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            await asyncio.to_thread(self.process.wait, LIMIT_S)
        raise AssertionError(f"the server did not end:\n{self.log.read_text('utf-8', 'replace')[-10000:]}")


def main() -> None:
    """Serve, in the process that was forked for it."""
    asyncio.run(serve(Path(sys.argv[1])))

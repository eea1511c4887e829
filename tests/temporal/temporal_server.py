"""A real Temporal server on a free port; its state is in a file, so that it can be killed and started again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(__file__).resolve().parents[2] / ".cache" / "bin"
START_LIMIT_S = 180.0


def find_temporal() -> str:
    """Return the program; without it the test is skipped, or fails in CI."""
    path = shutil.which("temporal", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        message = "temporal is not installed here (make test builds it where there is a Go)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return path


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class TemporalServer:
    """The server: `address` is host:port of its frontend."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        arguments = ("server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self._port))
        file = str(self._folder / "temporal.db")
        with (self._folder / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(
                [find_temporal(), *arguments, "--db-filename", file, "--log-level", "error"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        limit = time.monotonic() + START_LIMIT_S
        while self._ask("operator", "cluster", "health").returncode:
            if self._process.poll() is not None or time.monotonic() > limit:
                raise AssertionError(f"Temporal did not start:\n{(self._folder / 'temporal.log').read_text()[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def show_history(self, workflow_id: str) -> str:
        """Return the history of a workflow as JSON."""
        return self._ask("workflow", "show", "--workflow-id", workflow_id, "--output", "json").stdout

    def terminate(self, workflow_id: str) -> None:
        """End a workflow as an operator does."""
        self._ask("workflow", "terminate", "--workflow-id", workflow_id, "--reason", "test").check_returncode()

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [find_temporal(), *arguments, "--address", self.address], capture_output=True, text=True, check=False
        )


@contextmanager
def running_temporal(folder: Path) -> Iterator[TemporalServer]:
    """Yield a server that ends with the context."""
    server = TemporalServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()

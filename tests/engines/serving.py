"""Starts real engines for tests and benchmarks, each in its own process on a free loopback port."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from tests.engines.markov import write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(__file__).with_name("llama_server.py")
START_LIMIT_S = 180.0
STOP_LIMIT_S = 180.0
CALL_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running llama.cpp server: its address (`http://host:port`), its chain, and the window of each slot in tokens.

    `pid` is its process id.
    """

    address: str
    chain: str
    window: int
    pid: int

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.address}/v1"

    def call(self, path: str, body: Any = None) -> Any:
        """Return the engine's JSON answer: to a GET without a body, else to a POST of JSON."""
        return json.loads(self.text(path, body))

    def text(self, path: str, body: Any = None) -> str:
        """Return the engine's answer as text."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}{path}", data=data, headers={"Content-Type": "application/json"})
        with urlopen(request, timeout=CALL_LIMIT_S) as response:
            answer: bytes = response.read()
        return answer.decode()

    def busy_slots(self) -> int:
        """Return the number of slots that are busy now."""
        return sum(slot["is_processing"] for slot in self.call("/slots"))

    def tokens_written(self) -> int:
        """Return the tokens of all finished replies, however they ended."""
        (line,) = [
            line for line in self.text("/metrics").splitlines() if line.startswith("llamacpp:tokens_predicted_total")
        ]
        return int(float(line.split()[1]))


@contextmanager
def running_engine(chain: str, *, folder: Path, slots: int = 2, window: int = 4096) -> Iterator[Engine]:
    """Serve the chain while the context lasts; `folder` receives the model file and the log.

    Raises:
      RuntimeError: the engine did not start; the message contains its log.
    """
    model = folder / f"{chain}.gguf"
    if not model.exists():
        write_model(model, chain)
    with serving_file(model, folder=folder, slots=slots, window=window) as engine:
        yield engine


@contextmanager
def serving_file(model: Path, *, folder: Path, slots: int, window: int) -> Iterator[Engine]:
    """Serve a model file, as `running_engine` does."""
    log, port = folder / f"{model.stem}-{slots}-{window}.log", _free_port()
    sizes = ["--port", str(port), "--slots", str(slots), "--window", str(window)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, PROGRAM, model, *sizes],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        engine = Engine(address=f"http://127.0.0.1:{port}", chain=model.stem, window=window, pid=process.pid)
        _await_start(process, engine, log)
        yield engine
        process.communicate(timeout=STOP_LIMIT_S)  # closes its standard input, which ends the engine
    finally:
        process.kill()
        process.communicate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(process: subprocess.Popen[bytes], engine: Engine, log: Path) -> None:
    limit = time.monotonic() + START_LIMIT_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            engine.call("/health")
        except OSError:
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise RuntimeError(f"the engine did not start:\n{log.read_text('utf-8', 'replace')}")

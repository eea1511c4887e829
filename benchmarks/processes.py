"""Programs that are measured from outside: started on their own processor, measured, ended.

Linux only: processor time and memory of the program and its descendants are read from /proc.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import loads
from pathlib import Path
from typing import Final

from benchmarks.machine import pin, processors

START_LIMIT_S: Final = 90.0
STOP_LIMIT_S: Final = 20.0
POLL_S: Final = 0.005
MEGA: Final = 1_000_000
FOREIGN: Final = ("REASOND", "OPENAI_", "PYTHON", "LITELLM_", "LANGCHAIN_", "LANGSMITH_")
# Indexes of fields in /proc/PID/stat, counted after the name in brackets.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running program; `ready_s` is the time from its start until it was ready, in seconds."""

    process_id: int
    ready_s: float

    def processes(self) -> list[int]:
        """Return the ids of the program and its descendants."""
        return _tree(self.process_id)

    def cpu_s(self) -> float:
        """Return the processor time of the program and its children so far, in seconds."""
        ticks = 0
        for one in _tree(self.process_id):
            fields = Path(f"/proc/{one}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        """Return the resident memory of the program and its children, in millions of bytes."""
        pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in _tree(self.process_id))
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGA


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasond:
    """A running `reasond serve`: its addresses, and a token for it."""

    running: Running
    grpc: str
    http: str
    token: str

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that a caller sends."""
        return (("authorization", f"Bearer {self.token}"),)


def environment(**more: str) -> dict[str, str]:
    """Return the environment without user settings that would change the measurement, and with `more`."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}, **more}


@contextmanager
def start_program(
    command: Sequence[str],
    *,
    core: int,
    folder: Path,
    environ: Mapping[str, str],
    is_ready: Callable[[], bool],
) -> Iterator[Running]:
    """Run `command` on processor `core` in `folder` while the context lasts; its output goes to a file there.

    Raises:
      SystemExit: it does not become ready.
    """
    before = processors()
    pin(core)  # the child inherits it from its first instruction on
    begun = time.perf_counter()
    log = folder / f"{Path(command[0]).name}.log"
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=folder, env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
    finally:
        if before:
            os.sched_setaffinity(0, before)
    try:
        while not is_ready():
            if process.poll() is not None or time.perf_counter() - begun > START_LIMIT_S:
                raise SystemExit(f"{command[0]} did not get ready:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL_S)
        yield Running(process_id=process.pid, ready_s=time.perf_counter() - begun)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def reasond(
    program: str, *, core: int, folder: Path, store: str = "memory:", settings: Mapping[str, str] | None = None
) -> Iterator[Reasond]:
    """Run `reasond serve` as in production: a signing key, tokens verified, JSON logs; on free ports of loopback."""
    ready = folder / "ready.json"
    config = folder / "config.toml"
    config.write_text(
        '[auth]\nkeys = [{ id = "bench", algorithm = "HS256", secret_env = "BENCH_SIGNING_KEY" }]\n', encoding="utf-8"
    )
    environ = environment(
        BENCH_SIGNING_KEY=secrets.token_hex(32),
        REASOND_CONFIG=str(config),
        REASOND__SERVER__GRPC_ADDRESS="127.0.0.1:0",
        REASOND__SERVER__HTTP_ADDRESS="127.0.0.1:0",
        REASOND__SERVER__DRAIN_DELAY_S="0",
        REASOND__STORE__URL=store,
        **(settings or {}),
    )
    permissions = ("--permission", "reasoning:execute", "--permission", "reasoning:tools")
    minted = subprocess.run(
        [program, "token", "--subject", "bench", *permissions],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=START_LIMIT_S,
    )
    command = [program, "serve", "--ready-file", str(ready)]
    with start_program(command, core=core, folder=folder, environ=environ, is_ready=ready.exists) as running:
        told = loads(ready.read_text(encoding="utf-8"))
        yield Reasond(running=running, grpc=told["grpc"], http=told["http"], token=minted.stdout.strip())


def _tree(process_id: int) -> list[int]:
    """Return the ids of the process and its descendants, without those that have just ended."""
    found, waiting = [], [process_id]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            waiting += map(int, task.read_text().split())
    return found


def end_children_on_sigterm() -> None:
    """Let SIGTERM end this program as Ctrl-C does, through its contexts, so that its children end too."""

    def end(number: int, frame: object) -> None:
        del number, frame
        raise SystemExit("stopped by SIGTERM")

    signal.signal(signal.SIGTERM, end)

"""Real processes: a server ends with exit code 0, however it is stopped and whatever its strategies do meanwhile.

Most are forked, but their interpreters end as those of programs do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, Client, ReasondError
from tests.conftest import BIN
from tests.faults.parts import FREE_PORTS
from tests.forking import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

# A blocked server would never end: the limits only have to suffice on a busy machine.
START_LIMIT_S = 180.0
END_LIMIT_S = 180.0
NAMES = ("deaf", "stuck_thread", "stuck_check", "leaving", "patient")
STRATEGIES = """
import asyncio, sys, threading

from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig
from reasond_server.types import CustomMetrics, CustomStep, FinishReason

METRICS = CustomMetrics(data={})


class Base(ReasoningStrategy[StrategyConfig]):
    description = "Misbehaves."
    config_type = StrategyConfig

    async def run(self, task, context):
        yield Step(detail=CustomStep(data={}), answer_found=False, metrics=METRICS)
        await self.work()
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=METRICS)

    async def work(self):
        pass


class Deaf(Base):
    name = "deaf"

    async def work(self):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass


class StuckThread(Base):
    name = "stuck_thread"

    async def work(self):
        await asyncio.to_thread(threading.Event().wait)


class StuckCheck(Base):
    name = "stuck_check"

    def check(self, task, config, model):
        if task.material:
            threading.Event().wait()


class Leaving(Base):
    name = "leaving"

    async def work(self):
        sys.exit(3)


class Patient(Base):
    name = "patient"

    async def work(self):
        await asyncio.Event().wait()
"""


class Served:
    """A server in its own process: its address, a token and its process."""

    def __init__(self, process: ForkedProcess, told: dict[str, str], log: Path) -> None:
        self.process = process
        self.grpc = told["grpc"]
        self.token = told["token"]
        self._log = log

    def end(self, *signals: signal.Signals) -> None:
        """Send the signals and wait for the end."""
        for each in signals:
            self.process.send_signal(each)
        code = self.process.wait(END_LIMIT_S)
        assert code == 0, self._log.read_text("utf-8")
        assert "Traceback" not in self._log.read_text("utf-8")


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A folder that installs the strategies for every process that has it on its path."""
    folder = tmp_path / "plugin"
    info = folder / "rude_strategies-1.dist-info"
    info.mkdir(parents=True)
    (folder / "rude_strategies.py").write_text(STRATEGIES, "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude-strategies\nVersion: 1\n", "utf-8")
    points = [f"{name} = rude_strategies:{name.title().replace('_', '')}" for name in NAMES]
    (info / "entry_points.txt").write_text("\n".join(["[reasond.strategies]", *points]), "utf-8")
    return folder


@contextmanager
def serving(folder: Path, plugin: Path, **keys: str) -> Iterator[Served]:
    """Start `reasond serve --dev`, wait until it is ready, and end it with all its children."""
    ready, log = folder / "ready.json", folder / "log"
    own = {
        **FREE_PORTS,
        "REASOND__REASONING__ENABLED_STRATEGIES": json.dumps(NAMES),
        "REASOND__REASONING__DEFAULT_STRATEGY": "",
        "REASOND__SERVER__DRAIN_GRACE_S": "0.5",
        "PYTHONPATH": os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]),
        **keys,
    }
    process = ForkedProcess(
        *("serve", "--dev", "--ready-file", ready),
        environ={**os.environ, **own},
        folder=folder,
        stdout=Path(os.devnull),
        stderr=log,
        ends_interpreter=True,
    )
    try:
        limit = time.monotonic() + START_LIMIT_S
        while not ready.exists() and time.monotonic() < limit and process.poll() is None:
            with_patience(process, 0.05)
        assert ready.exists(), log.read_text("utf-8")
        yield Served(process, json.loads(ready.read_text("utf-8")), log)
        assert not ready.exists()
    finally:
        process.kill()
        process.wait()


def with_patience(process: ForkedProcess, seconds: float) -> None:
    """Wait up to `seconds` for the end of `process`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


async def last_of(served: Served, strategy: str, *signals: signal.Signals, material: str = "") -> Any:
    """Follow a run until its first step, end the server, and return the client's last event or error."""
    heard: Any = None
    begun = asyncio.Event()

    async def follow() -> None:
        nonlocal heard
        try:
            async for event in client.reason_iterations("why?", strategy=strategy, material=material):
                heard = event
                if event.WhichOneof("event") == "iteration":
                    begun.set()
        except ReasondError as error:
            heard = error

    async with AsyncClient(served.grpc, token=served.token) as client:
        following = asyncio.create_task(follow())
        if not material:
            await asyncio.wait_for(begun.wait(), START_LIMIT_S)
        await asyncio.to_thread(served.end, *signals)
        await asyncio.wait_for(following, END_LIMIT_S)
    return heard


@pytest.mark.parametrize("strategy", ["deaf", "stuck_thread", "patient"])
@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGTERM, signal.SIGINT)], ids=["once", "twice"])
async def test_no_strategy_keeps_a_server_from_ending_and_its_client_hears_the_end(
    tmp_path: Path, plugin: Path, strategy: str, signals: tuple[signal.Signals, ...]
) -> None:
    with serving(tmp_path, plugin) as served:
        heard = await last_of(served, strategy, *signals)
    assert heard.WhichOneof("event") == "completed"


async def test_a_check_that_never_returns_does_not_keep_the_server_from_ending(tmp_path: Path, plugin: Path) -> None:
    with serving(tmp_path, plugin) as served:
        heard = await last_of(served, "stuck_check", signal.SIGTERM, material="word " * 20_000)
    assert isinstance(heard, ReasondError)


async def test_a_strategy_that_exits_does_not_end_the_server(tmp_path: Path, plugin: Path) -> None:
    with serving(tmp_path, plugin) as served:
        async with AsyncClient(served.grpc, token=served.token) as client:
            with pytest.raises(ReasondError) as caught:
                await client.reason("why?", strategy="leaving")
            assert (await client.list_strategies()).strategies
        assert caught.value.reason == "INTERNAL"
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(END_LIMIT_S) == 0


CLIENT = """
import sys
from reasond import Client
with Client(sys.argv[1], token=sys.argv[2]) as client:
    for event in client.reason_iterations("why?", strategy="patient"):
        print(event.execution_id, flush=True)
"""


def test_a_client_that_is_killed_in_mid_stream_frees_its_run(tmp_path: Path, plugin: Path) -> None:
    with serving(tmp_path, plugin) as served:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, served.grpc, served.token], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        execution_id = process.stdout.readline().strip()
        process.kill()
        process.wait()
        process.stdout.close()
        with Client(served.grpc, token=served.token) as client:
            limit = time.monotonic() + END_LIMIT_S
            while client.get_execution(execution_id).execution.end_time.seconds == 0:
                assert time.monotonic() < limit
        served.end(signal.SIGTERM)


def test_closed_output_does_not_fail_the_server(tmp_path: Path, plugin: Path) -> None:
    del plugin
    for redirection in (">&-", "2>&-", ">&- 2>&- <&-"):
        command = f"exec {BIN / 'reasond'} config show {redirection}"
        assert subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=False, timeout=180).returncode == 0

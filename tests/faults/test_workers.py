"""`reasond serve --workers 2` with real processes: two on the same ports, killed, replaced and drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

import reasond
from reasond_server.cli.outcome import ExitCode
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.forking import run_forked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from tests.faults.upstream import Conversation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads the connections of a shared port"),
]

PATIENCE_S = 240.0
CLIENTS = 8
GONE = (reasond.UnavailableError, reasond.CallCancelledError)
COMMAND = [sys.executable, "-m", "reasond_server"]
OPEN = 'reasond_streams_open{transport="grpc"}'
CLOSED_BREAKERS = 'reasond_model_breaker_state{backend="llm",state="closed"}'


@dataclass
class Together:
    """The supervisor, its log lines, and a model whose answers a test holds."""

    process: asyncio.subprocess.Process
    ready_file: Path
    gate: asyncio.Event
    token: str
    lines: list[dict[str, object]] = field(default_factory=list)
    grown: asyncio.Condition = field(default_factory=asyncio.Condition)
    prompts: Counter[str] = field(default_factory=Counter)

    async def read(self) -> None:
        """Read the log lines of all processes."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            async with self.grown:
                self.lines.append(json.loads(line) if line.startswith(b"{") else {"message": line.decode()})
                self.grown.notify_all()
        async with self.grown:
            self.lines.append({"message": "ended"})
            self.grown.notify_all()

    def find_lines(self, message: str) -> list[dict[str, object]]:
        """Return the lines with this message."""
        return [line for line in self.lines if str(line.get("message", "")).startswith(message)]

    async def until_told(self, message: str, count: int = 1) -> list[dict[str, object]]:
        """Wait until `count` lines have this message."""
        async with self.grown, asyncio.timeout(PATIENCE_S):
            await self.grown.wait_for(lambda: len(self.find_lines(message)) >= count or self.find_lines("ended"))
        found = self.find_lines(message)
        assert len(found) >= count, self.lines[-20:]
        return found

    @property
    def workers(self) -> list[int]:
        """Ids of the worker processes, in the order in which they became ready."""
        return [int(str(line["pid"])) for line in self.find_lines("worker ready")]

    async def scrape(self) -> dict[str, float]:
        """Return the metrics of any worker."""
        place = json.loads(self.ready_file.read_text("utf-8"))["metrics"]
        async with aiohttp.ClientSession() as session, session.get(place) as answer:
            lines = [line.rpartition(" ") for line in (await answer.text()).splitlines()]
        return {name: float(value) for name, _, value in lines if not name.startswith("#")}

    async def until_counted(self, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Scrape until `holds`: processes publish their counts four times a second."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(found := await self.scrape()):  # noqa: ASYNC110 - other processes cannot set an event here
                await asyncio.sleep(0.1)
        return found

    async def streams_that_ended(self) -> float:
        """Return the number of streams that ended with OK."""
        return sum(
            value
            for name, value in (await self.scrape()).items()
            if name.startswith("reasond_calls_total{") and 'code="OK"' in name and "ReasonIterations" in name
        )

    def client(self) -> reasond.AsyncClient:
        """Return a client with its own connection."""
        place = json.loads(self.ready_file.read_text("utf-8"))
        return reasond.AsyncClient(
            target=place["grpc"], token=self.token, options={"grpc.use_local_subchannel_pool": 1}
        )


async def make_token(environ: Mapping[str, str]) -> str:
    """Return a token with all permissions."""
    arguments = ("token", "--subject", "anna", "--permission", "admin")
    done = await asyncio.to_thread(run_forked, *arguments, environ=environ, folder=Path(os.sep))
    return done.stdout.strip()


@asynccontextmanager
async def together(folder: Path, url: str, **more: str) -> AsyncIterator[Together]:
    """Serve with two workers on the database at `url`."""
    gate = asyncio.Event()
    prompts: Counter[str] = Counter()

    async def answer(conversation: Conversation) -> None:
        messages = conversation.json.get("messages")
        if not messages:
            await conversation.answer("404 Not Found", b"{}")
            return
        prompts[messages[-1]["content"]] += 1
        await gate.wait()
        events = (chunk("#ANSWER yes"), chunk(finish="stop"), usage(10, 5), DONE)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(events))

    async with upstream(answer) as model:
        environ = {
            **os.environ,
            "REASOND_CONFIG": os.devnull,
            "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
            "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
            "REASOND__SERVER__DRAIN_DELAY_S": "0",
            "REASOND__SERVER__DRAIN_GRACE_S": "2",
            "REASOND__METRICS__ADDRESS": "127.0.0.1:0",
            "REASOND__STORE__URL": url,
            "REASOND__STORE__LEASE_S": "2",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
            "REASOND__LOGS__FORMAT": "json",
            "REASOND__AUTH__KEYS": '[{ id = "main", secret_env = "WORKERS_KEY" }]',
            "OPENAI_API_KEY": "none",
            "WORKERS_KEY": "0f9c1d7ab36e48e5a2d4b8c7f6019e3d",
            **more,
        }
        ready_file = folder / "ready.json"
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("serve", "--workers", "2", "--ready-file", str(ready_file)),
            env=environ,
            stderr=asyncio.subprocess.PIPE,
            limit=2**22,
        )
        both = Together(
            process=process, ready_file=ready_file, gate=gate, token=await make_token(environ), prompts=prompts
        )
        reading = asyncio.create_task(both.read())
        try:
            yield both
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading


async def following(both: Together, query: str, begun: asyncio.Semaphore) -> reasond.Reasoning:
    """Start a run on its own connection and follow it to its end, on any worker that answers."""
    execution_id, last, told = "", 0, False
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with both.client() as client:
                try:
                    stream = (
                        client.resume(execution_id, after_sequence=last, keep_running=True)
                        if execution_id
                        else client.reason_iterations(
                            query, strategy="chain_of_thought", request_id=query.replace(" ", "-"), keep_running=True
                        )
                    )
                    async with stream:
                        async for event in stream:
                            execution_id = event.execution_id
                            if event.WhichOneof("event") in {"heartbeat", "delta"}:
                                continue
                            assert event.sequence == last + 1
                            last = event.sequence
                            if not told:
                                told = True
                                begun.release()
                        # Read it to its end: the server counts a stream that is left before its status as cancelled.
                        if stream.result is not None:
                            return stream.result
                except reasond.ReasondError as error:
                    if not isinstance(error, GONE):
                        raise
            await asyncio.sleep(0.2)


def find_fallen(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the counters that have decreased or disappeared."""
    counters = [name for name in before if name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    assert counters
    return {name: before[name] for name in counters if after.get(name, -1.0) < before[name]}


async def test_runs_of_a_killed_worker_go_on_in_the_other_and_a_new_one_takes_its_place(
    tmp_path: Path, postgres_url: str
) -> None:
    async with together(tmp_path, postgres_url) as both:
        await both.until_told("worker ready", 2)
        await both.until_told("ready")
        begun = asyncio.Semaphore(0)
        clients = asyncio.gather(*(following(both, f"why {number}?", begun) for number in range(CLIENTS)))
        for _ in range(CLIENTS):
            one_more: asyncio.Future[Any] = asyncio.ensure_future(begun.acquire())
            await asyncio.wait([one_more, clients], return_when=asyncio.FIRST_COMPLETED)
        assert not clients.done(), clients.exception()
        before = await both.until_counted(lambda found: found[OPEN] == CLIENTS)
        assert (before["reasond_ready"], before["reasond_processes"], before[CLOSED_BREAKERS]) == (2, 2, 2)
        os.kill(both.workers[0], signal.SIGKILL)
        (died,) = await both.until_told("a worker died and is replaced")
        assert (died["pid"], died["exit_code"]) == (both.workers[0], -signal.SIGKILL)
        await both.until_told("worker ready", 3)
        taken = await both.until_told("execution taken over")
        # The dead worker's gauges are gone; its counts stay.
        during = await both.until_counted(lambda found: found["reasond_ready"] == 2)
        assert (during["reasond_processes"], during[CLOSED_BREAKERS]) == (2, 2)
        assert find_fallen(before, during) == {}
        both.gate.set()
        results = await clients
        assert {result.answer for result in results} == {"#ANSWER yes"}
        assert 0 < len(taken) <= CLIENTS
        # Any worker answers for all, once they have published their counts.
        async with asyncio.timeout(PATIENCE_S):
            while await both.streams_that_ended() < CLIENTS:  # noqa: ASYNC110 - other processes cannot set an event here
                await asyncio.sleep(0.1)
        assert [await both.streams_that_ended() for _ in range(6)] == [CLIENTS] * 6
        after = await both.until_counted(lambda found: not found[OPEN] and not found["reasond_executions_running"])
        assert find_fallen(during, after) == {}
        # Each run ended once, in one of the workers.
        assert sum(value for name, value in after.items() if name.startswith("reasond_executions_total{")) == CLIENTS
        both.process.send_signal(signal.SIGTERM)
        assert await both.process.wait() == 0
        assert not both.ready_file.exists()


async def test_workers_end_by_themselves_when_their_supervisor_is_killed(tmp_path: Path, postgres_url: str) -> None:
    async with together(tmp_path, postgres_url) as both:
        await both.until_told("worker ready", 2)
        both.process.kill()
        await both.until_told("draining", 2)
        # The log pipe closes when the last process that holds it ends.
        await both.until_told("ended")


async def test_an_unusable_store_is_reported_once_and_ends_the_supervisor(tmp_path: Path) -> None:
    async with together(tmp_path, "postgresql://nobody@127.0.0.1:1/none") as both:
        assert await both.process.wait() == ExitCode.BAD_REQUEST
        await both.until_told("ended")
        assert len(both.find_lines("error: The database")) == 1
        assert both.find_lines("error: A worker did not start: it ended with exit code 2")
        assert not both.ready_file.exists()

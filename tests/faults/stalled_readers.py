"""What a client that stops reading costs the server, over gRPC and as server-sent events.

A server in its own process holds one execution of
15 MiB. A client process follows it on 50 streams, reads the first event of each and is stopped by SIGSTOP. The figures
are the growth of the server's resident memory per stream once it has settled, the time that another client needs for
the whole log meanwhile, and the growth that is left after `[server] write_timeout_s`. Linux only: memory is read from
/proc, which does not include the kernel's socket buffers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig
from reasond_server.testing import running_server
from reasond_server.types import CustomMetrics, CustomStep, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.types import Task

EVENTS = 120
EVENT_BYTES = 128 * 1024
WRITE_TIMEOUT_S = 8.0
MEMORY = "memory:"
MEBI = 1024 * 1024
STOP_LIMIT_S = 10.0
SETTLED_S = 1.5
POLL_S = 0.1
LIMIT_S = 240.0
WAYS: Final = ("grpc", "sse")


def say(what: object) -> None:
    """Write a line to the process that started this one."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


class Large(ReasoningStrategy[StrategyConfig]):
    """Takes steps of `EVENT_BYTES` each, without a model."""

    name = "large"
    description = "Writes much."
    config_type = StrategyConfig

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Take the steps."""
        del task, context
        metrics = CustomMetrics(data={})
        for number in range(EVENTS):
            detail = CustomStep(data={"number": number, "text": "x" * EVENT_BYTES})
            yield Step(detail=detail, answer_found=False, metrics=metrics)
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The server's address and process, and the execution to follow."""

    pid: int
    target: str
    http: str
    token: str
    execution_id: str = ""

    @property
    def memory(self) -> int:
        """The server's resident memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def settled_memory(self) -> int:
        """Return the memory once it has changed by less than 256 KiB for a while."""
        last, since, limit = self.memory, time.monotonic(), time.monotonic() + LIMIT_S
        while time.monotonic() - since < SETTLED_S and time.monotonic() < limit:
            time.sleep(POLL_S)
            now = self.memory
            if abs(now - last) > MEBI // 4:
                last, since = now, time.monotonic()
        return self.memory


class ServerProcess:
    """A server in its own process, which reports the number of streams that it has cut off."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.place = Place(**json.loads(self._read_line() or "{}"))

    def await_cut_offs(self, count: int) -> None:
        """Wait until `count` streams were cut off."""
        limit = time.monotonic() + LIMIT_S
        while (found := self._cut_offs()) < count:
            if time.monotonic() > limit:
                raise SystemExit(f"only {found} of {count} streams were cut off within {LIMIT_S:g} s")
            time.sleep(POLL_S)

    def _cut_offs(self) -> int:
        if self._process.stdin is not None:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        return int(self._read_line())

    def _read_line(self) -> str:
        return "" if self._process.stdout is None else self._process.stdout.readline()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """The cost of stalled streams: memory per stream in MiB, and the time of another client's read in ms."""

    stalled_mib: float
    left_mib: float
    read_before_ms: float
    read_meanwhile_ms: float
    ended: dict[str, int]


async def serve(store_url: str) -> None:
    """Serve until standard input ends."""
    environ = {"REASOND__SERVER__WRITE_TIMEOUT_S": str(WRITE_TIMEOUT_S), "REASOND__STORE__URL": store_url}
    ends = CutOffs()
    for name in ("reasond.grpc", "reasond.http"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(ends)
    async with running_server(strategies=[Large()], environ=environ) as listening:
        told = {"pid": os.getpid(), "target": listening.grpc, "http": listening.http, "token": listening.token}
        say(json.dumps(told))
        while await asyncio.to_thread(sys.stdin.readline):
            say(ends.count)


class CutOffs(logging.Handler):
    """Counts the streams that the server ended because nobody read them, from its log."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line."""
        self.count += f"{WRITE_TIMEOUT_S:g} s was cut off (SLOW_CONSUMER)" in record.getMessage()


@contextmanager
def running(store_url: str = MEMORY) -> Iterator[ServerProcess]:
    """Run the server in its own process."""
    command = [sys.executable, "-m", "tests.faults.stalled_readers", "--serve", f"--store={store_url}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield ServerProcess(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def stub_of(channel: grpc.aio.Channel) -> Any:
    """Return the generated stub on `channel`."""
    return reasoning_service_pb2_grpc.ReasoningServiceStub(channel)


def channel_to(place: Place, *, own_connection: bool = False) -> grpc.aio.Channel:
    """Return a channel; with `own_connection` it does not share a connection."""
    return grpc.aio.insecure_channel(place.target, options=[("grpc.use_local_subchannel_pool", int(own_connection))])


def build_resume(place: Place, after: int = 0) -> reasoning_service_pb2.ReasonIterationsRequest:
    """Return the request for the events above `after`."""
    cursor = execution_pb2.ExecutionCursor(execution_id=place.execution_id, after_sequence=after)
    return reasoning_service_pb2.ReasonIterationsRequest(resume=cursor)


def metadata(place: Place) -> Sequence[tuple[str, str]]:
    """Return the metadata that authorizes a call."""
    return (("authorization", f"Bearer {place.token}"),)


async def prepare_run(place: Place) -> Place:
    """Let the execution run to its end and return its place."""
    task = execution_pb2.ReasoningTask(query="go", strategy="large")
    request = reasoning_service_pb2.ReasonIterationsRequest(task=task, keep_running=True)
    execution_id = ""
    async with channel_to(place) as channel:
        async for event in stub_of(channel).ReasonIterations(request, metadata=metadata(place)):
            execution_id = event.execution_id
    return Place(pid=place.pid, target=place.target, http=place.http, token=place.token, execution_id=execution_id)


async def read_ms(place: Place, reads: int) -> float:
    """Return the median time of `reads` reads in which one client reads the whole log, in milliseconds."""
    taken = []
    async with channel_to(place, own_connection=True) as channel:
        for _ in range(reads):
            begun, messages = time.perf_counter(), 0
            async for _ in stub_of(channel).ReasonIterations(build_resume(place), metadata=metadata(place)):
                messages += 1
            if messages != EVENTS + 2:
                raise SystemExit(f"{messages} events came instead of {EVENTS + 2}")
            taken.append(1000 * (time.perf_counter() - begun))
    return statistics.median(taken)


async def stall_grpc(place: Place, streams: int) -> dict[str, int]:
    """Open the streams, read one event of each, be stopped; then read the rest and resume the ended streams."""
    channels = [channel_to(place) for _ in range(streams)]
    calls = [stub_of(channel).ReasonIterations(build_resume(place), metadata=metadata(place)) for channel in channels]
    for call in calls:
        await call.read()
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    ended = await asyncio.gather(
        *(rest_of(place, channel, call) for channel, call in zip(channels, calls, strict=True))
    )
    for channel in channels:
        await channel.close()
    return {name: ended.count(name) for name in sorted(set(ended))}


async def rest_of(place: Place, channel: grpc.aio.Channel, call: Any) -> str:
    """Read a stream to its end, resume where it ended, and return how both went."""
    seen = 1
    try:
        while (event := await call.read()) is not grpc.aio.EOF:
            if event.sequence != seen + 1:
                return f"event {event.sequence} after {seen}"
            seen = event.sequence
        how = (await call.code()).name
    except grpc.aio.AioRpcError as error:
        how = error.code().name
    async for event in stub_of(channel).ReasonIterations(build_resume(place, seen), metadata=metadata(place)):
        if event.sequence != seen + 1:
            return f"event {event.sequence} after {seen} when resumed"
        seen = event.sequence
    return f"{how}, then all" if seen == EVENTS + 2 else f"{how}, then only {seen}"


async def stall_sse(place: Place, streams: int) -> dict[str, int]:
    """Do the same as `stall_grpc` over HTTP; a stream that was cut has no status to read."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=65_536) as session:
        responses = [await reconnect(session, place, 1) for _ in range(streams)]
        firsts = [await response.content.readany() for response in responses]
        say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        ended = [
            await sse_rest(session, place, response, first) for response, first in zip(responses, firsts, strict=True)
        ]
    return {name: ended.count(name) for name in sorted(set(ended))}


async def reconnect(session: aiohttp.ClientSession, place: Place, after: int) -> aiohttp.ClientResponse:
    """Reconnect as a browser does, with the id of the last event that it received."""
    params = {"query": "go", "strategy": "large"}
    headers = {
        "accept": "text/event-stream",
        "authorization": f"Bearer {place.token}",
        "last-event-id": f"{place.execution_id}:{after}",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    return await session.post(f"{place.http}/api/v1/jsonrpc", json=body, headers=headers)


async def sse_rest(session: aiohttp.ClientSession, place: Place, response: aiohttp.ClientResponse, first: bytes) -> str:
    """Read a stream to its end, resume where it ended, and return how both went."""
    how, seen = await sse_end(response, first, 1)
    if how == "cut":
        _, seen = await sse_end(await reconnect(session, place, seen), b"", seen)
    return f"{how}, then all" if seen == EVENTS + 2 else f"{how}, then only {seen}"


async def sse_end(response: aiohttp.ClientResponse, first: bytes, after: int) -> tuple[str, int]:
    """Return how a stream ended and the id of the last whole event; -1 if an event was missing or came twice."""
    seen, rest = after, first
    while True:
        *frames, rest = rest.split(b"\n\n")
        for frame in frames:
            _, _, place = frame.partition(b"\n")[0].rpartition(b":")
            if frame.startswith(b"id: ") and int(place) != seen + 1:
                return f"event {int(place)} after {seen}", -1
            seen += frame.startswith(b"id: ")
        try:
            part = await response.content.readany()
        except (aiohttp.ClientError, ConnectionError):
            return "cut", seen
        if not part:
            return "whole", seen
        rest += part


def measure(server: ServerProcess, way: str, *, reads: int, streams: int) -> Measure:
    """Stall all streams over one transport; another client reads the whole log `reads` times before and meanwhile."""
    place = asyncio.run(prepare_run(server.place))
    before_ms = asyncio.run(read_ms(place, reads))
    base = place.settled_memory()
    arguments = ["--stall", way, "--streams", str(streams), "--place", json.dumps(asdict(place))]
    command = [sys.executable, "-m", "tests.faults.stalled_readers", *arguments]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client,
        ExitStack() as stack,
    ):
        # A client that is stopped would be waited for without end.
        stack.callback(client.kill)
        if client.stdin is None or client.stdout is None:
            raise SystemExit("the client has no pipes")
        if client.stdout.readline().strip() != "ready":
            raise SystemExit("the client did not get its streams")
        client.send_signal(signal.SIGSTOP)
        stalled = place.settled_memory()
        meanwhile_ms = asyncio.run(read_ms(place, reads))
        server.await_cut_offs(streams)
        left = place.settled_memory()
        client.send_signal(signal.SIGCONT)
        client.stdin.write("\n")
        client.stdin.flush()
        ended = json.loads(client.stdout.readline())
        client.wait()
    return Measure(
        stalled_mib=round((stalled - base) / streams / MEBI, 3),
        left_mib=round((left - base) / streams / MEBI, 3),
        read_before_ms=round(before_ms, 1),
        read_meanwhile_ms=round(meanwhile_ms, 1),
        ended=ended,
    )


def main() -> None:
    """Run as one of the processes that take part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--stall", choices=WAYS)
    parser.add_argument("--streams", type=int)
    parser.add_argument("--place")
    parser.add_argument("--store", default=MEMORY)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.store))
        return
    place = Place(**json.loads(arguments.place))
    stall = stall_sse if arguments.stall == "sse" else stall_grpc
    say(json.dumps(asyncio.run(stall(place, arguments.streams))))


if __name__ == "__main__":
    main()

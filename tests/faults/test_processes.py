"""Real processes on a real database that are killed, stopped and cut off under load: nothing is lost or paid twice.

Clients follow their runs over gRPC and resume on any server that answers. An event that a client has received is
committed, and so are the model calls before it: the fake model's server must never receive one of those again.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from tests.faults.server_process import ServerProcess
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage
from tests.http_clients import make_http_client
from tests.simulation.scripted import prompts_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.engines.postgres import PostgresServer
    from tests.faults.upstream import Conversation

pytestmark = pytest.mark.slow

LEASE_S = 3
CLIENTS = 12
STEPS = 12
MODEL_TAKES_S = 0.15
PATIENCE_S = 240.0
GONE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}


@dataclass
class Load:
    """The fake model, the servers, and the events that the clients have received."""

    folder: Path
    environ: dict[str, str]
    servers: list[ServerProcess] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    settled: set[str] = field(default_factory=set)
    paid_twice: list[str] = field(default_factory=list)
    seen: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    gaps_s: list[float] = field(default_factory=list)

    async def server(self) -> ServerProcess:
        """Start one more server."""
        name = f"server{len(list(self.folder.glob('*.log')))}"
        server = ServerProcess.start(self.folder, name, self.environ)
        self.servers.append(server)
        return await server.until_ready()

    async def model(self, conversation: Conversation) -> None:
        """Answer a prompt and record it."""
        messages = conversation.json.get("messages")
        if not messages:
            await conversation.answer("404 Not Found", b"{}")
            return
        prompt = messages[-1]["content"]
        self.begun[prompt] += 1
        if prompt in self.settled:
            self.paid_twice.append(prompt)
        await asyncio.sleep(MODEL_TAKES_S)
        events = (chunk(f"reply to {prompt}"), chunk(finish="stop"), usage(10, 5), DONE)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(events))

    async def saw(self, query: str, sequence: int) -> None:
        """Record that a client received an event: the calls before it must not be repeated."""
        tag = json.loads(query)["tag"]
        if sequence > 1:
            self.settled.update(prompt for prompt in prompts_of(query) if prompt.startswith(f"{tag}/{sequence - 2}/"))
        async with self.changed:
            self.seen += 1
            self.changed.notify_all()

    async def until_seen(self, events: int) -> None:
        """Wait until the clients have received that many events in total."""
        async with self.changed, asyncio.timeout(PATIENCE_S):
            await self.changed.wait_for(lambda: self.seen >= events)

    def alive(self, number: int) -> ServerProcess | None:
        """Return a running server."""
        found = [server for server in self.servers if server.target and server.is_alive]
        return found[number % len(found)] if found else None


async def client(load: Load, number: int) -> execution_pb2.Reasoning:
    """Start a run and follow it to its end, on any server that answers; check the order of all events."""
    query = json.dumps({"tag": f"q{number}", "steps": [{"calls": 1 + number % 2, "tool": ""}] * STEPS})
    execution_id, last, attempt, lost_s = "", 0, number, None
    async with asyncio.timeout(PATIENCE_S):
        while True:
            server = load.alive(attempt)
            attempt += 1
            if server is None:
                await asyncio.sleep(0.1)
                continue
            request = reasoning_service_pb2.ReasonIterationsRequest()
            if execution_id:
                request.resume.execution_id, request.resume.after_sequence = execution_id, last
            else:
                request.task.query, request.task.strategy, request.request_id = query, "listed", f"r{number}"
            metadata = (("authorization", f"Bearer {server.token}"),)
            async with grpc.aio.insecure_channel(server.target) as channel:
                stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
                try:
                    async for event in stub.ReasonIterations(request, metadata=metadata):
                        execution_id = event.execution_id
                        if event.WhichOneof("event") in {"heartbeat", "delta"}:
                            continue
                        assert event.sequence == last + 1, f"event {event.sequence} after {last}"
                        last = event.sequence
                        if lost_s is not None:
                            load.gaps_s.append(time.monotonic() - lost_s)
                            lost_s = None
                        await load.saw(query, last)
                        if event.HasField("completed"):
                            ended: execution_pb2.Reasoning = event.completed
                            return ended
                except grpc.aio.AioRpcError as error:
                    if error.code() not in GONE:
                        raise
            lost_s = lost_s or time.monotonic()
            await asyncio.sleep(0.1)


async def respond(load: Load, number: int) -> None:
    """Begin a response and read it to its end on any server that answers: what it has put together is the whole."""
    query = json.dumps({"tag": f"p{number}", "steps": [{"calls": 1 + number % 2, "tool": ""}] * STEPS})
    body = {
        "model": "reasond/listed",
        "input": query,
        "background": True,
        "reasond": {"request_id": f"p{number}"},
    }
    response_id, had, attempt = "", list[dict[str, Any]](), number
    async with asyncio.timeout(PATIENCE_S):
        while not had or had[-1]["type"] != "response.completed":
            server = load.alive(attempt)
            attempt += 1
            await asyncio.sleep(0.1)
            if server is None:
                continue
            headers = {"authorization": f"Bearer {server.token}"}
            with suppress(httpx.HTTPError):
                async with make_http_client(base_url=server.http, headers=headers, timeout=30) as http:
                    if not response_id:
                        begun = await http.post("/v1/responses", json=body)
                        response_id = begun.json()["id"] if begun.status_code == HTTPStatus.OK else ""
                    if response_id:
                        await read_on(load, http, response_id, query, had)
        assert server is not None
        async with make_http_client(base_url=server.http, headers=headers, timeout=30) as http:
            whole = (await http.get(f"/v1/responses/{response_id}")).json()
    assert [item for event in had if (item := event.get("item")) and event["type"].endswith("item.done")] == whole[
        "output"
    ]
    texts: dict[str, str] = {}
    for event in had:
        if "delta" in event:
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    assert texts == {
        item["id"]: "".join(part["text"] for part in item.get("content") or item["summary"]) for item in whole["output"]
    }


async def read_on(load: Load, http: httpx.AsyncClient, response_id: str, query: str, had: list[dict[str, Any]]) -> None:
    """Read the events after the last one, as far as they come."""
    params = {"stream": "true"} | ({"starting_after": str(had[-1]["sequence_number"])} if had else {})
    async with http.stream("GET", f"/v1/responses/{response_id}", params=params) as answer:
        async for line in answer.aiter_lines():
            has_data = line.startswith("data: {")
            event: dict[str, Any] = json.loads(line.removeprefix("data: ")) if has_data else {"type": ""}
            if event["type"] == "error":
                return
            if event["type"]:
                assert not had or event["sequence_number"] > had[-1]["sequence_number"]
                had.append(event)
            if event["type"] == "response.output_item.done" and event["item"]["type"] == "reasoning":
                # The events of a log: its start, then one for each step.
                await load.saw(query, event["output_index"] + 2)


def check(load: Load, results: list[execution_pb2.Reasoning]) -> None:
    """Check the invariants of every fault, and print the figures that are only reported."""
    assert [result.finish_reason for result in results] == [execution_pb2.FINISH_REASON_ANSWERED] * CLIENTS
    assert load.paid_twice == []
    resent = sum(count - 1 for count in load.begun.values())
    slowest = max(load.gaps_s, default=0.0)
    # Reported and not asserted: how fast this machine is.
    print(f"{load.seen} events; {resent} calls in flight sent again; longest gap of a client {slowest:.1f} s")  # noqa: T201 - for `pytest -s`


@asynccontextmanager
async def open_load(folder: Path, store_url: str) -> AsyncIterator[Load]:
    """Yield a load without servers; all processes are ended in the end."""
    async with AsyncExitStack() as stack:
        load = Load(folder=folder, environ={})
        model = await stack.enter_async_context(upstream(load.model))
        load.environ = {
            "REASOND__STORE__URL": store_url,
            "REASOND__STORE__LEASE_S": str(LEASE_S),
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
            "REASOND__SERVER__DRAIN_GRACE_S": "2",
            "OPENAI_API_KEY": "none",
        }

        def end_all() -> None:
            for server in load.servers:
                if server.is_alive:
                    server.kill()

        stack.callback(end_all)
        yield load


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL; if it is not installed, the test is skipped, or fails in CI."""
    # Not at the top: the import needs an optional extra.
    from tests.engines.postgres import is_postgres_here, running_postgres  # noqa: PLC0415 - as said above

    if not is_postgres_here():
        message = "PostgreSQL is not installed here (make test installs it where it may)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with ExitStack() as stack:
        yield stack.enter_context(running_postgres())


@pytest.fixture
def database(postgres: PostgresServer, patient_pool: None) -> str:  # noqa: ARG001 - it changes this process
    """An empty database with all tables."""
    from reasond_server.assembly.stores import migrate_stores  # noqa: PLC0415 - as in `postgres`

    url = postgres.new_database()
    migrate_stores(url=url, data_dir="")
    return url


async def test_runs_of_a_killed_server_go_on_in_another_one(tmp_path: Path, database: str) -> None:
    async with open_load(tmp_path, database) as load:
        await asyncio.gather(load.server(), load.server())
        clients = asyncio.gather(*(client(load, number) for number in range(CLIENTS)))
        await load.until_seen(3 * CLIENTS)
        load.servers[0].kill()
        await load.server()
        await load.until_seen(8 * CLIENTS)
        load.servers[1].kill()
        check(load, await clients)


async def test_runs_of_a_stopped_server_go_on_in_another_one_and_it_exits_with_0(tmp_path: Path, database: str) -> None:
    async with open_load(tmp_path, database) as load:
        await asyncio.gather(load.server(), load.server())
        clients = asyncio.gather(*(client(load, number) for number in range(CLIENTS)))
        await load.until_seen(3 * CLIENTS)
        assert await load.servers[0].end() == 0
        await load.server()
        await load.until_seen(8 * CLIENTS)
        assert await load.servers[1].end() == 0
        check(load, await clients)


async def test_a_database_that_crashes_under_load_costs_nothing_but_time(
    tmp_path: Path, database: str, postgres: PostgresServer
) -> None:
    async with open_load(tmp_path, database) as load:
        await asyncio.gather(load.server(), load.server())
        clients = asyncio.gather(*(client(load, number) for number in range(CLIENTS)))
        await load.until_seen(4 * CLIENTS)
        await asyncio.to_thread(postgres.restart, "immediate")
        check(load, await clients)
        assert all(server.is_alive for server in load.servers)


async def test_a_server_that_comes_back_to_its_file_goes_on_with_its_runs(tmp_path: Path) -> None:
    async with open_load(tmp_path, f"sqlite:///{tmp_path / 'reasond.db'}") as load:
        await load.server()
        clients = asyncio.gather(*(client(load, number) for number in range(CLIENTS)))
        await load.until_seen(3 * CLIENTS)
        load.servers[0].kill()
        await load.server()
        await load.until_seen(8 * CLIENTS)
        load.servers[1].kill()
        await load.server()
        check(load, await clients)


async def test_responses_of_killed_servers_are_read_on_whole_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    async with open_load(tmp_path, f"sqlite:///{tmp_path / 'reasond.db'}") as load:
        await load.server()
        clients = asyncio.gather(*(respond(load, number) for number in range(CLIENTS)))
        for kill in range(3):
            await load.until_seen((2 + 3 * kill) * CLIENTS)
            load.servers[-1].kill()
            await load.server()
        await clients
        assert load.paid_twice == []


async def test_runs_of_a_stopped_server_go_on_when_it_comes_back_to_its_file(tmp_path: Path) -> None:
    async with open_load(tmp_path, f"sqlite:///{tmp_path / 'reasond.db'}") as load:
        await load.server()
        clients = asyncio.gather(*(client(load, number) for number in range(CLIENTS)))
        await load.until_seen(3 * CLIENTS)
        assert await load.servers[0].end() == 0
        await load.server()
        check(load, await clients)

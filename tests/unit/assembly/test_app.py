import asyncio
import gc
import os
import signal
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # shipped without py.typed

from reasond import AsyncClient, ReasondError
from reasond_server.assembly.app import Listening, Server, compute_drain_delay, serve, tune_garbage_collection
from reasond_server.config import LoadedSettings, ServerSettings, load
from reasond_server.errors.base import SettingsError
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig
from reasond_server.testing import Reply, ScriptedModel, running_server
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, Task
from tests.accepting import accepting
from tests.engines.serving import Engine
from tests.http_clients import make_http_client
from tests.stores.logs import HandWrittenLog

FREE_PORTS = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
}


def load_keys(**keys: str) -> LoadedSettings:
    return load(None, {**FREE_PORTS, **{f"REASOND__{key}": value for key, value in keys.items()}})


def server_with(model: ScriptedModel | None = None, **keys: str) -> Server:
    return Server(load_keys(**keys), environ={}, dev=True, model=model)


async def health_of(listening: Listening, service: str = "") -> str:
    async with grpc.aio.insecure_channel(listening.grpc) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        response = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=180)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


async def wait_for_health(listening: Listening, *, is_serving: bool = False) -> None:
    """Wait until the health service reports SERVING with `is_serving`, and another status without it."""
    async with grpc.aio.insecure_channel(listening.grpc) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request, serving = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse.SERVING
        while ((await stub.Check(request)).status == serving) is not is_serving:  # noqa: ASYNC110 - a probe polls
            await asyncio.sleep(0.02)


async def http_status(listening: Listening, path: str) -> int:
    async with make_http_client() as client:
        return (await client.get(f"{listening.http}{path}")).status_code


async def test_a_server_whose_database_file_is_gone_is_not_ready_until_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "reasond.db"
    server = server_with(STORE__URL=f"sqlite:///{file}")
    listening = await server.start()
    try:
        file.rename(tmp_path / "moved.db")
        await wait_for_health(listening)
        assert await http_status(listening, "/readyz") == 503
        (tmp_path / "moved.db").rename(file)
        await wait_for_health(listening, is_serving=True)
        assert await http_status(listening, "/readyz") == 200
    finally:
        await server.stop()


async def test_a_server_whose_write_ahead_log_is_deleted_is_not_ready_and_saves_what_was_answered(
    tmp_path: Path,
) -> None:
    file, copy = tmp_path / "reasond.db", tmp_path / "copy.db"
    server = server_with(STORE__URL=f"sqlite:///{file}")
    listening = await server.start()
    try:
        async with AsyncClient(listening.grpc, token=listening.token, tls=False) as client:
            answered = await client.reason("What is 2 + 2?", strategy="chain_of_thought")
            await client.get_execution(answered.execution_id)
        (tmp_path / "reasond.db-wal").unlink()
        await wait_for_health(listening)
        assert await http_status(listening, "/readyz") == 503
        # What a process finds that comes after a SIGKILL of this one.
        while not _holds(file, copy, answered.execution_id):  # noqa: ASYNC110 - it is saved once health has been told
            await asyncio.sleep(0.02)
    finally:
        await server.stop()


async def test_a_server_whose_store_refuses_to_be_written_is_not_ready_and_says_so_until_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "reasond.db"
    server = server_with(STORE__URL=f"sqlite:///{file}")
    listening = await server.start()
    try:
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            other.execute("ALTER TABLE store_clock RENAME TO gone")
            await wait_for_health(listening)
            assert await http_status(listening, "/readyz") == 503
            assert "the store cannot be read and written; not ready" in caplog.text
            other.execute("ALTER TABLE gone RENAME TO store_clock")
            await wait_for_health(listening, is_serving=True)
            assert await http_status(listening, "/readyz") == 200
    finally:
        await server.stop()


def _holds(file: Path, copy: Path, execution_id: str) -> bool:
    copy.write_bytes(file.read_bytes())
    with closing(sqlite3.connect(copy)) as connection:
        return bool(connection.execute("SELECT 1 FROM executions WHERE execution_id = ?", (execution_id,)).fetchall())


async def test_a_server_whose_store_is_full_of_what_cannot_go_is_not_ready_until_there_is_room() -> None:
    server = server_with(STORE__MAX_BYTES="65536")
    listening = await server.start()
    try:
        stores = server._stores
        assert stores is not None
        log = HandWrittenLog.new(stores.executions, tenant="acme")
        await log.create(seconds=10**6, plan="x" * 65_000)
        await wait_for_health(listening)
        assert await http_status(listening, "/readyz") == 503
        await stores.executions.delete(*log.name)
        await wait_for_health(listening, is_serving=True)
        assert await http_status(listening, "/readyz") == 200
    finally:
        await server.stop()


async def test_a_started_server_is_ready_on_both_sides() -> None:
    server = server_with()
    listening = await server.start()
    assert await health_of(listening) == "SERVING"
    assert await health_of(listening, "reasond.v1.ReasoningService") == "SERVING"
    assert await http_status(listening, "/readyz") == 200
    assert listening.model == "demo"
    assert "demo model" in listening.warnings[0]
    await server.stop()


async def test_draining_reports_it_sends_clients_away_and_lets_running_work_end() -> None:
    hold = asyncio.Event()
    replies: list[str | Reply] = [Reply(text="<answer>late</answer>", hold=hold), *["<answer>soon</answer>"] * 500]
    server = server_with(ScriptedModel(replies), SERVER__DRAIN_DELAY_S="2")
    listening = await server.start()
    async with AsyncClient(listening.grpc, token=listening.token) as client:
        stream = client.reason_iterations("why?")
        events = aiter(stream)
        assert (await anext(events)).WhichOneof("event") == "started"
        draining = asyncio.create_task(server.drain())
        await wait_for_health(listening)
        assert await http_status(listening, "/readyz") == 503
        assert await http_status(listening, "/healthz") == 200
        refusal = await refusal_of(client)
        assert refusal.reason == "UNAVAILABLE", "gRPC's own: the connection is gone, and nobody listens"
        with pytest.raises(httpx.TransportError):
            await http_status(listening, "/readyz")
        hold.set()
        rest = [event.WhichOneof("event") async for event in stream]
        # A slow machine has heartbeats between them.
        assert [each for each in rest if each != "heartbeat"] == ["iteration", "completed"]
        await draining


async def test_an_http_connection_is_not_kept_in_the_drain() -> None:
    server = server_with(SERVER__DRAIN_DELAY_S="2")
    listening = await server.start()
    async with make_http_client() as client:
        assert "connection" not in (await client.get(f"{listening.http}/healthz")).headers
        draining = asyncio.create_task(server.drain())
        await wait_for_health(listening)
        assert (await client.get(f"{listening.http}/healthz")).headers["connection"] == "close"
    await draining


async def refusal_of(client: AsyncClient) -> ReasondError:
    """Call the server until a call fails, and return the error."""
    while True:
        try:
            await client.list_strategies()
        except ReasondError as error:
            return error


async def test_a_port_that_is_taken_is_named_and_nothing_is_left_behind() -> None:
    first = server_with()
    listening = await first.start()
    for key, address in (("GRPC", listening.grpc), ("HTTP", listening.http.removeprefix("http://"))):
        second = server_with(None, **{f"SERVER__{key}_ADDRESS": address})
        with pytest.raises(SettingsError, match=f"Cannot listen on '{address}'"):
            await second.start()
    await first.stop()


async def test_with_no_strategy_enabled_the_server_starts_and_refuses_clearly() -> None:
    server = server_with(REASONING__ENABLED_STRATEGIES="[]")
    listening = await server.start()
    assert await health_of(listening) == "SERVING"
    async with AsyncClient(listening.grpc, token=listening.token) as client:
        assert not (await client.list_strategies()).strategies
        for strategy, reason in (("chain_of_thought", "STRATEGY_NOT_FOUND"), (None, "STRATEGY_REQUIRED")):
            with pytest.raises(ReasondError, match=r"none|No strategy is enabled") as refused:
                await client.reason("why?", strategy=strategy)
            assert refused.value.reason == reason
    await server.stop()


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """A path for a Unix socket, which the server must remove."""
    tmp_path.chmod(0o700)
    yield tmp_path / "grpc.sock"
    assert list(tmp_path.iterdir()) == []


async def test_http_can_be_off_and_grpc_on_a_unix_socket_alone(socket: Path) -> None:
    server = server_with(SERVER__HTTP_ADDRESS='""', SERVER__GRPC_ADDRESS='""', SERVER__GRPC_UNIX_SOCKET=str(socket))
    listening = await server.start()
    assert (listening.grpc, listening.http) == (f"unix:{socket}", "")
    async with AsyncClient(listening.grpc, token=listening.token) as client:
        assert (await client.reason("What is 2 + 2?")).answer == "4"
    await server.stop()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_at_once(second: signal.Signals) -> None:
    ready: asyncio.Queue[Listening] = asyncio.Queue()
    settings = load_keys(SERVER__DRAIN_DELAY_S="300")
    serving = asyncio.create_task(serve(settings, environ={}, dev=True, on_ready=ready.put_nowait))
    listening = await ready.get()
    os.kill(os.getpid(), signal.SIGTERM)
    await wait_for_health(listening)
    os.kill(os.getpid(), second)
    async with asyncio.timeout(120):
        await serving


async def test_who_follows_a_run_hears_its_end_though_a_second_signal_ends_it_at_once() -> None:
    async def hold(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    ready: asyncio.Queue[Listening] = asyncio.Queue()
    async with accepting(hold) as port:
        model = {"LLM__PROVIDER": "openai", "LLM__MODEL": "m", "LLM__BASE_URL": f"http://127.0.0.1:{port}/v1"}
        settings = load_keys(SERVER__DRAIN_DELAY_S="300", **model)
        serving = asyncio.create_task(serve(settings, environ={}, dev=True, on_ready=ready.put_nowait))
        listening = await ready.get()
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            events = aiter(client.reason_iterations("why?", strategy="chain_of_thought"))
            assert (await anext(events)).WhichOneof("event") == "started"
            os.kill(os.getpid(), signal.SIGTERM)
            await wait_for_health(listening)
            os.kill(os.getpid(), signal.SIGINT)
            rest = [event.WhichOneof("event") async for event in events]
            assert [each for each in rest if each != "heartbeat"] == ["completed"]
        async with asyncio.timeout(120):
            await serving


def test_a_development_server_delays_its_end_only_where_that_was_asked_for() -> None:
    unset, asked = ServerSettings(), ServerSettings(drain_delay_s=5.0)
    assert (compute_drain_delay(unset, dev=True), compute_drain_delay(unset, dev=False)) == (0.0, 5.0)
    assert (compute_drain_delay(asked, dev=True), compute_drain_delay(asked, dev=False)) == (5.0, 5.0)


async def test_one_signal_drains_and_returns() -> None:
    ready: asyncio.Queue[Listening] = asyncio.Queue()
    serving = asyncio.create_task(serve(load_keys(), environ={}, dev=True, on_ready=ready.put_nowait))
    await ready.get()
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(120):
        await serving


async def test_a_configured_model_server_answers(llama_server: Callable[..., Engine]) -> None:
    base_url = llama_server("answer").base_url
    server = server_with(LLM__PROVIDER="openai", LLM__MODEL="m", LLM__BASE_URL=base_url, LLM__PROFILE="llamacpp")
    listening = await server.start()
    try:
        assert (listening.model, listening.warnings) == ("m", ())
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            result = await client.reason("What is 6 times 7?", strategy="chain_of_thought")
        assert result.answer == "42"
        assert result.model == "m"
    finally:
        await server.stop()


def test_the_demo_model_never_stands_in_for_another() -> None:
    with pytest.raises(SettingsError, match=r"llm\.model: is empty, and the provider openai was selected"):
        Server(load(None, FREE_PORTS), environ={"OPENAI_API_KEY": "sk-x"}, dev=True)


def test_a_table_for_a_strategy_that_is_not_installed_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"bounded_contxt\] names no installed strategy; did you mean 'bounded_con"):
        server_with(REASONING__STRATEGIES__BOUNDED_CONTXT__DEFAULT_CHUNK_SIZE="2048")


async def test_the_card_names_what_can_be_called_here() -> None:
    server = server_with(REASONING__ENABLED_STRATEGIES='["chain_of_thought"]')
    listening = await server.start()
    async with make_http_client() as client:
        card = (await client.get(f"{listening.http}/.well-known/agent-card.json")).json()
    methods = card["capabilities"]["extensions"][0]["params"]["supported_methods"]
    assert "reasoning.execute" in methods
    assert "reasoning.chain_of_thought" in methods
    assert "reasoning.bounded_context" not in methods
    assert [skill["id"] for skill in card["skills"]] == ["reasoning.strategy.chain_of_thought"]
    own = [f"{listening.http}/api/v1/jsonrpc", f"http://{listening.grpc}"]
    assert [one["url"] for one in card["supportedInterfaces"]] == own
    await server.stop()


async def test_the_card_says_where_others_reach_a_server_behind_a_proxy() -> None:
    server = server_with(
        SERVER__PUBLIC_GRPC_URL="https://grpc.example.com:443", SERVER__PUBLIC_HTTP_URL="https://example.com/reason/"
    )
    listening = await server.start()
    async with make_http_client() as client:
        card = (await client.get(f"{listening.http}/.well-known/agent-card.json")).json()
    assert [one["url"] for one in card["supportedInterfaces"]] == [
        "https://example.com/reason/api/v1/jsonrpc",
        "https://grpc.example.com:443",
    ]
    await server.stop()


@contextmanager
def sparing() -> Iterator[None]:
    """Call `tune_garbage_collection`, and undo it at the end."""
    threshold = gc.get_threshold()
    try:
        tune_garbage_collection()
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def test_the_collector_looks_at_what_is_new_less_often() -> None:
    with sparing():
        assert gc.get_threshold()[0] == 30_000
        assert gc.get_freeze_count() > 0


class LeavesOpen(ReasoningStrategy[StrategyConfig]):
    """A strategy that holds on to a generator that it began and never closes."""

    name: ClassVar[str] = "leaves_open"
    description: ClassVar[str] = "Reads one page of two."
    config_type: ClassVar[type[StrategyConfig]] = StrategyConfig

    def __init__(self) -> None:
        self.closed: list[str] = []
        self._pages = self._read_pages()

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[Step | Outcome, None]:
        del task, context
        page, metrics = await anext(self._pages), CustomMetrics(data={})
        yield Step(detail=CustomStep(data={"page": page}), answer_found=True, metrics=metrics)
        yield Outcome(answer=page, finish_reason=FinishReason.ANSWERED, metrics=metrics)

    async def _read_pages(self) -> AsyncGenerator[str, None]:
        try:
            yield "one"
            yield "two"
        finally:
            await asyncio.sleep(0)
            self.closed.append("pages")


def test_a_generator_that_a_plugin_leaves_open_is_closed_at_shutdown() -> None:
    strategy = LeavesOpen()

    async def serve_one_call() -> None:
        async with running_server(strategies=[strategy]) as server:
            with sparing():
                async with AsyncClient(server.grpc, token=server.token) as client:
                    assert (await client.reason("which page?", strategy="leaves_open")).answer == "one"
                assert strategy.closed == []

    asyncio.run(serve_one_call())
    assert strategy.closed == ["pages"]


async def test_a_generator_that_is_dropped_is_closed_all_the_same() -> None:
    closed = asyncio.Event()

    async def count() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closed.set()

    with sparing():
        assert await anext(count()) == 1
        gc.collect()
        await asyncio.wait_for(closed.wait(), 180)

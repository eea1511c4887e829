"""Shared parts of the gRPC tests: a scripted core, and real servers on loopback."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_status import rpc_status

from reasond.v1 import (
    agent_service_pb2_grpc,
    execution_service_pb2_grpc,
    reasoning_service_pb2_grpc,
    repair_service_pb2_grpc,
    turn_service_pb2_grpc,
)
from reasond_server.access.permissions import require_permission
from reasond_server.errors.access import TokenExpiredError, TokenInvalidError
from reasond_server.executions.desk import ExecutionLog, ExecutionPage, Observation
from reasond_server.grpc_api.grpc_server import GrpcServer
from reasond_server.grpc_api.handlers import MethodTable
from reasond_server.grpc_api.listeners import GrpcOptions
from reasond_server.grpc_api.message_codec import Codec
from reasond_server.grpc_api.standard_services import HealthServicer
from reasond_server.reasoning.service import ExecutionView, StrategyInfo
from reasond_server.services import DECLARED
from reasond_server.services.agents import build_agent_service
from reasond_server.services.executions import build_execution_service, build_operations_service
from reasond_server.services.reasoning import build_reasoning_service
from reasond_server.services.repairs import build_repair_service
from reasond_server.services.turns import build_turn_service
from reasond_server.types import (
    ChainOfThoughtMetrics,
    CostClass,
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Heartbeat,
    Iteration,
    LoggedEvent,
    Metrics,
    Principal,
    Result,
    StrategySource,
    StreamEvent,
    TextDelta,
    Thought,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from reasond_server.grpc_api.guard import ErrorGuard
    from reasond_server.grpc_api.handlers import Layer
    from reasond_server.runs.live_runs import Load
    from reasond_server.types import Task

SOON = 120.0
START = datetime(2026, 11, 21, 12, 0, 0, 123_000, tzinfo=UTC)
AUTHORIZED = (("authorization", "Bearer good"),)
USAGE = Usage(input_tokens=120, output_tokens=30, cached_input_tokens=20, reasoning_tokens=5, model_calls=1)
RESULT = Result(
    execution_id="run-1",
    answer="42",
    strategy_used="chain_of_thought",
    strategy_source=StrategySource.REQUEST,
    finish_reason=FinishReason.ANSWERED,
    metrics=Metrics(
        usage=USAGE,
        execution_time_s=1.25,
        strategy_specific=ChainOfThoughtMetrics(
            temperature=0.7, max_tokens=4096, finish_reason="stop", model="scripted"
        ),
    ),
    warnings=("one warning",),
    model="scripted",
)
STEP = Iteration(
    index=0, answer_found=True, usage=USAGE, elapsed_s=0.5, detail=Thought(text="six times seven", answer="42")
)
EXECUTION = Execution(
    execution_id="run-1",
    tenant="acme",
    state=ExecutionState.SUCCEEDED,
    strategy="chain_of_thought",
    strategy_source=StrategySource.REQUEST,
    model="scripted",
    create_time=START,
    request_id="mine",
    finish_reason=FinishReason.ANSWERED,
    end_time=START + timedelta(seconds=2),
    expire_time=START + timedelta(hours=1),
    last_sequence=3,
    usage=USAGE,
    question="What is six times seven?",
    outcome="42",
    client="ann",
    wire="grpc",
)
VIEW = ExecutionView(execution=EXECUTION, result=RESULT, steps=(STEP,))
PRINCIPAL = Principal(subject="ann", tenant="acme", permissions=frozenset({"admin"}))
STRATEGIES = tuple(
    StrategyInfo(
        name=name,
        description=f"Works like {name}.",
        config_schema={"type": "object", "title": "Größe"},
        default_config={"max_tokens": 4096},
        capabilities=(f"reasoning.strategy.{name}",),
        is_default=name == "alpha",
        ceilings={"max_tokens": 8192} if name == "alpha" else {},
        cost_class=CostClass.LINEAR if name == "alpha" else None,
        cost_formula="one call per line" if name == "alpha" else "",
    )
    for name in ("alpha", "beta", "gamma")
)


def stream_event(sequence: int, event: Any) -> StreamEvent:
    return StreamEvent(execution_id="run-1", sequence=sequence, create_time=START, event=event)


EVENTS = (
    stream_event(
        1,
        ExecutionStarted(
            strategy="chain_of_thought",
            strategy_source=StrategySource.SYSTEM,
            model="scripted",
            config={"temperature": 0.7, "max_tokens": 4096},
        ),
    ),
    stream_event(1, Heartbeat()),
    stream_event(1, TextDelta(iteration_index=0, text="six")),
    stream_event(2, STEP),
    stream_event(3, RESULT),
)


async def _usual_stream() -> AsyncGenerator[StreamEvent, None]:
    for event in EVENTS:
        yield event


async def _usual_answer() -> ExecutionView:
    return VIEW


@dataclass(kw_only=True)
class ScriptedReasoning:
    """A scripted reasoning service that records its calls."""

    on_execute: Callable[[], Awaitable[ExecutionView]] = _usual_answer
    on_stream: Callable[[], AsyncGenerator[StreamEvent, None]] = _usual_stream
    model_name: str = "scripted"
    model_warnings: Sequence[str] = ("says what the test wrote down",)
    offered_models: Sequence[str] = ("fast", "strong")
    infos: Sequence[StrategyInfo] = STRATEGIES
    calls: list[dict[str, Any]] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def desk(self) -> ScriptedReasoning:
        """This object is also the desk, so that it records the calls of the desk."""
        return self

    async def execute(self, caller: Principal, task: Task, **options: Any) -> ExecutionView:
        self._note("execute", caller, task=task, **options)
        try:
            return await self.on_execute()
        finally:
            self.closed.set()

    async def stream(self, caller: Principal, task: Task, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        self._note("stream", caller, task=task, **options)
        try:
            async with aclosing(self.on_stream()) as events:
                async for event in events:
                    yield event
        finally:
            self.closed.set()

    async def resume(self, caller: Principal, execution_id: str, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        self._note("resume", caller, execution_id=execution_id, **options)
        async for event in self.on_stream():
            if event.sequence > options["after_sequence"]:
                yield event

    async def read(self, caller: Principal, execution_id: str, *, with_plan: bool = False) -> ExecutionLog:
        assert with_plan
        self._note("read", caller, execution_id=execution_id)
        view = await self.on_execute()
        return ExecutionLog(
            execution=view.execution,
            events=[LoggedEvent(sequence=2, create_time=START, event=event) for event in (*view.steps, view.result)],
        )

    async def observe(self, caller: Principal, execution_id: str, **options: Any) -> Observation:
        self._note("observe", caller, execution_id=execution_id, **options)
        return Observation(execution=EXECUTION, events=self.on_stream())

    async def cancel(self, caller: Principal, execution_id: str) -> Execution:
        self._note("cancel", caller, execution_id=execution_id)
        return EXECUTION

    async def list(self, caller: Principal, **options: Any) -> ExecutionPage:
        self._note("list", caller, **options)
        return ExecutionPage(executions=(EXECUTION,), next_page_token="more")

    async def delete(self, caller: Principal, execution_id: str) -> None:
        self._note("delete", caller, execution_id=execution_id)

    def strategies(self) -> Sequence[StrategyInfo]:
        return self.infos

    def _note(self, method: str, caller: Principal, **options: Any) -> None:
        self.calls.append({"method": method, "caller": caller, **options})
        self.entered.set()


async def authenticate(token: str) -> Principal:
    """Return the principal of a known token; raise TokenExpiredError or TokenInvalidError for others."""
    if token == "good":
        return PRINCIPAL
    if token == "powerless":
        return Principal(subject="bob", tenant="acme", permissions=frozenset())
    if token == "expired":
        raise TokenExpiredError("Authentication failed: the token has expired")
    raise TokenInvalidError("Authentication failed: the token is malformed")


@dataclass(kw_only=True)
class Served:
    """A running server and the stubs of a client."""

    server: GrpcServer
    health: HealthServicer
    channel: grpc.aio.Channel
    reasoning: reasoning_service_pb2_grpc.ReasoningServiceAsyncStub
    executions: execution_service_pb2_grpc.ExecutionServiceAsyncStub
    agents: agent_service_pb2_grpc.AgentServiceAsyncStub
    turns: turn_service_pb2_grpc.TurnServiceAsyncStub
    repairs: repair_service_pb2_grpc.RepairServiceAsyncStub


def new_server(
    reasoning: Any = None,
    agents: Any = None,
    turns: Any = None,
    repairs: Any = None,
    *,
    write_timeout_s: float = 30.0,
    look: Callable[[], Load] | None = None,
    **options: Any,
) -> GrpcServer:
    """Build a server on a free port; `options` are those of GrpcOptions, and `look` tells its load."""
    counter = itertools.count(1)
    desk: Any = None if reasoning is None else reasoning.desk
    chosen = GrpcOptions(**{"grpc_address": "127.0.0.1:0", **options})
    return GrpcServer(
        options=chosen,
        services=[
            build_reasoning_service(reasoning, max_send_bytes=chosen.max_send_bytes, write_timeout_s=write_timeout_s),
            build_execution_service(desk, desk, max_send_bytes=chosen.max_send_bytes, write_timeout_s=write_timeout_s),
            build_operations_service(desk, desk),
            build_agent_service(agents),
            build_turn_service(turns, max_send_bytes=chosen.max_send_bytes, write_timeout_s=write_timeout_s),
            build_repair_service(repairs, write_timeout_s=write_timeout_s),
        ],
        health=HealthServicer(services=[service.name for service in DECLARED]),
        authenticate=authenticate,
        require=require_permission,
        new_call_id=lambda: f"minted-{next(counter)}",
        look=look,
    )


@asynccontextmanager
async def serving(
    reasoning: Any = None, agents: Any = None, turns: Any = None, repairs: Any = None, **options: Any
) -> AsyncIterator[Served]:
    """Run a server and connect to it."""
    server = new_server(reasoning, agents, turns, repairs, **options)
    await server.start()
    server.health.set_ready()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=(("grpc.use_local_subchannel_pool", 1),))
    try:
        yield Served(
            server=server,
            health=server.health,
            channel=channel,
            reasoning=reasoning_service_pb2_grpc.ReasoningServiceStub(channel),  # type: ignore[arg-type]  # one class serves both kinds
            executions=execution_service_pb2_grpc.ExecutionServiceStub(channel),  # type: ignore[arg-type]  # likewise
            agents=agent_service_pb2_grpc.AgentServiceStub(channel),  # type: ignore[arg-type]  # likewise
            turns=turn_service_pb2_grpc.TurnServiceStub(channel),  # type: ignore[arg-type]  # likewise
            repairs=repair_service_pb2_grpc.RepairServiceStub(channel),  # type: ignore[arg-type]  # likewise
        )
    finally:
        await channel.close()
        await server.stop(grace_s=0)


@asynccontextmanager
async def bare_server(
    handlers: dict[str, Any], guard: ErrorGuard, *inner: Layer, outside: Sequence[Layer] = ()
) -> AsyncIterator[Any]:
    """Run `handlers` of the service `test.Bare` inside a codec, the layers `inner` and `guard`, and connect to them."""
    layers = (Codec(max_send_bytes=100).wrap, *inner, guard.wrap, *outside)
    methods = MethodTable(*layers, begin=guard.begin_call, unknown=guard.refuse_unknown())
    methods.add_registered_method_handlers("test.Bare", handlers)
    server = grpc.aio.server(handlers=(methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.use_local_subchannel_pool", 1),))
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0)


def status_in(error: Any) -> Any:
    """Return the google.rpc.Status that came with an error."""
    return rpc_status.from_call(error)


def details_of(status: Any) -> dict[str, Any]:
    """Return the details of a status by the name of their type."""
    found = {}
    for packed in status.details:
        name = packed.TypeName().rpartition(".")[2]
        detail = getattr(error_details_pb2, name)()
        assert packed.Unpack(detail)
        found[name] = detail
    return found


async def get_error(call: Any) -> tuple[grpc.StatusCode, str, dict[str, Any]]:
    """Await a call that must fail; return its code, message and details."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(_drain(call), SOON)
    error = caught.value
    status = status_in(error)
    assert status is not None, f"no rich status with {error.code()} {error.details()}"
    return error.code(), error.details() or "", details_of(status)


async def _drain(call: Any) -> None:
    if hasattr(call, "read"):
        async for _ in call:
            pass
    else:
        await call

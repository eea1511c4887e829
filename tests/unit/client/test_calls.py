"""The behaviour that both clients share; each test runs once with each client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import grpc
import pytest

import reasond
from reasond import AsyncClient, Client, FinishReason, TraceView
from reasond.v1 import agent_service_pb2 as agents_pb
from reasond.v1 import execution_service_pb2 as executions_pb
from reasond.v1 import reasoning_service_pb2 as reasoning_pb
from reasond.v1.agent_card_pb2 import AgentCard
from reasond.v1.execution_pb2 import Budget, Execution, ExecutionState, Reasoning

if TYPE_CHECKING:
    from tests.unit.client.conftest import Failure, ScriptedServer


class Caller(Protocol):
    """Calls a method of the client under test by name and returns its result, or the list of its items."""

    async def __call__(self, method: str, *arguments: Any, **named: Any) -> Any: ...


MakeCaller = Callable[..., Caller]


def asynchronous(client: AsyncClient) -> Caller:
    async def call(method: str, *arguments: Any, **named: Any) -> Any:
        result = getattr(client, method)(*arguments, **named)
        return [item async for item in result] if isinstance(result, AsyncIterator) else await result

    return call


def blocking(client: Client) -> Caller:
    def whole(method: str, *arguments: Any, **named: Any) -> Any:
        result = getattr(client, method)(*arguments, **named)
        return list(result) if isinstance(result, Iterator) else result

    async def call(method: str, *arguments: Any, **named: Any) -> Any:
        return await asyncio.to_thread(whole, method, *arguments, **named)

    return call


@pytest.fixture(params=["AsyncClient", "Client"])
async def caller_of(request: pytest.FixtureRequest, server: ScriptedServer) -> AsyncIterator[MakeCaller]:
    """Make callers of one client class; close their clients after the test."""
    clients: list[AsyncClient | Client] = []

    def make(**options: Any) -> Caller:
        if request.param == "Client":
            clients.append(client := Client(server.target, **options))
            return blocking(client)
        clients.append(async_client := AsyncClient(server.target, **options))
        return asynchronous(async_client)

    yield make
    for client in clients:
        if isinstance(client, AsyncClient):
            await client.close()
        else:
            client.close()


@pytest.fixture
def caller(caller_of: MakeCaller) -> Caller:
    return caller_of()


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    def shape(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
            for name, member in vars(kind).items()
            if callable(member) and not name.startswith("__")
        }

    assert shape(AsyncClient) == shape(Client)
    assert inspect.signature(AsyncClient).parameters.keys() == inspect.signature(Client).parameters.keys()


def test_every_rpc_has_a_method() -> None:
    rpcs = {
        method.name
        for file in (agents_pb, executions_pb, reasoning_pb)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    names = {name.title().replace("_", "") for name in vars(AsyncClient) if not name.startswith("_")}
    assert rpcs <= names
    assert names - rpcs == {"Close", "FromEnv", "Resume"}


async def test_reason_sends_the_task_and_returns_the_result(server: ScriptedServer, caller: Caller) -> None:
    server.answers("Reason", reasoning_pb.ReasonResponse(reasoning=Reasoning(answer="42", execution_id="e1")))
    result = await caller(
        "reason",
        "why?",
        material="long",
        strategy="bounded_context",
        config={"chunk_size": 2048},
        agent="a1",
        agent_capabilities=["c"],
        budget=Budget(max_model_calls=3),
        request_id="mine",
        trace_view=TraceView.TRACE_VIEW_STEPS,
    )
    assert result == Reasoning(answer="42", execution_id="e1")
    sent = server.calls[0].request
    assert (sent.request_id, sent.trace_view) == ("mine", TraceView.TRACE_VIEW_STEPS)
    assert (sent.task.query, sent.task.material, sent.task.strategy) == ("why?", "long", "bounded_context")
    assert (sent.task.agent, list(sent.task.agent_capabilities)) == ("a1", ["c"])
    assert (sent.task.bounded_context.chunk_size, sent.task.budget.max_model_calls) == (2048, 3)


async def test_a_stream_sends_the_task_and_what_to_stream(server: ScriptedServer, caller: Caller) -> None:
    server.answers("ReasonIterations", [])
    assert await caller("reason_iterations", "why?", strategy="react", include_deltas=True, keep_running=True) == []
    sent = server.calls[0].request
    assert (sent.task.query, sent.task.strategy) == ("why?", "react")
    assert (sent.include_deltas, sent.keep_running) == (True, True)
    assert UUID(sent.request_id).version == 4


async def test_resume_sends_the_cursor(server: ScriptedServer, caller: Caller) -> None:
    server.answers("ReasonIterations", [])
    assert await caller("resume", "e1", after_sequence=4, include_deltas=True) == []
    sent = server.calls[0].request
    assert (sent.resume.execution_id, sent.resume.after_sequence, sent.include_deltas) == ("e1", 4, True)
    assert sent.request_id == ""


async def test_list_strategies_joins_all_pages(server: ScriptedServer, caller: Caller) -> None:
    named = reasoning_pb.Strategy
    server.answers(
        "ListStrategies",
        reasoning_pb.ListStrategiesResponse(strategies=[named(name="a")], next_page_token="p2", model="demo"),
        reasoning_pb.ListStrategiesResponse(strategies=[named(name="b")], model="demo", warnings=["w"]),
    )
    everything = await caller("list_strategies")
    assert [strategy.name for strategy in everything.strategies] == ["a", "b"]
    assert (everything.model, list(everything.warnings), everything.next_page_token) == ("demo", ["w"], "")
    assert [call.request.page_token for call in server.calls] == ["", "p2"]


async def test_list_executions_iterates_over_all_pages_with_the_same_filter(
    server: ScriptedServer, caller: Caller
) -> None:
    server.answers(
        "ListExecutions",
        executions_pb.ListExecutionsResponse(executions=[Execution(execution_id="e2")], next_page_token="p2"),
        executions_pb.ListExecutionsResponse(executions=[Execution(execution_id="e1")]),
    )
    failed = FinishReason.FINISH_REASON_FAILED
    state, since = ExecutionState.EXECUTION_STATE_FAILED, datetime(2026, 11, 23, 10, tzinfo=UTC)
    found = await caller(
        "list_executions",
        strategy="react",
        finish_reason=failed,
        state=state,
        create_time_after=since,
        create_time_before=datetime(2026, 11, 23, 13, tzinfo=timezone(timedelta(hours=2))),
        page_size=1,
    )
    assert [execution.execution_id for execution in found] == ["e2", "e1"]
    asked = [call.request for call in server.calls]
    assert [(r.strategy, r.finish_reason, r.page_size) for r in asked] == [("react", failed, 1)] * 2
    assert [r.page_token for r in asked] == ["", "p2"]
    times = [(r.create_time_after.seconds, r.create_time_before.seconds) for r in asked]
    assert [r.state for r in asked] == [state] * 2
    assert times == [(since.timestamp(), since.timestamp() + 3600)] * 2


async def test_list_agents_iterates_over_all_pages_with_the_same_filter(server: ScriptedServer, caller: Caller) -> None:
    server.answers(
        "ListAgents",
        agents_pb.ListAgentsResponse(agents=[agents_pb.Agent(agent_id="a")], next_page_token="p2"),
        agents_pb.ListAgentsResponse(agents=[agents_pb.Agent(agent_id="b")]),
    )
    found = await caller("list_agents", capabilities=["c"], page_size=1)
    assert [agent.agent_id for agent in found] == ["a", "b"]
    assert [(list(c.request.capabilities), c.request.page_token) for c in server.calls] == [(["c"], ""), (["c"], "p2")]


async def test_an_execution_can_be_read_cancelled_and_forgotten(server: ScriptedServer, caller: Caller) -> None:
    execution = Execution(execution_id="e1")
    server.answers("GetExecution", executions_pb.GetExecutionResponse(execution=execution))
    server.answers("CancelExecution", executions_pb.CancelExecutionResponse(execution=execution))
    assert (await caller("get_execution", "e1", trace_view=TraceView.TRACE_VIEW_FULL)).execution == execution
    assert await caller("cancel_execution", "e1") == execution
    assert await caller("delete_execution", "e1") is None
    assert [call.method for call in server.calls] == ["GetExecution", "CancelExecution", "DeleteExecution"]
    assert {call.request.execution_id for call in server.calls} == {"e1"}
    assert server.calls[0].request.trace_view == TraceView.TRACE_VIEW_FULL


async def test_an_agent_can_be_registered_read_and_removed(server: ScriptedServer, caller: Caller) -> None:
    server.answers("RegisterAgent", agents_pb.RegisterAgentResponse(agent=agents_pb.Agent(agent_id="a")))
    server.answers("GetAgentCard", agents_pb.GetAgentCardResponse(etag="e"))
    registered = await caller("register_agent", AgentCard(name="n"), agent_id="a", ttl_s=60, etag="old")
    assert registered.agent_id == "a"
    assert (await caller("get_agent_card", "a")).etag == "e"
    assert await caller("delete_agent", "a", etag="e") is None
    sent = server.calls[0].request
    assert (sent.agent_id, sent.card.name, sent.ttl.seconds, sent.etag) == ("a", "n", 60, "old")
    assert [call.request.agent_id for call in server.calls] == ["a", "a", "a"]
    assert server.calls[2].request.etag == "e"


async def test_a_token_callable_is_asked_before_every_call(server: ScriptedServer, caller_of: MakeCaller) -> None:
    tokens = iter(["first", "second", "third"])
    call = caller_of(token=lambda: next(tokens))
    server.answers("ReasonIterations", [])
    await call("get_execution", "e1")
    await call("reason_iterations", "why?")
    await call("get_execution", "e1")
    assert [received.metadata["authorization"] for received in server.calls] == [
        *("Bearer first", "Bearer second", "Bearer third")
    ]


@pytest.mark.parametrize(
    ("method", "rpc"), [("get_execution", "GetExecution"), ("reason_iterations", "ReasonIterations")]
)
async def test_a_token_callable_is_asked_once_more_where_the_token_has_expired(
    server: ScriptedServer, caller_of: MakeCaller, failure: type[Failure], method: str, rpc: str
) -> None:
    tokens = iter(["old", "new", "newer"])
    call = caller_of(token=lambda: next(tokens))
    expired = failure(code=grpc.StatusCode.UNAUTHENTICATED, reason="TOKEN_EXPIRED")
    is_stream = rpc == "ReasonIterations"
    server.answers(rpc, [expired] if is_stream else expired, *([[]] if is_stream else []))
    await call(method, "e1")
    assert [received.metadata["authorization"] for received in server.calls] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize("method", ["get_execution", "reason_iterations"])
@pytest.mark.parametrize(
    ("token", "reason", "calls"),
    [(lambda: "a", "TOKEN_INVALID", 1), ("fixed", "TOKEN_EXPIRED", 1), (lambda: "a", "TOKEN_EXPIRED", 2)],
    ids=["another refusal", "a fixed token", "expired again"],
)
async def test_a_refused_token_is_the_callers_where_asking_again_is_no_use(
    server: ScriptedServer,
    caller_of: MakeCaller,
    failure: type[Failure],
    method: str,
    token: Any,
    reason: str,
    calls: int,
) -> None:
    refused = failure(code=grpc.StatusCode.UNAUTHENTICATED, reason=reason)
    server.answers("GetExecution", refused, refused)
    server.answers("ReasonIterations", [refused], [refused])
    with pytest.raises(reasond.AuthenticationError):
        await caller_of(token=token)(method, "e1")
    assert len(server.calls) == calls


async def test_a_fixed_token_is_sent_and_none_sends_nothing(server: ScriptedServer, caller_of: MakeCaller) -> None:
    await caller_of(token="abc")("get_execution", "e1")
    await caller_of()("get_execution", "e1")
    assert server.calls[0].metadata["authorization"] == "Bearer abc"
    assert "authorization" not in server.calls[1].metadata


async def test_every_call_has_a_deadline_unless_infinity_is_asked(
    server: ScriptedServer, caller_of: MakeCaller
) -> None:
    call = caller_of(timeout_s=50.0)
    server.answers("ReasonIterations", [])
    await call("get_execution", "e1")
    await call("get_execution", "e1", timeout_s=20.0)
    await call("reason_iterations", "why?", timeout_s=30.0)
    await call("get_execution", "e1", timeout_s=float("inf"))
    # A deadline beyond what gRPC can say would have passed before it began.
    await call("get_execution", "e1", timeout_s=1e12)
    seen = [received.time_remaining_s or float("inf") for received in server.calls]
    assert seen == [pytest.approx(50.0, abs=3), pytest.approx(20.0, abs=3), pytest.approx(30.0, abs=3), *seen[3:]]
    assert len(seen) == 5
    assert min(seen[3:]) > 1e6


async def test_a_deadline_that_passes_is_a_typed_error(server: ScriptedServer, caller: Caller) -> None:
    server.answers("GetExecution", threading.Event())
    with pytest.raises(reasond.DeadlineExceededError) as caught:
        await caller("get_execution", "e1", timeout_s=0.2)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_retry_of_reason_keeps_the_request_id_and_the_material(
    server: ScriptedServer, failure: type[Failure], caller: Caller
) -> None:
    down = failure(code=grpc.StatusCode.UNAVAILABLE, reason="OVERLOADED")
    server.answers("Reason", down, down, reasoning_pb.ReasonResponse(reasoning=Reasoning(answer="42")))
    material = "m" * 1_000_000
    assert (await caller("reason", "why?", material=material)).answer == "42"
    sent = [call.request for call in server.calls]
    assert len(sent) == 3
    assert len({request.request_id for request in sent}) == 1
    assert UUID(sent[0].request_id).version == 4
    assert all(request.task.material == material for request in sent)


async def test_attempts_end_with_the_servers_error(
    server: ScriptedServer, failure: type[Failure], caller: Caller
) -> None:
    draining = failure(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_after=2.0)
    server.answers("Reason", *[draining] * 4)
    with pytest.raises(reasond.UnavailableError) as caught:
        await caller("reason", "why?")
    assert (caught.value.reason, caught.value.retry_after) == ("DRAINING", 2.0)
    assert len(server.calls) == 4


async def test_a_stream_is_retried_before_its_first_message(
    server: ScriptedServer, failure: type[Failure], caller: Caller
) -> None:
    down = failure(code=grpc.StatusCode.UNAVAILABLE)
    server.answers("ReasonIterations", [down], [reasoning_pb.ReasonIterationsResponse(execution_id="e1", sequence=1)])
    assert len(await caller("reason_iterations", "why?")) == 1
    assert len({call.request.request_id for call in server.calls}) == 1
    assert len(server.calls) == 2


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("delete_execution", ("e1",)), ("register_agent", ("{}",)), ("delete_agent", ("a",))],
)
async def test_what_a_second_attempt_would_see_changed_is_not_retried(
    server: ScriptedServer, failure: type[Failure], caller: Caller, method: str, arguments: tuple[str, ...]
) -> None:
    rpc = method.title().replace("_", "")
    server.answers(rpc, failure(code=grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(reasond.UnavailableError):
        await caller(method, *arguments)
    assert len(server.calls) == 1


async def test_an_error_that_is_not_unavailable_is_not_retried(
    server: ScriptedServer, failure: type[Failure], caller: Caller
) -> None:
    server.answers("Reason", failure(code=grpc.StatusCode.ABORTED, reason="MODEL_FAILED"))
    with pytest.raises(reasond.ModelError):
        await caller("reason", "why?")
    assert len(server.calls) == 1


async def test_a_response_of_just_under_4_mib_is_received(server: ScriptedServer, caller: Caller) -> None:
    answer = "a" * (4 * 1024 * 1024 - 100)
    server.answers("Reason", reasoning_pb.ReasonResponse(reasoning=Reasoning(answer=answer)))
    assert (await caller("reason", "why?")).answer == answer


async def test_nobody_listening_is_unavailable(server: ScriptedServer, caller: Caller) -> None:
    server.stop()
    with pytest.raises(reasond.UnavailableError):
        await caller("delete_agent", "a")


async def test_a_config_that_does_not_fit_is_refused_before_a_call(server: ScriptedServer, caller: Caller) -> None:
    for method in ("reason", "reason_iterations"):
        with pytest.raises(ValueError, match="did you mean 'max_tokens'"):
            await caller(method, "why?", strategy="chain_of_thought", config={"maxtokens": 1})
    assert server.calls == []


async def test_reconnecting_needs_an_execution_that_keeps_running(server: ScriptedServer, caller: Caller) -> None:
    with pytest.raises(ValueError, match="reconnect needs keep_running=True"):
        await caller("reason_iterations", "why?", reconnect=True)
    assert server.calls == []

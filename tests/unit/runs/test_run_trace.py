"""The trace of a run whose process changes, which begins again after a cancellation, or which others follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.telemetry.propagation import TraceContext
from reasond_server.telemetry.scope import Scope, current, enter
from tests.spans import Spans, attributes_of, ids
from tests.unit.runs.conftest import EchoModel, ManualClock, Script
from tests.unit.runs.servers import Replayable, Servers, end_of, held_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.reasoning.strategy_work import ReasoningWork
    from reasond_server.runs.runner import Runner

CALLER = TraceContext(trace_id="a" * 32, span_id="b" * 16, is_sampled=True)
OTHER = TraceContext(trace_id="c" * 32, span_id="d" * 16, is_sampled=True)


def traced_assign(servers: Servers, context: TraceContext = CALLER) -> None:
    """Give the trace context `context` to every later assignment."""
    make = servers._assign
    servers._assign = lambda *args, **keys: make(*args, **{"trace": context.text, **keys})


def place(span: ReadableSpan) -> tuple[str, str]:
    assert span.parent is not None
    return f"{ids(span)[0]:032x}", f"{span.parent.span_id:016x}"


async def test_who_takes_a_run_over_continues_its_trace_and_replays_without_spans(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    traced_assign(servers)
    first, second = Spans(), Spans()
    servers.tracing = first.sink.tracing
    execution = await held_after(servers, (dead := servers.server(model)), model, 2)
    await servers.die(dead)
    servers.tracing = second.sink.tracing
    other = servers.server(EchoModel())
    await other._recoverer.lease_keeper.round()
    await end_of(other, execution)
    assert second.tree() == ["invoke_workflow replayable", ["step", ["chat echo"]]]
    run = second.one("invoke_workflow")
    assert place(run) == (CALLER.trace_id, CALLER.span_id)
    assert attributes_of(run)["reasond.execution.is_takeover"] is True
    assert attributes_of(run)["reasond.replayed_calls"] == 2
    assert attributes_of(second.one("step"))["reasond.step.index"] == 2
    begun = first.one("invoke_workflow")
    assert place(begun) == place(run)
    assert [attributes_of(step).get("reasond.step.index") for step in first.find_named("step")] == [0, 1, None]


async def test_a_run_that_is_left_to_another_process_says_so(servers: Servers, model: EchoModel) -> None:
    spans = Spans()
    servers.tracing = spans.sink.tracing
    runner = servers.server(model)
    await held_after(servers, runner, model, 1)
    await runner.stop()
    run = attributes_of(spans.one("invoke_workflow"))
    assert run["reasond.stop_reason"] == "handed_over"
    assert "reasond.finish_reason" not in run


async def test_a_request_that_begins_again_points_at_the_trace_of_the_cancelled_one(
    servers: Servers, model: EchoModel
) -> None:
    spans = Spans()
    servers.tracing = spans.sink.tracing
    traced_assign(servers)
    runner = servers.server(model)
    keys = {"request_id": "r", "digest": "d"}
    execution = await held_after(servers, runner, model, 1, **keys)
    run = runner.find_live(execution.execution_id)
    assert run is not None
    run.cancel()
    await run.wait_for_end()
    model.gate.set()
    traced_assign(servers, OTHER)
    again = await runner.start(servers.assignment(Script(words=("one", "two", "six")), **keys))
    await end_of(runner, again)
    first, second = spans.find_named("invoke_workflow")
    assert attributes_of(first)["reasond.finish_reason"] == "cancelled"
    assert place(second)[0] == OTHER.trace_id
    assert [f"{link.context.trace_id:032x}" for link in second.links] == [CALLER.trace_id]


async def test_an_rpc_that_follows_a_run_of_another_one_points_at_it(servers: Servers, model: EchoModel) -> None:
    spans = Spans()
    servers.tracing = tracing = spans.sink.tracing
    runner = servers.server(model)
    execution = await held_after(servers, runner, model, 0)
    live = runner.find_live(execution.execution_id)
    assert live is not None
    enter(scope := Scope())
    live.trace.link_rpc()
    scope.span = rpc = tracing.serve("resume", {}, caller=None)
    live.trace.link_rpc()
    rpc.end()
    model.gate.set()
    await end_of(runner, execution)
    (link,) = spans.one("resume").links
    assert link.context.span_id == ids(spans.one("invoke_workflow"))[1]


async def test_a_task_for_an_agent_is_named_after_it(servers: Servers, model: EchoModel) -> None:
    spans = Spans()
    servers.tracing = spans.sink.tracing
    runner = servers.server(model)
    execution = await runner.start(servers.assignment(agent="clerk"))
    await end_of(runner, execution)
    assert attributes_of(spans.one("invoke_agent clerk"))["gen_ai.agent.name"] == "clerk"


async def test_lines_of_a_run_have_its_ids_and_those_of_its_rpc_are_left_alone(
    store: ExecutionStore, assign: Callable[..., ReasoningWork], time: ManualClock, runner: Runner
) -> None:
    seen: list[tuple[str, str]] = []

    def look(_index: int) -> None:
        scope = current()
        assert scope is not None
        seen.append((scope.execution_id, scope.call_id))

    del store, time
    enter(rpc := Scope(call_id="rpc-1", trace=CALLER))
    execution = await runner.start(assign(Script(before_step=look), trace=CALLER.text))
    await end_of(runner, execution)
    assert set(seen) == {(execution.execution_id, "rpc-1")}
    assert current() is rpc
    assert rpc.execution_id == ""

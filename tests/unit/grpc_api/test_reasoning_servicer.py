from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond.v1 import execution_pb2, strategies_pb2
from reasond.v1 import reasoning_service_pb2 as pb
from reasond_server.errors.base import Violation
from reasond_server.errors.limits import SlowConsumerError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.grpc_api.guard import RpcCall, begin
from reasond_server.grpc_api.reasoning_servicer import ReasoningServicer
from reasond_server.telemetry.observers import Observer
from reasond_server.types import CostClass, TextDelta, Thought
from tests.unit.grpc_api.parts import (
    AUTHORIZED,
    PRINCIPAL,
    SOON,
    STEP,
    VIEW,
    ScriptedReasoning,
    get_error,
    serving,
    stream_event,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.reasoning.service import ExecutionView
    from reasond_server.types import StreamEvent

TASK = execution_pb2.ReasoningTask(query="six times seven")


async def test_reason_returns_the_result_with_the_trace_that_was_asked_for() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        request = pb.ReasonRequest(task=TASK, request_id="mine", trace_view=execution_pb2.TRACE_VIEW_FULL)
        answer = await served.reasoning.Reason(request, metadata=AUTHORIZED)

    assert answer.reasoning.answer == "42"
    assert answer.reasoning.trace[0].thought.text == "six times seven"
    call = reasoning.calls[0]
    assert (call["caller"], call["task"].query, call["request_id"]) == (PRINCIPAL, "six times seven", "mine")
    assert call["deadline_s"] is None


async def test_reason_passes_the_callers_deadline_on() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        await served.reasoning.Reason(pb.ReasonRequest(task=TASK), metadata=AUTHORIZED, timeout=60.0)

    assert reasoning.calls[0]["deadline_s"] == pytest.approx(60.0, abs=SOON)


async def test_reason_checks_the_whole_request_before_anything_is_spent() -> None:
    reasoning = ScriptedReasoning()
    request = pb.ReasonRequest(task=TASK)
    request.trace_view = 99  # type: ignore[assignment]  # what a newer client might send
    async with serving(reasoning) as served:
        code, _, details = await get_error(served.reasoning.Reason(request, metadata=AUTHORIZED))

    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details["BadRequest"].field_violations[0].field == "trace_view"
    assert reasoning.calls == []


async def test_what_the_core_refuses_names_the_fields_of_the_request() -> None:
    async def refuse() -> ExecutionView:
        raise InvalidConfigError.of(Violation(field="max_tokens", description="must be at least 100"))

    task = execution_pb2.ReasoningTask(query="q", chain_of_thought=strategies_pb2.ChainOfThoughtConfig(max_tokens=1))
    async with serving(ScriptedReasoning(on_execute=refuse)) as served:
        _, message, details = await get_error(served.reasoning.Reason(pb.ReasonRequest(task=task), metadata=AUTHORIZED))

    assert message == "Request validation failed: max_tokens must be at least 100"
    assert details["BadRequest"].field_violations[0].field == "task.chain_of_thought.max_tokens"
    assert details["ErrorInfo"].reason == "INVALID_CONFIG"


async def test_a_trace_is_cut_to_what_the_send_limit_leaves() -> None:
    step = replace(STEP, detail=Thought(text="x" * 100_000))

    async def execute() -> ExecutionView:
        return replace(VIEW, steps=(step,) * 50)

    request = pb.ReasonRequest(task=TASK, trace_view=execution_pb2.TRACE_VIEW_FULL)
    async with serving(ScriptedReasoning(on_execute=execute), max_send_bytes=1024 * 1024) as served:
        answer = await served.reasoning.Reason(request, metadata=AUTHORIZED)
    async with serving(ScriptedReasoning(on_execute=execute)) as served:
        longer = await served.reasoning.Reason(request, metadata=AUTHORIZED)

    assert len(answer.reasoning.trace) == 5
    assert len(longer.reasoning.trace) == 31
    assert answer.reasoning.warnings[-1].startswith("The trace is cut after 5 of 50 steps")


async def test_iterations_are_streamed_as_they_come() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        request = pb.ReasonIterationsRequest(task=TASK, request_id="mine", include_deltas=True, keep_running=True)
        call = served.reasoning.ReasonIterations(request, metadata=AUTHORIZED)
        kinds = [event.WhichOneof("event") async for event in call]

    assert kinds == ["started", "heartbeat", "delta", "iteration", "completed"]
    options = {key: reasoning.calls[0][key] for key in ("request_id", "include_deltas", "keep_running", "deadline_s")}
    assert options == {"request_id": "mine", "include_deltas": True, "keep_running": True, "deadline_s": None}


async def test_a_stream_is_resumed_after_the_last_event_that_was_seen() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        cursor = execution_pb2.ExecutionCursor(execution_id="run-1", after_sequence=1)
        request = pb.ReasonIterationsRequest(resume=cursor, include_deltas=True)
        call = served.reasoning.ReasonIterations(request, metadata=AUTHORIZED)
        sequences = [event.sequence async for event in call]

    assert sequences == [2, 3]
    assert reasoning.calls[0]["include_deltas"] is True


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ReasonIterationsRequest(), "task"),
        (pb.ReasonIterationsRequest(resume=execution_pb2.ExecutionCursor()), "resume.execution_id"),
        (
            pb.ReasonIterationsRequest(resume=execution_pb2.ExecutionCursor(execution_id="r"), request_id="mine"),
            "request_id",
        ),
    ],
)
async def test_a_stream_needs_a_task_or_a_cursor(request_: pb.ReasonIterationsRequest, field: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        _, _, details = await get_error(served.reasoning.ReasonIterations(request_, metadata=AUTHORIZED))

    assert [violation.field for violation in details["BadRequest"].field_violations] == [field]


async def test_a_client_that_does_not_read_is_cut_off_and_the_core_is_freed_at_once() -> None:
    async def events() -> AsyncGenerator[StreamEvent, None]:
        sequence = 0
        while True:
            sequence += 1
            yield stream_event(sequence, TextDelta(iteration_index=0, text="x" * 1_000_000))

    reasoning = ScriptedReasoning(on_stream=events)
    async with serving(reasoning, write_timeout_s=0.2) as served:
        call = served.reasoning.ReasonIterations(pb.ReasonIterationsRequest(task=TASK), metadata=AUTHORIZED)
        await asyncio.wait_for(reasoning.closed.wait(), SOON)
        code, message, details = await get_error(call)

    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert message.startswith("The client took no message for 0.2 s. Resume")
    info = details["ErrorInfo"]
    assert (info.reason, info.metadata["execution_id"]) == ("SLOW_CONSUMER", "run-1")
    assert int(info.metadata["undelivered_sequence"]) >= 1


async def test_strategies_are_listed_with_their_schemas() -> None:
    async with serving(ScriptedReasoning()) as served:
        found = await served.reasoning.ListStrategies(pb.ListStrategiesRequest(), metadata=AUTHORIZED)

    assert [strategy.name for strategy in found.strategies] == ["alpha", "beta", "gamma"]
    first = found.strategies[0]
    assert (first.is_default, first.config_schema_json) == (True, '{"title":"Größe","type":"object"}')
    assert (first.ceilings_json, first.cost_class, first.cost_formula) == (
        '{"max_tokens":8192}',
        pb.COST_CLASS_LINEAR,
        "one call per line",
    )
    silent = found.strategies[1]
    assert (silent.ceilings_json, silent.cost_class, silent.cost_formula) == ("{}", pb.COST_CLASS_UNSPECIFIED, "")
    assert first.default_config_json == '{"max_tokens":4096}'
    assert list(first.capabilities) == ["reasoning.strategy.alpha"]
    assert (found.model, list(found.warnings)) == ("scripted", ["says what the test wrote down"])
    assert found.next_page_token == ""


async def test_strategies_come_in_pages() -> None:
    async with serving(ScriptedReasoning()) as served:
        pages, token = [], ""
        while True:
            request = pb.ListStrategiesRequest(page_size=2, page_token=token)
            page = await served.reasoning.ListStrategies(request, metadata=AUTHORIZED)
            pages.append([strategy.name for strategy in page.strategies])
            token = page.next_page_token
            if not token:
                break

    assert pages == [["alpha", "beta"], ["gamma"]]


async def test_a_page_larger_than_the_largest_is_the_largest() -> None:
    async with serving(ScriptedReasoning()) as served:
        request = pb.ListStrategiesRequest(page_size=2**31 - 1)
        found = await served.reasoning.ListStrategies(request, metadata=AUTHORIZED)

    assert [strategy.name for strategy in found.strategies] == ["alpha", "beta", "gamma"]


async def test_a_server_without_strategies_lists_none() -> None:
    async with serving(ScriptedReasoning(infos=())) as served:
        found = await served.reasoning.ListStrategies(pb.ListStrategiesRequest(), metadata=AUTHORIZED)

    assert (list(found.strategies), found.next_page_token) == ([], "")


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"page_size": -1}, "page_size"), ({"page_token": "zeta"}, "page_token")],
)
async def test_pages_that_cannot_be_are_refused(fields: dict[str, Any], field: str) -> None:
    async with serving(ScriptedReasoning()) as served:
        request = pb.ListStrategiesRequest(**fields)
        _, _, details = await get_error(served.reasoning.ListStrategies(request, metadata=AUTHORIZED))

    assert details["BadRequest"].field_violations[0].field == field


def test_every_cost_class_has_its_number() -> None:
    assert {cost.name for cost in CostClass} | {"UNSPECIFIED"} == {
        name.removeprefix("COST_CLASS_")
        for name in pb.CostClass.keys()  # noqa: SIM118 - a wrapper, no dictionary
    }


class Told(Observer):
    """Records the events of streams."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def stream_opened(self, transport: str) -> None:
        self.heard.append(f"{transport} opened")

    def slow_consumer(self, transport: str) -> None:
        self.heard.append(f"{transport} slow")

    def stream_closed(self, transport: str) -> None:
        self.heard.append(f"{transport} closed")


async def test_a_client_that_takes_nothing_is_told_where_to_go_on_and_counted_once() -> None:
    class Full:
        """A call whose flow-control window never opens."""

        def time_remaining(self) -> None:
            return None

        async def write(self, _: object) -> None:
            await asyncio.Event().wait()

    told = Told()
    reasoning: Any = ScriptedReasoning()
    servicer = ReasoningServicer(service=reasoning, write_timeout_s=0.01, observer=told)
    request = pb.ReasonIterationsRequest(task=TASK)
    call = RpcCall(method="/m", call_id="r")
    call.principal = PRINCIPAL
    begin(call)
    full: Any = Full()
    with pytest.raises(SlowConsumerError) as caught:
        await servicer.ReasonIterations(request, full)
    assert caught.value.metadata["undelivered_sequence"] == "1"
    assert caught.value.execution_id == "run-1"
    assert told.heard == ["grpc opened", "grpc slow", "grpc closed"]

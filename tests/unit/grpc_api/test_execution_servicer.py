"""ExecutionService over a real gRPC server, above a scripted desk."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from reasond.v1 import execution_pb2
from reasond.v1 import execution_service_pb2 as pb
from reasond_server.types import FinishReason
from tests.unit.grpc_api.parts import AUTHORIZED, PRINCIPAL, ScriptedReasoning, get_error, serving


async def test_an_execution_is_looked_up_with_its_steps() -> None:
    async with serving(ScriptedReasoning()) as served:
        request = pb.GetExecutionRequest(execution_id="run-1", trace_view=execution_pb2.TRACE_VIEW_STEPS)
        found = await served.executions.GetExecution(request, metadata=AUTHORIZED)

    assert found.execution.state == execution_pb2.EXECUTION_STATE_SUCCEEDED
    assert found.reasoning.trace[0].usage.output_tokens == 30


async def test_an_execution_is_observed_in_the_form_of_its_kind() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        request = pb.FollowExecutionRequest(execution_id="run-1", after_sequence=1, include_deltas=True)
        call = served.executions.FollowExecution(request, metadata=AUTHORIZED)
        kinds = [event.reasoning.WhichOneof("event") async for event in call]

    assert kinds == ["started", "heartbeat", "delta", "iteration", "completed"]
    options = {key: reasoning.calls[0][key] for key in ("method", "after_sequence", "include_deltas")}
    assert options == {"method": "observe", "after_sequence": 1, "include_deltas": True}


async def test_an_execution_is_cancelled() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        request = pb.CancelExecutionRequest(execution_id="run-1")
        found = await served.executions.CancelExecution(request, metadata=AUTHORIZED)

    assert found.execution.execution_id == "run-1"
    assert reasoning.calls[0]["method"] == "cancel"


async def test_an_execution_is_forgotten() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        await served.executions.DeleteExecution(pb.DeleteExecutionRequest(execution_id="run-1"), metadata=AUTHORIZED)

    assert reasoning.calls[0]["method"] == "delete"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("GetExecution", pb.GetExecutionRequest()),
        ("FollowExecution", pb.FollowExecutionRequest()),
        ("CancelExecution", pb.CancelExecutionRequest()),
        ("DeleteExecution", pb.DeleteExecutionRequest()),
    ],
)
async def test_an_execution_must_be_named(method: str, request_: Any) -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        code, message, _ = await get_error(getattr(served.executions, method)(request_, metadata=AUTHORIZED))

    assert (code, message) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "Request validation failed: execution_id is required",
    )
    assert reasoning.calls == []


async def test_executions_are_listed_by_strategy_and_finish_reason() -> None:
    reasoning = ScriptedReasoning()
    async with serving(reasoning) as served:
        request = pb.ListExecutionsRequest(
            page_size=7,
            page_token="t",
            strategy="alpha",
            finish_reason=execution_pb2.FINISH_REASON_MAX_ITERATIONS,
            text="gates",
        )
        found = await served.executions.ListExecutions(request, metadata=AUTHORIZED)

    assert ([each.execution_id for each in found.executions], found.next_page_token) == (["run-1"], "more")
    assert reasoning.calls[0] == {
        "method": "list",
        "caller": PRINCIPAL,
        "strategy": "alpha",
        "finish_reason": FinishReason.MAX_ITERATIONS,
        "state": None,
        "create_time_after": None,
        "create_time_before": None,
        "page_size": 7,
        "page_token": "t",
        "text": "gates",
    }

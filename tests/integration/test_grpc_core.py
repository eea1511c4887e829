"""The real core behind the real gRPC server: starting, leaving, resuming and draining as a client sees them."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond import AsyncClient, ReasondError
from reasond.v1 import execution_pb2, execution_service_pb2, strategies_pb2
from reasond.v1 import reasoning_service_pb2 as pb
from reasond_server.assembly.core import assemble
from reasond_server.config import load
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.unit.grpc_api.parts import AUTHORIZED, SOON, get_error, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.assembly.core import Core
    from tests.unit.grpc_api.parts import Served

TASK = execution_pb2.ReasoningTask(query="What is six times seven?", strategy="chain_of_thought")


@asynccontextmanager
async def served_core(*replies: str | Reply, **environ: str) -> AsyncIterator[tuple[Served, Core]]:
    values = {"REASOND_CONFIG": os.devnull, "REASOND__LLM__PROVIDER": "demo", **environ}
    core = assemble(load(None, values).settings, model=ScriptedModel(replies))
    async with serving(core.reasoning) as served:
        yield served, core
        await core.runner.stop()


async def follow_to_end(served: Served, execution_id: str) -> Any:
    """Follow an execution to its end and return it."""
    cursor = execution_pb2.ExecutionCursor(execution_id=execution_id)
    call = served.reasoning.ReasonIterations(pb.ReasonIterationsRequest(resume=cursor), metadata=AUTHORIZED)
    async for _ in call:
        pass
    request = execution_service_pb2.GetExecutionRequest(
        execution_id=execution_id, trace_view=execution_pb2.TRACE_VIEW_FULL
    )
    return await served.executions.GetExecution(request, metadata=AUTHORIZED)


async def test_a_unary_answer_and_the_stream_of_the_same_execution_agree() -> None:
    async with served_core("six sevens <answer>42</answer>") as (served, _):
        request = pb.ReasonRequest(task=TASK, trace_view=execution_pb2.TRACE_VIEW_FULL)
        answer = (await served.reasoning.Reason(request, metadata=AUTHORIZED)).reasoning
        cursor = execution_pb2.ExecutionCursor(execution_id=answer.execution_id)
        call = served.reasoning.ReasonIterations(pb.ReasonIterationsRequest(resume=cursor), metadata=AUTHORIZED)
        events = [event async for event in call]

    assert answer.answer == "42"
    assert [event.sequence for event in events] == [1, 2, 3]
    assert events[1].iteration == answer.trace[0]
    del answer.trace[:]
    assert events[2].completed == answer


async def test_a_client_that_leaves_cancels_the_run_and_what_it_did_is_kept() -> None:
    hold = asyncio.Event()
    async with served_core(Reply(text="never said", hold=hold)) as (served, _):
        request = pb.ReasonIterationsRequest(task=TASK)
        call = served.reasoning.ReasonIterations(request, metadata=AUTHORIZED)
        first: Any = await call.read()
        call.cancel()
        found = await asyncio.wait_for(follow_to_end(served, first.execution_id), SOON)

    assert found.execution.state == execution_pb2.EXECUTION_STATE_CANCELLED
    assert found.reasoning.finish_reason == execution_pb2.FINISH_REASON_CANCELLED


async def test_a_run_that_is_kept_running_is_resumed_without_loss() -> None:
    hold = asyncio.Event()
    async with served_core(Reply(text="<answer>42</answer>", hold=hold)) as (served, _):
        request = pb.ReasonIterationsRequest(task=TASK, keep_running=True)
        call = served.reasoning.ReasonIterations(request, metadata=AUTHORIZED)
        first: Any = await call.read()
        call.cancel()
        hold.set()
        found = await asyncio.wait_for(follow_to_end(served, first.execution_id), SOON)

    assert found.reasoning.answer == "42"


async def test_a_request_id_stands_for_one_request() -> None:
    async with served_core("<answer>42</answer>") as (served, _):
        request = pb.ReasonRequest(task=TASK, request_id="mine")
        first = await served.reasoning.Reason(request, metadata=AUTHORIZED)
        second = await served.reasoning.Reason(request, metadata=AUTHORIZED)
        request.task.query = "What else?"
        code, _, details = await get_error(served.reasoning.Reason(request, metadata=AUTHORIZED))

    assert first == second
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")


async def test_the_retries_of_a_client_get_the_answer_once_the_model_is_back() -> None:
    away = Reply(error=ModelUnavailableError("The model cannot be reached"))
    model = ScriptedModel([away, "<answer>42</answer>"])
    async with running_server(model=model) as listening, AsyncClient(listening.grpc, token=listening.token) as client:
        found = await client.reason("What is six times seven?", strategy="chain_of_thought")

    assert (found.answer, found.metrics.usage.model_calls) == ("42", 1)
    assert len(model.requests) == 2


async def test_a_failure_after_spent_tokens_is_never_retried_by_clients() -> None:
    away = Reply(error=ModelUnavailableError("The model cannot be reached"))
    model = ScriptedModel(["<continue>so far</continue>", away])
    async with running_server(model=model) as listening, AsyncClient(listening.grpc, token=listening.token) as client:
        with pytest.raises(ReasondError) as failed:
            await client.reason("What is six times seven?", strategy="bounded_context")
        kept = await client.get_execution(failed.value.execution_id or "")

    assert (failed.value.code, failed.value.reason) == (grpc.StatusCode.ABORTED, "MODEL_FAILED")
    assert kept.reasoning.metrics.usage.model_calls == 1
    assert len(model.requests) == 2


async def test_a_draining_core_refuses_new_work_and_says_when_to_retry() -> None:
    async with served_core() as (served, core):
        core.runner.begin_drain()
        code, _, details = await get_error(served.reasoning.Reason(pb.ReasonRequest(task=TASK), metadata=AUTHORIZED))

    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert details["RetryInfo"].retry_delay.ToMilliseconds() > 0


@pytest.mark.parametrize(
    ("task", "code", "reason", "field"),
    [
        ({"query": ""}, "INVALID_ARGUMENT", "INVALID_REQUEST", "task.query"),
        (
            {"query": "q", "budget": execution_pb2.Budget(max_total_tokens=0)},
            "INVALID_ARGUMENT",
            "INVALID_REQUEST",
            "task.budget.max_total_tokens",
        ),
        (
            {"query": "q", "chain_of_thought": strategies_pb2.ChainOfThoughtConfig(max_tokens=99)},
            "INVALID_ARGUMENT",
            "INVALID_CONFIG",
            "task.chain_of_thought.max_tokens",
        ),
        ({"query": "q", "strategy": "unheard_of"}, "NOT_FOUND", "STRATEGY_NOT_FOUND", None),
        ({"query": "q", "agent": "nobody"}, "NOT_FOUND", "AGENT_NOT_FOUND", None),
    ],
)
async def test_refusals_of_the_core_name_the_field_of_this_wire(
    task: dict[str, Any], code: str, reason: str, field: str | None
) -> None:
    async with served_core() as (served, _):
        request = pb.ReasonRequest(task=execution_pb2.ReasoningTask(**task))
        found, _, details = await get_error(served.reasoning.Reason(request, metadata=AUTHORIZED))

    assert (found.name, details["ErrorInfo"].reason) == (code, reason)
    if field is not None:
        assert [violation.field for violation in details["BadRequest"].field_violations] == [field]

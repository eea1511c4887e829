"""A unary caller disconnects and repeats its request with the same request id. It never pays for a call twice."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasond_server.eventlog.store import Claim
from reasond_server.reasoning.service import ReasoningService
from reasond_server.runs.phase import Trigger
from reasond_server.types import Execution, ExecutionState, FinishReason, Task
from tests.simulation.virtual import VirtualLoop
from tests.unit.reasoning.company import ALICE, LIMITS, Company, Forgetful, Shared, leave_after, task_of
from tests.unit.runs.conftest import in_virtual_time, passed_s

SEQUENCE = task_of([["one"], ["two"], ["six"]])


@in_virtual_time
async def test_the_call_under_way_is_heard_to_its_end_and_no_other_one_begins() -> None:
    company = Company()
    service = company.service()
    await leave_after(2.5, service.execute(ALICE, SEQUENCE, request_id="r1"))
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.RUNNING
    await asyncio.sleep(60)
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.CANCELLED
    assert left.usage.model_calls == 2
    assert company.model.heard == company.model.begun == Counter(("one", "two"))
    view = await service.execute(ALICE, SEQUENCE, request_id="r1")
    assert company.model.begun == Counter(("one", "two", "six"))
    assert (view.result.answer, view.result.metrics.usage.model_calls) == (SEQUENCE.query, 3)


@in_virtual_time
async def test_who_asks_again_while_a_call_is_under_way_attaches_to_the_same_execution() -> None:
    company = Company()
    service = company.service()
    await leave_after(2.5, service.execute(ALICE, SEQUENCE, request_id="r1"))
    await asyncio.sleep(1)
    view = await service.execute(ALICE, SEQUENCE, request_id="r1")
    assert len((await service.desk.list(ALICE)).executions) == 1
    assert passed_s() == pytest.approx(6)
    assert company.model.begun == company.model.heard == Counter(("one", "two", "six"))
    assert view.result.finish_reason is FinishReason.ANSWERED


@in_virtual_time
async def test_who_asks_again_at_another_server_attaches_to_the_same_execution() -> None:
    company = Company()
    first, second = company.service(), company.service()
    await leave_after(2.5, first.execute(ALICE, SEQUENCE, request_id="r1"))
    view = await second.execute(ALICE, SEQUENCE, request_id="r1")
    assert len((await first.desk.list(ALICE)).executions) == 1
    assert company.model.begun == company.model.heard == Counter(("one", "two", "six"))
    assert view.result.finish_reason is FinishReason.ANSWERED


@in_virtual_time
async def test_a_stream_that_is_cut_is_cancelled_at_once_though_it_has_a_request_id() -> None:
    company = Company()
    service = company.service()
    stream = service.stream(ALICE, SEQUENCE, request_id="r1")
    await anext(stream)
    await asyncio.sleep(0.5)
    await stream.aclose()
    await asyncio.sleep(0.05)
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.CANCELLED
    assert company.model.begun == Counter(("one",))
    assert company.model.heard == Counter()


@in_virtual_time
async def test_a_call_without_request_id_is_cancelled_at_once() -> None:
    company = Company()
    service = company.service()
    await leave_after(0.5, service.execute(ALICE, SEQUENCE))
    await asyncio.sleep(0.05)
    (left,) = (await service.desk.list(ALICE)).executions
    assert (left.state, company.model.heard) == (ExecutionState.CANCELLED, Counter())


@in_virtual_time
async def test_an_explicit_wish_to_cancel_waits_for_no_call() -> None:
    company = Company()
    service = company.service()
    await leave_after(0.5, service.execute(ALICE, SEQUENCE, request_id="r1"))
    (left,) = (await service.desk.list(ALICE)).executions
    assert (await service.desk.cancel(ALICE, left.execution_id)).state is ExecutionState.CANCELLED
    assert passed_s() == pytest.approx(0.5)
    assert company.model.heard == Counter()


@in_virtual_time
async def test_a_run_that_somebody_keeps_goes_on_though_its_first_caller_has_left() -> None:
    company = Company()
    service = company.service()
    await leave_after(0.5, service.execute(ALICE, SEQUENCE, request_id="r1"))
    (left,) = (await service.desk.list(ALICE)).executions
    stream = service.desk.resume(ALICE, left.execution_id, after_sequence=0, keep_running=True)
    await anext(stream)
    await stream.aclose()
    await asyncio.sleep(30)
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.SUCCEEDED


@in_virtual_time
async def test_a_run_whose_calls_are_not_kept_waits_for_its_caller_and_is_then_cancelled() -> None:
    company = Company(Forgetful())
    service = company.service()
    groups = task_of([[str(index)] for index in range(99)])
    await leave_after(2.5, service.execute(ALICE, groups, request_id="r1"))
    await asyncio.sleep(LIMITS.reattach_s - 1)
    await leave_after(2.5, service.execute(ALICE, groups, request_id="r1"))
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.RUNNING
    await asyncio.sleep(LIMITS.reattach_s + 1)
    (left,) = (await service.desk.list(ALICE)).executions
    assert left.state is ExecutionState.CANCELLED
    assert set(company.model.begun.values()) == {1}
    assert passed_s() == pytest.approx(2.5 + 29 + 2.5 + 31)


@in_virtual_time
async def test_a_caller_that_joins_what_a_stream_began_pays_nothing_twice_either() -> None:
    company = Company()
    service = company.service()
    stream = service.stream(ALICE, SEQUENCE, request_id="r1")
    await anext(stream)
    call = asyncio.create_task(leave_after(2.5, service.execute(ALICE, SEQUENCE, request_id="r1")))
    await asyncio.sleep(0.5)
    await stream.aclose()
    await call
    await asyncio.sleep(30)
    await service.execute(ALICE, SEQUENCE, request_id="r1")
    assert company.model.begun == company.model.heard == Counter(("one", "two", "six"))


@pytest.mark.slow
def test_no_call_is_paid_twice_whenever_the_caller_leaves_and_wherever_it_comes_back() -> None:
    waits = st.one_of(st.floats(0.01, 9.0), st.sampled_from((1.0, 2.0, 2.5, 3.0, 4.0)))
    visits = st.lists(st.tuples(waits, waits, st.booleans()), min_size=1, max_size=5)
    groups = st.lists(st.integers(1, 3), min_size=1, max_size=4)

    @settings(max_examples=150, deadline=None)
    @given(groups, visits)
    def holds(sizes: Sequence[int], visits: Sequence[tuple[float, float, bool]]) -> None:
        words = [[f"{index}-{number}" for number in range(size)] for index, size in enumerate(sizes)]
        begun, calls = VirtualLoop().run(_visit(task_of(words), visits))
        assert begun == Counter(word for group in words for word in group)
        assert calls == sum(sizes)

    holds()


async def _visit(task: Task, visits: Sequence[tuple[float, float, bool]]) -> tuple[Counter[str], int]:
    """Return how often each call began, and the number of model calls in the last result."""
    company = Company()
    servers = company.service(), company.service()
    for stays_s, is_away_s, is_elsewhere in visits:
        await leave_after(stays_s, servers[is_elsewhere].execute(ALICE, task, request_id="r1"))
        await asyncio.sleep(is_away_s)
    view = await servers[0].execute(ALICE, task, request_id="r1")
    return company.model.begun, view.result.metrics.usage.model_calls


@pytest.mark.parametrize("comes_back", [True, False])
@in_virtual_time
async def test_a_call_under_way_is_spared_as_well_in_a_run_that_was_taken_over(
    comes_back: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    company, task = Company(), task_of([[str(index)] for index in range(99)])
    first = company.service()
    call = asyncio.create_task(leave_after(2.5, first.execute(ALICE, task, request_id="r1")))
    await asyncio.sleep(2.2)
    (execution,) = (await first.desk.list(ALICE)).executions
    run = company.runners[0].find_live(execution.execution_id)
    assert run is not None
    run.stop(Trigger.HAND_OVER)
    await call
    second = company.service()
    await company.runners[1]._recoverer.lease_keeper.round()
    if comes_back:
        await leave_after(LIMITS.reattach_s + 2.5, second.execute(ALICE, task, request_id="r1"))
    await asyncio.sleep(90)
    (left,) = (await second.desk.list(ALICE)).executions
    assert left.state is ExecutionState.CANCELLED
    (cut,) = company.model.begun - company.model.heard
    assert cut == "1", "only the call that was under way when the first server ended was made again"


class AnsweringLate(Shared):
    """A store that commits a creation at once and answers after a tenth of a second."""

    async def create(self, execution: Execution, **arguments: Any) -> Claim:
        claim = await super().create(execution, **arguments)
        await asyncio.sleep(0.1)
        return claim


def late_company() -> Company:
    company = Company()
    company.store = AnsweringLate(max_bytes=10**8, now=company.time.now, monotonic=company.time.monotonic)
    return company


@pytest.mark.parametrize("is_unary", [True, False])
@in_virtual_time
async def test_who_leaves_while_the_execution_is_created_and_asks_again_elsewhere_gets_the_answer(
    *, is_unary: bool
) -> None:
    company = late_company()
    first, second = company.service(), company.service()
    asked = first.execute(ALICE, SEQUENCE, request_id="r1") if is_unary else _read(first, request_id="r1")
    await leave_after(0.05, asked)
    view = await second.execute(ALICE, SEQUENCE, request_id="r1")
    assert view.result.finish_reason is FinishReason.ANSWERED
    assert len((await first.desk.list(ALICE)).executions) == 1
    assert company.model.begun == company.model.heard == Counter(("one", "two", "six"))


@in_virtual_time
async def test_what_is_to_be_kept_running_is_kept_though_its_caller_left_while_it_was_created() -> None:
    company = late_company()
    service = company.service()
    await leave_after(0.05, _read(service, keep_running=True))
    await asyncio.sleep(30)
    (kept,) = (await service.desk.list(ALICE)).executions
    assert kept.state is ExecutionState.SUCCEEDED


@pytest.mark.parametrize("request_id", ["r1", ""])
@in_virtual_time
async def test_who_leaves_while_the_execution_is_created_and_does_not_return_pays_nothing(request_id: str) -> None:
    company = late_company()
    service = company.service()
    await leave_after(0.05, _read(service, request_id=request_id))
    await asyncio.sleep(30)
    (left,) = (await service.desk.list(ALICE)).executions
    assert (left.state, company.model.begun) == (ExecutionState.CANCELLED, Counter())


async def _read(service: ReasoningService, *, request_id: str = "", keep_running: bool = False) -> None:
    async for _ in service.stream(ALICE, SEQUENCE, request_id=request_id, keep_running=keep_running):
        pass

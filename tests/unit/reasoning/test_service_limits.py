"""Concurrent executions of a caller, also of those that another server resumes."""

import asyncio

import pytest

from reasond_server.errors.limits import RateLimitedError, StoreUnavailableError
from reasond_server.limits.callers import CallerLimits
from reasond_server.limits.request_limits import DirectAdmission, MemorySlots, RequestGate
from tests.unit.reasoning.company import ALICE, Company, task_of
from tests.unit.runs.conftest import in_virtual_time

TASK = task_of([["one"], ["two"]])


class Unreachable(MemorySlots):
    """Slots that cannot be moved."""

    async def move(self, *_arguments: object, **_keys: object) -> None:
        raise StoreUnavailableError("gone")


def limits_on(slots: MemorySlots) -> CallerLimits:
    gate = RequestGate(admission=DirectAdmission(rates=None, slots=slots), has_slots=True)
    return CallerLimits(gate=gate, ledger=None, weights={})


async def taken_over(company: Company, lives: int) -> None:
    """Begin a run, then let each server in turn die and the next one take the run over."""
    stream = company.service().stream(ALICE, TASK, keep_running=True)
    execution = (await anext(stream)).execution_id
    for _ in range(lives):
        run = company.runners[-1].find_live(execution)
        assert run is not None
        assert run.driver is not None
        run.log.close(StoreUnavailableError("dead"))
        run.place = None
        run.driver.cancel()
        await asyncio.wait([run.driver])
        company.time.advance(20)
        company.service()
        await company.runners[-1]._recoverer.lease_keeper.round()


@pytest.mark.parametrize("lives", [1, 2, 3])
@in_virtual_time
async def test_a_run_that_was_taken_over_has_its_callers_place_and_only_that(lives: int) -> None:
    slots = MemorySlots(most=1)
    company = Company(limits=limits_on(slots))
    await taken_over(company, lives)
    await asyncio.sleep(0)
    assert [len(places) for places in slots._taken.values()] == [1]
    last = company.service()
    with pytest.raises(RateLimitedError, match="1 executions at once"):
        await last.execute(ALICE, TASK)
    await asyncio.sleep(60)
    assert slots._taken == {}
    assert (await last.execute(ALICE, TASK)).result.answer == TASK.query


@in_virtual_time
async def test_a_run_goes_on_though_its_place_cannot_be_counted(caplog: pytest.LogCaptureFixture) -> None:
    company = Company(limits=limits_on(Unreachable(most=1)))
    await taken_over(company, 1)
    await asyncio.sleep(60)
    (execution,) = (await company.service().desk.list(ALICE)).executions
    assert execution.state.value == "succeeded"
    assert "goes on uncounted: gone" in caplog.text


@in_virtual_time
async def test_a_run_that_ended_before_it_was_counted_leaves_its_place() -> None:
    slots = MemorySlots(most=1)
    limits = limits_on(slots)
    company = Company()
    await company.service().execute(ALICE, TASK)
    place = await company.runners[0].find_place("acme")
    place.release()
    place.keep(await limits.carry_over("acme", "alice", "p", 2))
    await limits.aclose()
    assert slots._taken == {}
    assert await CallerLimits(gate=None, ledger=None, weights={}).carry_over("acme", "alice", "p", 2) is None

import asyncio
import time

import pytest

from reasond_server.errors.limits import DrainingError, OverloadedError
from reasond_server.runs.admission import Admission, Place
from tests.unit.telemetry.parts import metrics, values


async def waiting(admission: Admission, tenant: str, within_s: float | None = None) -> asyncio.Task[Place]:
    """Return a task that waits in the queue."""
    task = asyncio.create_task(admission.enter(tenant, within_s=within_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def queue(max_queued: int = 10, max_running: int = 1) -> Admission:
    return Admission(max_running=max_running, max_queued=max_queued, queue_timeout_s=60)


async def test_without_a_queue_one_too_many_is_refused_and_told_when_to_retry() -> None:
    admission = Admission(max_running=2)
    places = [await admission.enter("a") for _ in range(2)]
    with pytest.raises(OverloadedError, match="2 executions are running, as many as") as refused:
        await admission.enter("a")
    assert (refused.value.retry_after_s, refused.value.metadata) == (1.0, {"max_concurrent_requests": "2"})
    places[0].release()
    await admission.enter("a")


async def test_a_place_is_given_back_once() -> None:
    admission = Admission(max_running=1)
    place = await admission.enter("a")
    place.release()
    place.release()
    assert admission.free_places == 1
    await admission.enter("a")
    with pytest.raises(OverloadedError):
        await admission.enter("a")


async def test_who_asked_first_comes_first() -> None:
    admission = queue()
    first = await admission.enter("a")
    second, third = await waiting(admission, "a"), await waiting(admission, "a")
    first.release()
    place = await second
    await asyncio.sleep(0)
    assert not third.done()
    place.release()
    await third


async def test_nobody_overtakes_who_waits() -> None:
    admission = queue()
    place = await admission.enter("a")
    second = await waiting(admission, "a")
    place.release()
    late = await waiting(admission, "a")
    assert (await second) is not None
    assert not late.done()
    late.cancel()


async def test_tenants_take_turns_however_many_one_of_them_sends() -> None:
    admission = queue()
    place = await admission.enter("greedy")
    greedy = [await waiting(admission, "greedy") for _ in range(5)]
    modest = await waiting(admission, "modest")
    place.release()
    (await greedy[0]).release()
    await modest
    assert not greedy[1].done()
    for task in greedy[1:]:
        task.cancel()


async def test_a_full_queue_refuses_at_once() -> None:
    admission = queue(max_queued=1)
    await admission.enter("a")
    task = await waiting(admission, "a")
    with pytest.raises(OverloadedError, match="and 1 more wait"):
        await admission.enter("b")
    task.cancel()


@pytest.mark.parametrize(("queue_s", "within_s"), [(0.01, None), (60.0, 0.01), (0.01, 60.0)])
async def test_who_waits_too_long_is_refused_and_leaves_the_queue(queue_s: float, within_s: float | None) -> None:
    admission = Admission(max_running=1, max_queued=1, queue_timeout_s=queue_s)
    place = await admission.enter("a")
    for _ in range(2):
        with pytest.raises(OverloadedError, match=r"no place became free within 0\.01 s"):
            await admission.enter("a", within_s=within_s)
    place.release()
    assert admission.free_places == 1


async def test_a_place_that_came_while_the_event_loop_stood_still_is_taken_though_the_time_is_over() -> None:
    admission = Admission(max_running=1, max_queued=1, queue_timeout_s=0.01)
    place = await admission.enter("a")
    task = await waiting(admission, "a")

    def stall() -> None:
        """Block the loop for longer than the queue timeout. The place is free just before the timers are checked."""
        time.sleep(0.05)
        asyncio.get_running_loop().call_soon(place.release)

    asyncio.get_running_loop().call_soon(stall)
    (await task).release()
    assert admission.running == 0


async def test_a_waiter_that_goes_away_leaves_its_place_to_the_next() -> None:
    admission = queue()
    place = await admission.enter("a")
    gone, next_one = await waiting(admission, "a"), await waiting(admission, "a")
    place.release()
    gone.cancel()
    await next_one
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_draining_refuses_who_waits_and_who_comes() -> None:
    admission = queue()
    await admission.enter("a")
    task = await waiting(admission, "a")
    admission.drain()
    with pytest.raises(DrainingError):
        await task
    with pytest.raises(DrainingError):
        await admission.enter("a")


async def test_a_place_that_no_run_took_is_left_at_the_end_of_the_preparation() -> None:
    admission = queue()
    place = await admission.enter("a")
    with place:
        assert admission.free_places == 0
    assert admission.free_places == 1
    taken = await admission.enter("a")
    with taken:
        taken.take()
    assert admission.free_places == 0


async def test_what_was_taken_over_is_admitted_beyond_the_limit() -> None:
    admission = Admission(max_running=1)
    await admission.enter("a")
    place = admission.force()
    assert admission.free_places == 0
    place.release()
    with pytest.raises(OverloadedError):
        await admission.enter("a")


async def test_who_had_to_wait_is_told_with_how_it_ended_and_others_are_not() -> None:
    counted = metrics()
    admission = Admission(max_running=1, max_queued=3, queue_timeout_s=60, observer=counted)
    place = await admission.enter("a")
    assert (admission.running, admission.queued) == (1, 0)
    admitted, gone, draining = [await waiting(admission, "a") for _ in range(3)]
    assert admission.queued == 3
    with pytest.raises(OverloadedError):
        await admission.enter("a")
    place.release()
    await admitted
    gone.cancel()
    await asyncio.wait([gone])
    with pytest.raises(OverloadedError):
        await admission.enter("a", within_s=0.001)
    admission.drain()
    with pytest.raises(DrainingError):
        await draining
    found = values(counted)
    waits = {
        name.split()[1]: value for name, value in found.items() if name.startswith("reasond_queue_wait_seconds_count")
    }
    assert waits == {"admitted": 1, "gone": 1, "timeout": 1, "draining": 1}


async def test_the_time_of_the_places_in_use_is_counted_and_who_began_and_who_was_refused() -> None:
    now_s = 10.0
    admission = Admission(max_running=2, max_queued=1, queue_timeout_s=0.0, monotonic=lambda: now_s)
    first, second = await admission.enter("a"), await admission.enter("a")
    now_s = 13.0
    assert admission.busy_s == 6.0
    first.release()
    now_s = 14.0
    first.release()
    second.release()
    now_s = 99.0
    assert admission.busy_s == 7.0
    with admission.force(), admission.force(), pytest.raises(OverloadedError):
        await admission.enter("a")
    assert (admission.begun, admission.refused) == (4, 1)

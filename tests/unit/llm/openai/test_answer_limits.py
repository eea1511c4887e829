from __future__ import annotations

import asyncio

import pytest

from reasond_server.llm.openai.answer import Deadline, WaitLimitError, WaitLimits
from reasond_server.llm.openai.backend_options import Timeouts


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, *, total_s: float = 100.0, time_left_s: float | None = None) -> tuple[WaitLimits, Deadline]:
    timeouts = Timeouts(first_token_s=10.0, idle_s=5.0, total_s=total_s)
    deadline = Deadline(timeouts=timeouts, time_left_s=time_left_s, monotonic=clock)
    return WaitLimits(timeouts=timeouts, deadline=deadline, monotonic=clock), deadline


async def takes(clock: Clock, seconds: float) -> str:
    clock.now += seconds
    return "done"


@pytest.mark.parametrize(("left", "seconds"), [(None, 100.0), (60.0, 57.0), (1000.0, 100.0), (-3.0, 0.0), (0.0, 0.0)])
def test_the_total_is_the_lesser_of_the_options_and_the_callers_time_less_a_margin(
    left: float | None, seconds: float
) -> None:
    _, deadline = limits(Clock(), time_left_s=left)
    assert deadline.seconds == pytest.approx(seconds)
    assert deadline.build_error().is_callers == (seconds < 100.0)


async def test_waits_add_up_until_content_comes() -> None:
    clock = Clock()
    waiting, _ = limits(clock)
    for _ in range(2):
        assert await waiting.wait(lambda: takes(clock, 4.9)) == "done"
    waiting.note_content()
    await waiting.wait(lambda: takes(clock, 5.0))
    with pytest.raises(WaitLimitError, match="went silent") as caught:
        await waiting.wait(lambda: takes(clock, 0.0))
    assert caught.value.setting == "timeouts.idle_s"


async def test_time_between_waits_is_not_the_models() -> None:
    clock = Clock()
    waiting, _ = limits(clock)
    await waiting.wait(lambda: takes(clock, 1.0))
    clock.now += 50.0
    assert await waiting.wait(lambda: takes(clock, 1.0)) == "done"


async def test_the_total_goes_on_between_waits() -> None:
    clock = Clock()
    waiting, _ = limits(clock, total_s=20.0)
    clock.now += 20.0
    with pytest.raises(WaitLimitError, match="did not end its answer"):
        await waiting.wait(lambda: takes(clock, 0.0))


async def test_once_the_answer_has_begun_the_callers_time_is_the_callers_to_end() -> None:
    clock = Clock()
    waiting, deadline = limits(clock, total_s=8.0, time_left_s=2.0)
    assert deadline.compute_left_s() == pytest.approx(1.9)
    clock.now = 1.0
    waiting.note_content()
    assert deadline.compute_left_s() == pytest.approx(7.0)
    assert await waiting.wait(lambda: takes(clock, 4.0)) == "done"
    clock.now = 8.0
    with pytest.raises(WaitLimitError) as caught:
        waiting.check()
    assert (caught.value.setting, caught.value.is_callers) == ("timeouts.total_s", False)


async def test_a_wait_is_cancelled_at_its_end() -> None:
    timeouts = Timeouts(first_token_s=0.01)
    clock = asyncio.get_running_loop().time
    deadline = Deadline(timeouts=timeouts, time_left_s=None, monotonic=clock)
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(WaitLimitError, match="did not begin to answer"):
        await WaitLimits(timeouts=timeouts, deadline=deadline, monotonic=clock).wait(lambda: never)
    assert never.cancelled()


async def test_lingering_shortens_a_wait_and_never_lengthens_it() -> None:
    clock = Clock()
    waiting, _ = limits(clock)
    waiting.linger(1.0)
    waiting.linger(3.0)
    await waiting.wait(lambda: takes(clock, 1.0))
    with pytest.raises(WaitLimitError):
        await waiting.wait(lambda: takes(clock, 0.0))


async def test_the_end_can_be_brought_forward_and_not_put_off_whatever_content_comes() -> None:
    clock = Clock()
    waiting, deadline = limits(clock)
    waiting.note_content()
    clock.now = 50.0
    waiting.end_within(1.0)
    waiting.end_within(3.0)
    assert deadline.compute_left_s() == pytest.approx(1.0)
    await waiting.wait(lambda: takes(clock, 1.0))
    waiting.note_content()
    with pytest.raises(WaitLimitError):
        waiting.check()

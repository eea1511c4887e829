"""FairSemaphore: fair by key, bounded, and no permit is lost when a waiter or a holder is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.base.asyncio_tasks import FairSemaphore
from reasond_server.errors.limits import OverloadedError


class Desk:
    """A semaphore whose holders stay until the test lets them go."""

    def __init__(self, *, permits: int = 1, most_waiting: int = 4) -> None:
        self.semaphore = FairSemaphore(permits=permits, most_waiting=most_waiting, waiters="agents")
        self.served: list[str] = []
        self.may_end = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, name: str) -> asyncio.Task[None]:
        """Ask for a permit; the key is the first letter of the name."""
        task = asyncio.create_task(self._serve(name))
        self.tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def _serve(self, name: str) -> None:
        async with self.semaphore.acquire(name[0]):
            self.served.append(name)
            await self.may_end.wait()

    async def close(self) -> None:
        """Let all holders end."""
        self.may_end.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def refused(self) -> list[int]:
        """The indices of the refused tasks."""
        ended = [(place, task) for place, task in enumerate(self.tasks) if task.done() and not task.cancelled()]
        return [place for place, task in ended if isinstance(task.exception(), OverloadedError)]


async def test_keys_take_turns_and_each_serves_who_came_first() -> None:
    desk = Desk()
    for name in ("a1", "a2", "a3", "b1", "c1"):
        await desk.come(name)
    await desk.close()
    assert desk.served == ["a1", "a2", "b1", "c1", "a3"]


async def test_who_has_most_waiting_makes_room_for_who_has_fewer() -> None:
    desk = Desk(most_waiting=3)
    for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2"):
        await desk.come(name)
    # a5 because the queue was full; a4 to make room for b1; b2 because b would then have as many waiters as a.
    assert desk.refused == [3, 4, 6]
    await desk.close()
    assert desk.served == ["a1", "a2", "b1", "a3"]


async def test_a_refusal_says_when_to_come_back() -> None:
    desk = Desk(most_waiting=1)
    for name in ("a1", "a2"):
        await desk.come(name)
    with pytest.raises(OverloadedError, match="Too many agents: 1 wait") as caught:
        await (await desk.come("a3"))
    assert caught.value.retry_after_s == 1.0
    await desk.close()


async def test_who_leaves_while_waiting_leaves_no_hole_and_no_turn_behind() -> None:
    desk = Desk()
    for name in ("a1", "a2", "b1"):
        await desk.come(name)
    desk.tasks[1].cancel()
    await desk.close()
    assert desk.served == ["a1", "b1"]
    assert (desk.semaphore.free, desk.semaphore.waiters) == (1, 0)


async def test_who_is_cancelled_at_the_very_moment_of_its_turn_hands_it_on() -> None:
    desk = Desk()
    for name in ("a1", "a2", "b1"):
        await desk.come(name)
    desk.tasks[0].cancel()
    await asyncio.sleep(0)
    # a2 has received the permit but has not run yet.
    desk.tasks[1].cancel()
    await desk.close()
    assert desk.served == ["a1", "b1"]
    assert desk.semaphore.free == 1


async def test_who_left_and_is_displaced_permits_is_nobody_to_tell() -> None:
    desk = Desk(most_waiting=2)
    for name in ("a1", "a2", "a3"):
        await desk.come(name)
    desk.tasks[2].cancel()
    await desk.come("b1")
    await desk.close()
    assert desk.served == ["a1", "a2", "b1"]
    assert desk.semaphore.free == 1


async def test_who_is_displaced_and_cancelled_permits_has_no_turn_to_hand_on() -> None:
    desk = Desk(most_waiting=2)
    for name in ("a1", "a2", "a3"):
        await desk.come(name)
    coming = asyncio.create_task(desk.come("b1"))
    await asyncio.sleep(0)
    desk.tasks[2].cancel()
    await coming
    await desk.close()
    assert desk.semaphore.free == 1


@given(
    names=st.text("abc", max_size=30),
    permits=st.integers(1, 3),
    most=st.integers(1, 6),
    leaving=st.sets(st.integers(0, 29)),
)
async def test_never_more_than_allowed_work_and_all_turns_come_back(
    names: str, permits: int, most: int, leaving: set[int]
) -> None:
    desk = Desk(permits=permits, most_waiting=most)
    for place, name in enumerate(names):
        task = await desk.come(name)
        assert len(desk.served) <= permits + sum(one.done() for one in desk.tasks)
        assert desk.semaphore.waiters <= most
        if place in leaving:
            task.cancel()
    await desk.close()
    assert (desk.semaphore.free, desk.semaphore.waiters) == (permits, 0)
    # The only caller of a key is never refused because of the callers of other keys.
    alone = [name for name, times in Counter(names).items() if times == 1]
    if most > len(set(names)):
        assert not [place for place in desk.refused if names[place] in alone]

"""Nothing is left behind if Redis cannot be reached or the caller does not wait for it."""

import asyncio
import socket
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.limits.callers import SharedHealth
from reasond_server.limits.request_limits import DirectAdmission, MemorySlots, RequestGate, release_slot
from reasond_server.limits.shared import Fallback, FallbackAdmission, OnFailure


class LateSlots(MemorySlots):
    """Slots that are taken, but whose answer never arrives."""

    async def take(self, caller: str, slot: str) -> bool:
        await super().take(caller, slot)
        await asyncio.sleep(3600)
        return True


def over(slots: MemorySlots) -> DirectAdmission:
    return DirectAdmission(rates=None, slots=slots)


def fallback(health: SharedHealth, on_failure: OnFailure = "local") -> Fallback:
    return Fallback(health=health, on_failure=on_failure, timeout_s=0.01)


async def test_a_place_whose_answer_came_too_late_is_released_in_redis_too() -> None:
    shared = LateSlots(most=1)
    health = SharedHealth(monotonic=asyncio.get_running_loop().time, rest_s=0)
    slots = FallbackAdmission(shared=over(shared), local=over(MemorySlots(most=1)), fallback=fallback(health))
    assert await slots.admit("anna", "one", weight=1) is None
    await release_slot(slots, "anna", "one")
    assert not shared._taken


async def test_who_is_refused_a_local_place_leaves_nothing_behind() -> None:
    health = SharedHealth(monotonic=lambda: 0.0)
    health.note_failure(RedisConnectionError())
    slots = FallbackAdmission(
        shared=over(MemorySlots(most=1)), local=over(MemorySlots(most=1)), fallback=fallback(health)
    )
    assert [await slots.admit("anna", place, weight=1) is None for place in ("one", "two")] == [True, False]
    assert slots._taken_locally == {"one"}


async def test_who_is_cancelled_while_a_place_is_taken_does_not_keep_it() -> None:
    slots = LateSlots(most=1)
    gate = RequestGate(admission=over(slots), has_slots=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await gate.admit("anna")
    assert not slots._taken


async def test_an_answer_that_came_while_the_event_loop_was_busy_is_no_failure() -> None:
    health = SharedHealth(monotonic=asyncio.get_running_loop().time)
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)

    def stall() -> None:
        """Answer, then block the event loop for longer than the time limit of an answer."""
        far.send(b"7")
        time.sleep(0.1)

    async def ask_shared() -> int:
        asyncio.get_running_loop().call_soon(stall)
        return int(await reader.read(1))

    async def local() -> int:
        return 1

    try:
        assert await fallback(health).ask(ask_shared, local=local, unlimited=lambda: 2) == 7
        assert not health.is_degraded
    finally:
        writer.close()
        far.close()


async def test_an_answer_that_does_not_come_is_a_failure() -> None:
    health = SharedHealth(monotonic=asyncio.get_running_loop().time)

    async def ask_shared() -> int:
        await asyncio.Event().wait()
        return 7

    async def local() -> int:
        return 1

    assert await fallback(health).ask(ask_shared, local=local, unlimited=lambda: 2) == 1
    assert health.is_degraded


async def test_a_refusal_by_redis_shows_that_it_is_back() -> None:
    health = SharedHealth(monotonic=lambda: 0.0, rest_s=0)
    health.note_failure(RedisConnectionError())

    async def refuse() -> int:
        raise TokenBudgetExhaustedError("nothing is left")

    async def local() -> int:
        return 1

    with pytest.raises(TokenBudgetExhaustedError):
        await fallback(health).ask(refuse, local=local, unlimited=lambda: 2)
    assert not health.is_degraded


@pytest.mark.parametrize(("on_failure", "counted"), [("local", {"two"}), ("closed", {"two"}), ("open", set())])
async def test_a_place_that_is_carried_over_is_counted_here_while_redis_is_gone_and_never_refused(
    on_failure: OnFailure, counted: set[str]
) -> None:
    health = SharedHealth(monotonic=lambda: 0.0)
    local = MemorySlots(most=1)
    slots = FallbackAdmission(
        shared=over(MemorySlots(most=1)), local=over(local), fallback=fallback(health, on_failure)
    )
    await local.take("anna", "another")
    health.note_failure(RedisConnectionError())
    await slots.move("anna", "two", earlier=["one"])
    assert local._taken["anna"] == {"another", *counted}
    await release_slot(slots, "anna", "two")
    assert local._taken["anna"] == {"another"}


async def test_a_place_that_is_carried_over_is_moved_where_it_is_shared() -> None:
    shared, local = MemorySlots(most=1), MemorySlots(most=1)
    slots = FallbackAdmission(
        shared=over(shared), local=over(local), fallback=fallback(SharedHealth(monotonic=lambda: 0.0))
    )
    assert await slots.admit("anna", "one", weight=1) is None
    await slots.move("anna", "one:2", earlier=["one"])
    assert (shared._taken, local._taken) == ({"anna": {"one:2"}}, {})
    await release_slot(slots, "anna", "one:2")
    assert shared._taken == {}


async def test_a_gate_that_counts_no_executions_has_nothing_to_carry_over() -> None:
    gate = RequestGate(admission=DirectAdmission(rates=None, slots=None), has_slots=False)
    assert await gate.carry_over("anna", "one", life=2) is None

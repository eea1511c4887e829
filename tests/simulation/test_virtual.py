"""Tests of the event loop with virtual time."""

import asyncio
import contextvars
import random

import pytest

from tests.simulation.virtual import OWNER, StandstillError, ThreadError, VirtualLoop


def test_hours_pass_at_once_and_timers_come_in_their_order() -> None:
    loop, heard = VirtualLoop(), []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        heard.append((seconds, round(loop.passed_s, 6)))

    async def main() -> None:
        await asyncio.gather(*map(wait, (7200.0, 0.25, 3600.0)))

    loop.run(main())
    assert heard == [(0.25, 0.25), (3600.0, 3600.0), (7200.0, 7200.0)]


def test_a_timeout_is_kept_to_the_microsecond() -> None:
    loop = VirtualLoop()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(12.5):
                await asyncio.Event().wait()
        return loop.passed_s

    assert loop.run(main()) == pytest.approx(12.5, abs=1e-6)


def test_waiting_for_ever_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StandstillError):
        VirtualLoop().run(main())


def test_work_for_a_thread_is_refused() -> None:
    async def main() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(ThreadError):
        VirtualLoop().run(main())


def test_an_uncaught_exception_is_recorded() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)

    loop.run(main())
    assert len(loop.faults) == 1
    assert "ZeroDivisionError" in loop.faults[0]


def test_the_same_seed_gives_the_same_order_again() -> None:
    def order(seed: int) -> list[int]:
        chance, heard = random.Random(seed), list[int]()  # noqa: S311 - a seeded, repeatable sequence

        async def wait(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(chance.random())
                heard.append(number)

        async def main() -> None:
            await asyncio.gather(*map(wait, range(5)))

        VirtualLoop().run(main())
        return heard

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_frozen_work_catches_up_in_order_while_other_work_continues() -> None:
    loop, heard = VirtualLoop(), list[tuple[str, float]]()

    async def tick(name: str) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            heard.append((name, round(loop.passed_s, 6)))

    async def main() -> None:
        owned, cancelled = contextvars.copy_context(), contextvars.copy_context()
        for context in (owned, cancelled):
            context.run(OWNER.set, "p")
        tasks = [loop.create_task(tick("a"), context=owned), loop.create_task(tick("b"))]
        await asyncio.sleep(1.5)
        loop.freeze("p")
        timer = loop.call_later(0.1, heard.append, ("never", 0.0), context=cancelled)
        loop.call_soon(heard.append, ("soon", 0.0), context=cancelled)
        await asyncio.sleep(2)
        timer.cancel()
        loop.thaw("p")
        await asyncio.wait(tasks)

    loop.run(main())
    assert [each for each in heard if each[0] == "a"] == [("a", 1.0), ("a", 3.5), ("a", 4.5), ("a", 5.5)]
    assert [each for each in heard if each[0] == "b"] == [("b", 1.0), ("b", 2.0), ("b", 3.0), ("b", 4.0)]
    assert heard.index(("soon", 0.0)) > heard.index(("b", 3.0))
    assert ("never", 0.0) not in heard

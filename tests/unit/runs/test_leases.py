"""The rounds of the upkeep: which executions are renewed, recovered and forgotten, and in which order."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.leases import LeaseKeeper, Sweep, sweep_nothing
from reasond_server.eventlog.store import Lease, Recovery, Renewal
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from tests.unit.runs.conftest import ManualClock, in_virtual_time, passed_s


class Store(MemoryExecutionStore):
    """A store that notes the requests that it receives, and forgets the given numbers of executions."""

    def __init__(self, *, forgotten: Sequence[int] = (0,)) -> None:
        time = ManualClock()
        super().__init__(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
        self.asked: list[str] = []
        self.left = [*forgotten]
        self.is_down = False

    async def forget(self, *, limit: int) -> int:
        self.asked.append(f"forget {limit}")
        return self.left.pop(0)

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        self.asked.append(f"recover {limit}")
        return await super().recover(lease, limit=limit)

    async def renew(self, lease: Lease, fences: object) -> Renewal:
        del lease, fences
        if self.is_down:
            raise StoreUnavailableError("gone")
        self.asked.append("renew")
        return Renewal(lost=["a"], cancel_requested=["b"], keep_requested=["c"])


@dataclass
class Runs:
    """The runs of a process, which note the calls that they receive."""

    room: int
    told: list[str]
    renewed: list[tuple[dict[str, int], float]]

    def read_fences(self) -> Mapping[str, int]:
        return {"a": 1, "b": 1, "c": 1}

    def count_room(self) -> int:
        return self.room

    def adopt(self, recovery: Recovery, since_s: float) -> None:
        del since_s
        self.told.append(recovery.execution.execution_id)

    def prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        self.renewed.append((dict(fences), since_s))

    def lose(self, execution_id: str) -> None:
        self.told.append(f"lost {execution_id}")

    def cancel(self, execution_id: str) -> None:
        self.told.append(f"cancelled {execution_id}")

    def keep(self, execution_id: str) -> None:
        self.told.append(f"kept {execution_id}")


def make_keeper(
    store: Store,
    *,
    room: int = 5,
    told: list[str] | None = None,
    renewed: list[tuple[dict[str, int], float]] | None = None,
    monotonic: Callable[[], float] | None = None,
    sweep: Sweep = sweep_nothing,
) -> LeaseKeeper:
    return LeaseKeeper(
        store=store,
        lease=Lease(owner="me", seconds=15),
        random=lambda: 1.0,
        monotonic=passed_s if monotonic is None else monotonic,
        runs=(runs := Runs(room=room, told=[] if told is None else told, renewed=[] if renewed is None else renewed)),
        handler=runs,
        sweep=sweep,
    )


@in_virtual_time
async def test_what_is_past_its_time_is_forgotten_a_thousand_at_once_until_there_is_less() -> None:
    store = Store(forgotten=[1000, 1000, 3, 7])
    await make_keeper(store).round()
    assert [each for each in store.asked if each != "renew"] == ["recover 5", *["forget 1000"] * 3]


@in_virtual_time
async def test_leases_are_renewed_between_the_thousands_that_are_forgotten() -> None:
    store = Store(forgotten=[1000, 1000, 3])
    await make_keeper(store).round()
    assert store.asked[2:] == ["forget 1000", "renew", "forget 1000", "renew", "forget 1000"]


@in_virtual_time
async def test_what_is_stored_beside_the_logs_is_swept_last_in_parts_between_which_leases_are_renewed() -> None:
    store, left = Store(), [10, 10, 4, 10]

    async def sweep(limit: int) -> int:
        store.asked.append(f"sweep {limit}")
        return left.pop(0)

    await make_keeper(store, room=0, sweep=sweep).round()
    assert store.asked == ["renew", "forget 1000", "sweep 10", "renew", "sweep 10", "renew", "sweep 10"]


@in_virtual_time
async def test_a_process_without_room_takes_nothing_over() -> None:
    store = Store()
    await make_keeper(store, room=0).round()
    assert store.asked == ["renew", "forget 1000"]


@in_virtual_time
async def test_each_run_hears_what_the_renewal_tells_of_it() -> None:
    told: list[str] = []
    await make_keeper(Store(), told=told).round()
    assert told == ["lost a", "cancelled b", "kept c"]


@in_virtual_time
async def test_the_rounds_come_every_third_of_a_lease_and_go_on_after_an_outage() -> None:
    store = Store(forgotten=[0] * 9)
    keeper = make_keeper(store)
    keeper.begin()
    await _until(store, 1)
    store.is_down = True
    await _pass(7)
    store.is_down = False
    await _until(store, 3)
    await keeper.aclose()
    assert store.asked == [
        "renew",
        "recover 5",
        "forget 1000",
        "renew",
        "forget 1000",
        *["renew", "recover 5", "forget 1000"],
    ]
    assert passed_s() == pytest.approx(15, abs=0.6)


async def _pass(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _until(store: Store, rounds: int) -> None:
    while store.asked.count("forget 1000") < rounds:
        await _pass(0.5)


@in_virtual_time
async def test_a_renewal_is_told_with_the_moment_at_which_it_was_asked_for_of_those_that_are_not_lost() -> None:
    class Slow(Store):
        async def renew(self, lease: Lease, fences: object) -> Renewal:
            await _pass(4)
            return await super().renew(lease, fences)

    renewed: list[tuple[dict[str, int], float]] = []
    await _pass(3)
    await make_keeper(Slow(), renewed=renewed).round()
    assert renewed == [({"b": 1, "c": 1}, 3.0)]


@in_virtual_time
async def test_a_renewal_that_is_wanted_comes_at_once_and_changes_no_round() -> None:
    store = Store(forgotten=[0] * 9)
    keeper = make_keeper(store)
    keeper.begin()
    await _until(store, 1)
    await _pass(1)
    keeper.hurry()
    await _pass(0.1)
    assert store.asked == ["renew", "recover 5", "forget 1000", "renew"]
    await _until(store, 2)
    assert passed_s() == pytest.approx(5, abs=0.6)
    await keeper.aclose()


@in_virtual_time
async def test_a_renewal_that_is_wanted_while_another_is_under_way_comes_after_it() -> None:
    class Slow(Store):
        async def renew(self, lease: Lease, fences: object) -> Renewal:
            await _pass(1)
            return await super().renew(lease, fences)

    store = Slow(forgotten=[0] * 9)
    keeper = make_keeper(store)
    keeper.begin()
    await _pass(0.5)
    keeper.hurry()
    await _pass(2)
    await keeper.aclose()
    assert store.asked == ["renew", "recover 5", "forget 1000", "renew"]


@in_virtual_time
async def test_a_renewal_that_failed_is_not_tried_again_before_it_is_wanted_again() -> None:
    tries: list[float] = []

    class Failing(Store):
        async def renew(self, lease: Lease, fences: object) -> Renewal:
            del lease, fences
            tries.append(passed_s())
            raise StoreUnavailableError("gone")

    store = Failing(forgotten=[0] * 9)
    keeper = make_keeper(store)
    keeper.begin()
    await _pass(1)
    keeper.hurry()
    await _pass(3)
    await keeper.aclose()
    assert tries == [0, 1]


@in_virtual_time
async def test_who_stood_still_for_longer_than_a_lease_takes_nothing_over_before_others_could_renew() -> None:
    store, time = Store(forgotten=[0] * 9), ManualClock()
    keeper = make_keeper(store, monotonic=time.monotonic)
    await keeper.round()
    time.advance(15.1)
    await keeper.round()
    time.advance(5)
    await keeper.round()
    assert [each for each in store.asked if "forget" not in each] == [
        "renew",
        "recover 5",
        "renew",
        "renew",
        "recover 5",
    ]

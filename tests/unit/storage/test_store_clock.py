"""The time by which what is stored expires, while the clock of the machine jumps."""

from datetime import UTC, datetime, timedelta

from reasond_server.storage.store_clock import SteadyTime, StoreClock

START = 1_800_000_000.0
HOLD_S = 3600.0


class Machine:
    """A clock that jumps, and seconds that do not."""

    def __init__(self) -> None:
        self.wall_s = START
        self.elapsed_s = 50.0

    def wall(self) -> float:
        return self.wall_s

    def read_elapsed(self) -> float:
        return self.elapsed_s

    def wait(self, seconds: float) -> None:
        self.wall_s += seconds
        self.elapsed_s += seconds

    def clock(self, *, seen_s: float | None = None, hold_s: float = HOLD_S) -> StoreClock:
        return StoreClock(source=self.wall, elapsed=self.read_elapsed, hold_s=hold_s, seen_s=seen_s)


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def test_a_clock_that_runs_evenly_or_is_set_by_seconds_is_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    for step in (1.0, 3600.0, 86_400.0):
        machine.wait(step)
        assert clock.now() == clock.expiry_now() == at(machine.wall_s)
    machine.wall_s += 30
    assert clock.expiry_now() == at(machine.wall_s)
    machine.wall_s -= 30
    assert clock.expiry_now() == at(machine.wall_s)
    assert clock.jump_s == 0


def test_a_jump_counts_only_once_it_has_lasted() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.now()
    machine.wall_s += 7200
    machine.wait(10)
    assert clock.now() == clock.expiry_now() == at(START + 10)
    assert clock.jump_s == 7200
    machine.wait(HOLD_S - 1)
    assert clock.expiry_now() == at(START + 10 + HOLD_S - 1)
    machine.wait(1)
    assert clock.now() == clock.expiry_now() == at(machine.wall_s)
    assert clock.jump_s == 0


def test_a_jump_that_is_taken_back_leaves_nothing_behind() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_s += 7200
    clock.now()
    machine.wait(1800)
    clock.now()
    machine.wall_s -= 7200
    assert clock.expiry_now() == at(machine.wall_s)
    assert clock.jump_s == 0


def test_each_further_jump_is_held_anew() -> None:
    machine = Machine()
    time = SteadyTime(source=machine.wall, elapsed=machine.read_elapsed, hold_s=HOLD_S)
    for jump in range(1, 5):
        machine.wall_s += 3600
        machine.wait(HOLD_S - 60)
        assert time.read() == START + jump * (HOLD_S - 60)


def test_a_clock_that_is_ahead_at_the_start_stamps_but_nothing_expires_by_it_yet() -> None:
    machine = Machine()
    clock = machine.clock(seen_s=START - 7200)
    assert (clock.now(), clock.expiry_now()) == (at(START), at(START - 7200))
    machine.wait(HOLD_S)
    clock.expiry_now()
    assert clock.expiry_now() == at(machine.wall_s)


def test_what_is_stamped_by_a_clock_that_was_behind_at_the_start_does_not_expire_at_once() -> None:
    machine = Machine()
    machine.wall_s = 1000.0
    clock = machine.clock(seen_s=START)
    stamped = clock.now() + timedelta(seconds=60)
    assert stamped > clock.expiry_now()
    machine.wait(10)
    machine.wall_s = START + 20
    assert clock.expiry_now() == clock.now() == at(START + 20)


def test_without_a_hold_every_jump_counts_at_once() -> None:
    machine = Machine()
    clock = machine.clock(hold_s=0, seen_s=START - 86_400)
    assert clock.expiry_now() == at(START)
    machine.wall_s += 10**6
    assert clock.expiry_now() == at(machine.wall_s)

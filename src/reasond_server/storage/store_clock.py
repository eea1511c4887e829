"""The time by which a store stamps what it keeps, and the time by which that expires.

A clock that is wrong must not delete anything before its time. PostgreSQL brings a clock of its own, which all its
servers share. Whatever the source is, a jump of it counts only once it has lasted for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from reasond_server.storage.transactions import NOW, Job, Transactions
from reasond_server.types.values import value

_log = logging.getLogger("reasond.storage")
DEFAULT_HOLD_S: Final = 3600.0
"""How long a jump must last before it counts, in seconds, where nothing else is said."""
# More than clocks that are kept by NTP are ever set by, and than a round trip to a database takes.
_TOLERANCE_S: Final = 60.0
_NOTED_EVERY_S: Final = 30.0
_NOTE: Final = """
INSERT INTO store_clock (id, seen_time) VALUES (1, :seen) ON CONFLICT (id) DO UPDATE SET seen_time = excluded.seen_time
"""


@value
class Steadiness:
    """How a clock is kept from jumping; both are explained by `SteadyTime`. Without `elapsed` monotonic seconds do."""

    elapsed: Callable[[], float] | None = None
    hold_s: float = DEFAULT_HOLD_S


STEADY: Final = Steadiness()


class SteadyTime:
    """A time of day that follows `source`, except that a jump counts only after it has lasted for `hold_s` seconds.

    Args:
        source: seconds since 1970.
        elapsed: seconds that pass evenly, also while the machine sleeps where that can be known.
        hold_s: 0 follows every jump at once.
        start_s: the time to begin with; None: that of `source`. A difference between the two is a jump.
    """

    def __init__(
        self,
        *,
        source: Callable[[], float],
        elapsed: Callable[[], float],
        hold_s: float,
        start_s: float | None = None,
    ) -> None:
        self._source = source
        self._elapsed = elapsed
        self._hold_s = hold_s
        self._time_s = source() if start_s is None else start_s
        self._at_s = elapsed()
        self._held_since_s: float | None = None
        # By how much the source is ahead, or below 0 behind; 0 unless it jumped and that does not count yet.
        self.jump_s = 0.0

    def read(self) -> float:
        """Return the time in seconds since 1970."""
        source_s, at_s = self._source(), self._elapsed()
        expected_s = self._time_s + at_s - self._at_s
        jump_s = source_s - expected_s
        if abs(jump_s) <= _TOLERANCE_S:
            self._held_since_s = None
        elif self._held_since_s is None or abs(jump_s - self.jump_s) > _TOLERANCE_S:
            self._held_since_s = at_s
        is_held = self._held_since_s is not None and at_s - self._held_since_s < self._hold_s
        if not is_held:
            self._held_since_s = None
        self._time_s, self._at_s, self.jump_s = (expected_s, at_s, jump_s) if is_held else (source_s, at_s, 0.0)
        return self._time_s


class StoreClock:
    """The clock of one store; its times are in UTC.

    Args:
        source: the time of day in seconds since 1970.
        elapsed: as for `SteadyTime`.
        hold_s: as for `SteadyTime`.
        seen_s: the latest time that the store had; None if it is new, or ends with the process.
        keep: notes the time that it is given, in seconds since 1970, and corrects the source.
    """

    def __init__(
        self,
        *,
        source: Callable[[], float],
        elapsed: Callable[[], float],
        hold_s: float = DEFAULT_HOLD_S,
        seen_s: float | None = None,
        keep: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        # What is stamped before the time that the store had would expire at once.
        is_behind = seen_s is not None and source() < seen_s - _TOLERANCE_S
        start_s = seen_s if is_behind else None
        self._stamping = SteadyTime(source=source, elapsed=elapsed, hold_s=hold_s, start_s=start_s)
        self._expiring = SteadyTime(source=source, elapsed=elapsed, hold_s=hold_s, start_s=seen_s)
        self._hold_s = hold_s
        self._keep = keep
        self._told_s = 0.0

    @property
    def jump_s(self) -> float:
        """By how many seconds the source jumped, forwards or backwards, without that counting yet; 0 if it did not."""
        return abs(self._expiring.jump_s)

    def now(self) -> datetime:
        """Return the time of what happens now."""
        return datetime.fromtimestamp(self._stamping.read(), tz=UTC)

    def expiry_now(self) -> datetime:
        """Return the time by which things expire: that of `now`, or an earlier one where the source may be wrong."""
        return datetime.fromtimestamp(self._expiring.read(), tz=UTC)

    async def keep(self) -> None:
        """Note the time in the store and tell the operator of a jump; to be called every few seconds.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        seen_s, jump_s = self._expiring.read(), self._expiring.jump_s
        if abs(jump_s - self._told_s) > _TOLERANCE_S:
            _log.warning(
                "the clock jumped, or is off the time that the store had last: nothing expires by it meanwhile"
                if jump_s
                else "the clock of the store is certain again",
                extra={"jump_s": round(jump_s), "hold_s": self._hold_s},
            )
            self._told_s = jump_s
        if self._keep is not None:
            await self._keep(seen_s)


async def open_clock(
    transactions: Transactions,
    *,
    now: Callable[[], datetime] | None,
    elapsed: Callable[[], float],
    hold_s: float = DEFAULT_HOLD_S,
) -> StoreClock:
    """Return the clock of a database that `transactions` reach; without `now` the database tells the time."""
    offset_s, noted_at_s = 0.0, float("-inf")

    async def ask_database() -> None:
        nonlocal offset_s
        before_s = elapsed()
        ((time_s,),) = await transactions.select(f"SELECT {NOW}", {})
        offset_s = time_s - (before_s + elapsed()) / 2

    def note(seen_s: float) -> Job[None]:
        yield _NOTE, {"seen": seen_s}

    async def keep(seen_s: float) -> None:
        nonlocal noted_at_s
        if elapsed() - noted_at_s >= _NOTED_EVERY_S:
            await transactions.change(lambda: note(seen_s))
            noted_at_s = elapsed()
        if now is None:
            await ask_database()

    if now is None:
        await ask_database()
    rows = await transactions.select("SELECT seen_time FROM store_clock", {})
    return StoreClock(
        source=(lambda: elapsed() + offset_s) if now is None else (lambda: now().timestamp()),
        elapsed=elapsed,
        hold_s=hold_s,
        seen_s=rows[0][0] if rows else None,
        keep=keep,
    )

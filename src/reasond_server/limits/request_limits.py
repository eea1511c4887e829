"""Limits on the requests and the concurrent executions of a caller; refused requests are not counted.

In the memory of one process requests are counted in sliding windows. Each window has a fixed length; the previous one
counts in proportion to its share that the sliding window still covers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeAlias

from reasond_server.errors.base import DEFAULT_RETRY_S
from reasond_server.errors.limits import RateLimitedError
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

Cleanup: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""The part of a slot's release that must be awaited; the rest is already done."""

# Slots of still earlier lives have expired or were moved before.
_LIVES: Final = 16


@value
class RequestLimits:
    """Requests that a caller may make in a minute and in an hour, by weight; None means no limit."""

    per_minute: int | None = None
    per_hour: int | None = None


@value
class Denial:
    """The limit that was reached, and the seconds after which to retry; None if a retry never helps."""

    limit: str
    retry_after_s: float | None
    kind: Literal["rate", "concurrency"] = "rate"


def deny_concurrency(most: int) -> Denial:
    """Return the denial of an execution beyond `most` concurrent ones."""
    return Denial(limit=f"{most} executions at once", retry_after_s=DEFAULT_RETRY_S, kind="concurrency")


class RequestRates(Protocol):
    """The rates at which callers make requests."""

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """Count a request of `weight`; return a denial instead if it would exceed a limit."""


class Slots(Protocol):
    """A semaphore for each caller: every execution takes a slot under its own name and releases it at its end."""

    @property
    def most(self) -> int:
        """The number of slots of each caller."""

    async def take(self, caller: str, slot: str) -> bool:
        """Take a slot under the name `slot`; return whether one was free."""

    def release(self, caller: str, slot: str) -> Cleanup | None:
        """Release the slot; a second release does nothing. Return a cleanup to await, or None if there is none."""

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """Take `slot` in place of the slots `earlier`, at least one name; this never fails for lack of a slot."""


class MemorySlots:
    """The slots of one process: `most` for each caller."""

    def __init__(self, *, most: int) -> None:
        self.most = most
        self._taken: dict[str, set[str]] = {}

    async def take(self, caller: str, slot: str) -> bool:
        """See Slots."""
        taken = self._taken.get(caller)
        if taken is None:
            self._taken[caller] = {slot}
            return True
        if len(taken) >= self.most:
            return False
        taken.add(slot)
        return True

    def release(self, caller: str, slot: str) -> None:
        """See Slots."""
        taken = self._taken.get(caller)
        if taken is None:
            return
        taken.discard(slot)
        if not taken:
            del self._taken[caller]

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """See Slots."""
        taken = self._taken.setdefault(caller, set())
        taken.difference_update(earlier)
        taken.add(slot)


class RequestAdmission(Protocol):
    """Takes a slot and counts a request, or does neither."""

    async def admit(self, caller: str, slot: str, *, weight: int) -> Denial | None:
        """Take a slot under the name `slot` (none if empty) and count `weight`; return a denial if refused."""

    def release(self, caller: str, slot: str) -> Cleanup | None:
        """See Slots."""

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """See Slots."""


class DirectAdmission:
    """Admits by `slots`, then by `rates`; both are in this process or both in Redis. None means no limit."""

    def __init__(self, *, rates: RequestRates | None, slots: Slots | None) -> None:
        self._rates = rates
        self._slots = slots

    async def admit(self, caller: str, slot: str, *, weight: int) -> Denial | None:
        """See RequestAdmission."""
        if self._slots is not None and not await self._slots.take(caller, slot):
            return deny_concurrency(self._slots.most)
        denial = None if self._rates is None else await self._rates.count(caller, weight=weight)
        if denial is not None:
            await release_slot(self, caller, slot)
        return denial

    def release(self, caller: str, slot: str) -> Cleanup | None:
        """See RequestAdmission."""
        return None if self._slots is None else self._slots.release(caller, slot)

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """See RequestAdmission."""
        if self._slots is not None:
            await self._slots.move(caller, slot, earlier=earlier)


async def release_slot(admission: RequestAdmission, caller: str, slot: str) -> None:
    """Release a slot and wait until it is free."""
    cleanup = admission.release(caller, slot)
    if cleanup is not None:
        await cleanup()


class ExecutionPermit:
    """The right of a caller to one execution; `release` releases its slot at `gate`, a second call does nothing.

    A process that resumes the execution carries the permit over by its `name`.
    """

    def __init__(self, gate: RequestGate, caller: str, slot: str, name: str) -> None:
        self.name = name
        self._gate = gate
        self._caller = caller
        self._slot = slot
        self._is_left = False

    def release(self) -> None:
        """Release the slot without waiting, because the caller may be in the middle of a cancellation."""
        if not self._is_left:
            self._is_left = True
            self._gate.release(self._caller, self._slot)


class RequestGate:
    """Admits requests and releases slots when executions end; `has_slots` limits concurrent executions."""

    def __init__(self, *, admission: RequestAdmission, has_slots: bool, observer: Observer = UNOBSERVED) -> None:
        self._observer = observer
        self._admission = admission
        self._has_slots = has_slots
        self._releasing: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait until the slots of all permits that were left are free."""
        if self._releasing:
            await asyncio.wait(self._releasing)

    async def admit(self, caller: str, *, weight: int = 1) -> ExecutionPermit:
        """Return a permit for one more execution; leave it at the end.

        Raises:
            RateLimitedError: a limit is reached; nothing was counted.
        """
        # Unlike uuid4 this makes no temporary object.
        slot = os.urandom(16).hex() if self._has_slots else ""
        try:
            denial = await self._admission.admit(caller, slot, weight=weight)
        except BaseException:
            # If the caller was cancelled, the slot may be taken already.
            if slot:
                await release_slot(self._admission, caller, slot)
            raise
        if denial is not None:
            self._observer.caller_refused(denial.kind)
            raise _build_error(denial.limit, denial.retry_after_s)
        return ExecutionPermit(self, caller, slot, slot)

    async def carry_over(self, caller: str, name: str, *, life: int) -> ExecutionPermit | None:
        """Return a permit for the second `life`, or a later one, of the execution that the permit `name` admitted.

        It takes over the slots of the earlier lives, which may not have been released. None if concurrent executions
        are not limited.
        """
        if not self._has_slots:
            return None
        slot = _name_slot(name, life)
        earlier = [_name_slot(name, before) for before in range(max(1, life - _LIVES), life)]
        await self._admission.move(caller, slot, earlier=earlier)
        return ExecutionPermit(self, caller, slot, name)

    def release(self, caller: str, slot: str) -> None:
        """Release the slot of a caller, in a task if it has a cleanup to await; an empty name means no slot."""
        cleanup = self._admission.release(caller, slot) if slot else None
        if cleanup is not None:
            task = asyncio.create_task(cleanup(), name="slot of a caller")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)


def _name_slot(name: str, life: int) -> str:
    """Return the name of the slot for one life of an execution, which is its time in one process.

    Each life has its own name, so that the slots of two lives may be released in any order.
    """
    return name if life == 1 else f"{name}:{life}"


def _build_error(limit: str, retry_after_s: float | None) -> RateLimitedError:
    remedy = "Retry after the time given." if retry_after_s is not None else "Have [limits] raised: this never fits."
    return RateLimitedError(
        f"The caller may make {limit}", remedy=remedy, metadata={"limit": limit}, retry_after_s=retry_after_s
    )


MINUTE: Final = 60
HOUR: Final = 3600

_LEAST_WAIT_S: Final = 1.0
# At the exact end of the computed time the window still covers slightly too much.
_MARGIN_S: Final = 0.001
# For each new window this many others are examined to make room.
_EXAMINED: Final = 32


@value
class Rate:
    """At most `amount` requests in a sliding window of `seconds`, which is `MINUTE` or `HOUR`."""

    amount: int
    seconds: int

    @property
    def description(self) -> str:
        """The limit in words."""
        return f"{self.amount} requests in {'a minute' if self.seconds == MINUTE else 'an hour'}"


@value
class CoveredWindow:
    """What a sliding window covers: the counts of two windows, and the seconds for which each still counts."""

    before: int = 0
    before_s: float = 0.0
    count: int = 0
    count_s: float = 0.0


@dataclass(slots=True)
class _Window:
    """The counts of one key in the window `number` and in the previous window."""

    seconds: int
    number: int
    count: int = 0
    before: int = 0

    def move_to(self, number: int) -> None:
        """Advance to the window `number`, which is this one or a later one."""
        if number != self.number:
            self.before = self.count if number == self.number + 1 else 0
            self.number, self.count = number, 0


class MemoryWindows:
    """The windows of all callers; `monotonic` is in seconds.

    When there are `most` windows, each new one removes some windows that have expired.
    """

    def __init__(self, *, monotonic: Callable[[], float], most: int = 100_000) -> None:
        self._monotonic = monotonic
        self._most = most
        self._windows: dict[tuple[str, int], _Window] = {}

    def count(self, caller: str, rate: Rate, weight: int) -> bool:
        """Count `weight` and return True, unless the sliding window would then cover more than the limit."""
        now_s, seconds = self._monotonic(), rate.seconds
        window = self._windows.get((caller, seconds))
        if window is None:
            if weight > rate.amount:
                return False
            self._start_window((caller, seconds), weight, now_s)
            return True
        window.move_to(int(now_s // seconds))
        if window.count + window.before * _compute_rest(seconds, now_s) >= rate.amount - weight + 1:
            return False
        window.count += weight
        return True

    def take_back(self, caller: str, rate: Rate, weight: int) -> None:
        """Undo a count of `weight` that was just made; nothing may be awaited in between."""
        self._windows[caller, rate.seconds].count -= weight

    def measure(self, caller: str, rate: Rate) -> CoveredWindow:
        """Return what the caller's sliding window covers now."""
        now_s, seconds = self._monotonic(), rate.seconds
        window = self._windows.get((caller, seconds))
        if window is None:
            return CoveredWindow()
        window.move_to(int(now_s // seconds))
        rest_s = _compute_rest(seconds, now_s) * seconds
        return CoveredWindow(before=window.before, before_s=rest_s, count=window.count, count_s=rest_s + seconds)

    def _start_window(self, key: tuple[str, int], weight: int, now_s: float) -> None:
        if len(self._windows) >= self._most:
            self._forget_idle(now_s)
        _, seconds = key
        self._windows[key] = _Window(seconds=seconds, number=int(now_s // seconds), count=weight)

    def _forget_idle(self, now_s: float) -> None:
        """Remove some windows that have expired.

        It examines only a few windows, in rotation, so that no call is delayed.
        """
        for key in list(islice(self._windows, _EXAMINED)):
            window = self._windows.pop(key)
            if window.number >= int(now_s // window.seconds) - 1:
                self._windows[key] = window


class MemoryRates:
    """Counts requests of callers in the memory of one process."""

    def __init__(self, *, windows: MemoryWindows, limits: RequestLimits) -> None:
        self._windows = windows
        self._rates = list_rates(limits)

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; if several windows refuse, the denial names the longest.

        Counts made before a window refuses are undone; no other task runs in between.
        """
        if (denial := deny_unfitting(self._rates, weight)) is not None:
            return denial
        counted: list[Rate] = []
        for rate in reversed(self._rates):
            if not self._windows.count(caller, rate, weight):
                for each in counted:
                    self._windows.take_back(caller, each, weight)
                return deny(rate, self._windows.measure(caller, rate), weight)
            counted.append(rate)
        return None


def list_rates(limits: RequestLimits) -> Sequence[Rate]:
    """Return the limits that are set, shortest window first."""
    amounts = ((limits.per_minute, MINUTE), (limits.per_hour, HOUR))
    return [Rate(amount=amount, seconds=seconds) for amount, seconds in amounts if amount is not None]


def deny_unfitting(rates: Sequence[Rate], weight: int) -> Denial | None:
    """Return the denial of a `weight` that exceeds a whole limit, else None."""
    for rate in rates:
        if weight > rate.amount:
            return Denial(limit=rate.description, retry_after_s=None)
    return None


def deny(rate: Rate, covered: CoveredWindow, weight: int) -> Denial:
    """Return the denial of a `weight` for which the sliding window of `rate` has no room now."""
    room = rate.amount - weight + 1
    if covered.count >= room:
        wait_s = covered.count_s - rate.seconds * room / covered.count + _MARGIN_S
    elif covered.before:
        wait_s = covered.before_s - rate.seconds * (room - covered.count) / covered.before + _MARGIN_S
    else:
        # The window ended after it refused, so there is room.
        wait_s = 0.0
    return Denial(limit=rate.description, retry_after_s=max(_LEAST_WAIT_S, wait_s))


def _compute_rest(seconds: int, now_s: float) -> float:
    """Return the remaining share of the window, which is also the share of the previous one that still counts."""
    return 1 - now_s % seconds / seconds

"""How many requests a caller may make, and how many executions at once: refused ones count for nothing."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from reasond_server.errors import RateLimitedError
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.limits.concurrency import Rest, Slots
    from reasond_server.telemetry.observers import LimitObserver

_CONCURRENCY_WAIT_S = 1.0
# Places of lives before those have lapsed, or were moved already.
_LIVES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Requests that a caller may make in a minute and in an hour, by weight; None sets no bound."""

    per_minute: int | None = None
    per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """Which limit was met, and the seconds until it is worth trying again; None for never."""

    limit: str
    retry_after_s: float | None
    kind: Literal["rate", "concurrency"] = "rate"


def no_place(most: int) -> Denial:
    """Return the denial of an execution beyond `most` at once."""
    return Denial(limit=f"{most} executions at once", retry_after_s=_CONCURRENCY_WAIT_S, kind="concurrency")


class RequestRates(Protocol):
    """Counts requests."""

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """Count a request of `weight`, unless it would pass a limit; return which one then."""
        ...


class Admission(Protocol):
    """Takes a place and counts a request, both or neither."""

    async def admit(self, caller: str, place: str, *, weight: int) -> Denial | None:
        """Take the place named `place`, empty for none, and count `weight`; return which limit refuses both."""
        ...

    def give_back(self, caller: str, place: str) -> Rest | None:
        """See Slots."""
        ...

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Slots."""
        ...


class DirectAdmission:
    """Admits by `rates` and `slots` of one kind, of this process or in Redis: first a place, then the rates."""

    def __init__(self, *, rates: RequestRates | None, slots: Slots | None) -> None:
        self._rates = rates
        self._slots = slots

    async def admit(self, caller: str, place: str, *, weight: int) -> Denial | None:
        """See Admission."""
        if self._slots is not None and not await self._slots.take(caller, place):
            return no_place(self._slots.most)
        denial = None if self._rates is None else await self._rates.count(caller, weight=weight)
        if denial is not None:
            await given_back(self, caller, place)
        return denial

    def give_back(self, caller: str, place: str) -> Rest | None:
        """See Admission."""
        return None if self._slots is None else self._slots.give_back(caller, place)

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Admission."""
        if self._slots is not None:
            await self._slots.move(caller, place, earlier=earlier)


async def given_back(admission: Admission, caller: str, place: str) -> None:
    """Give a place back and wait until it is."""
    rest = admission.give_back(caller, place)
    if rest is not None:
        await rest()


class Permit:
    """The right of a caller to an execution more; `leave` gives its place back to `gate`, a second time does nothing.

    Whoever goes on with the execution carries it over by its `name`.
    """

    __slots__ = ("_caller", "_gate", "_is_left", "_place", "name")

    def __init__(self, *, gate: RequestGate, caller: str, place: str, name: str) -> None:
        self.name = name
        self._gate = gate
        self._caller = caller
        self._place = place
        self._is_left = False

    def leave(self) -> None:
        """Give it back, without waiting: whoever leaves may be in the middle of being cancelled."""
        if not self._is_left:
            self._is_left = True
            self._gate.give_back(self._caller, self._place)


class RequestGate:
    """Admits requests, and gives places back when executions end. `has_places` says whether those at once count."""

    def __init__(self, *, admission: Admission, has_places: bool, observer: LimitObserver = UNOBSERVED) -> None:
        self._observer = observer
        self._admission = admission
        self._has_places = has_places
        self._leaving: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait until all places that were left are given back."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def admit(self, caller: str, *, weight: int = 1) -> Permit:
        """Return the right to one execution more, which is to be left at its end.

        Raises:
            RateLimitedError: a limit is met; nothing was counted.
        """
        # Unlike uuid4 without an object that is thrown away.
        place = os.urandom(16).hex() if self._has_places else ""
        try:
            denial = await self._admission.admit(caller, place, weight=weight)
        except BaseException:
            # Whoever is cancelled while a place is taken may have it already.
            if place:
                await given_back(self._admission, caller, place)
            raise
        if denial is not None:
            self._observer.caller_refused(denial.kind)
            raise _limited(denial.limit, denial.retry_after_s)
        return Permit(gate=self, caller=caller, place=place, name=place)

    async def carry_over(self, caller: str, name: str, *, life: int) -> Permit | None:
        """Return the right to go on with what was admitted by the permit `name`, in its second `life` or a later one.

        It takes the place of those that the earlier lives had, which nobody may have given back. None where executions
        at once are not counted.
        """
        if not self._has_places:
            return None
        place = _place_in(name, life)
        earlier = [_place_in(name, before) for before in range(max(1, life - _LIVES), life)]
        await self._admission.move(caller, place, earlier=earlier)
        return Permit(gate=self, caller=caller, place=place, name=name)

    def give_back(self, caller: str, place: str) -> None:
        """Give the place of a caller back, in a task where that has to be waited for; an empty one is none."""
        rest = self._admission.give_back(caller, place) if place else None
        if rest is not None:
            task = asyncio.create_task(rest(), name="place of a caller")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)


def _place_in(name: str, life: int) -> str:
    """Return the place of a life of an execution: two of them may be given back in any order."""
    return name if life == 1 else f"{name}:{life}"


def _limited(limit: str, retry_after_s: float | None) -> RateLimitedError:
    remedy = "Retry after the time given." if retry_after_s is not None else "Have [limits] raised: this never fits."
    return RateLimitedError(
        f"The caller may make {limit}", remedy=remedy, metadata={"limit": limit}, retry_after_s=retry_after_s
    )

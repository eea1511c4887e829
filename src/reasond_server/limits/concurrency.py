"""Places for executions at once, by caller: given back on every way out."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Rest: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""What is still to be done, by whoever can wait for it; what need not wait is done."""


class Slots(Protocol):
    """Places of callers."""

    @property
    def most(self) -> int:
        """How many each caller has."""
        ...

    async def take(self, caller: str, place: str) -> bool:
        """Take a place named `place`; return whether there was one."""
        ...

    def give_back(self, caller: str, place: str) -> Rest | None:
        """Give it back; twice is once. Return what is left to do, None where that is nothing."""
        ...

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """Let `place` stand for the places `earlier`, at least one, whether they are still there and there is room."""
        ...


class MemorySlots:
    """The places of one process: `most` for each caller."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._taken: dict[str, set[str]] = {}

    @property
    def most(self) -> int:
        """See Slots."""
        return self._most

    async def take(self, caller: str, place: str) -> bool:
        """See Slots."""
        taken = self._taken.get(caller)
        if taken is None:
            self._taken[caller] = {place}
            return True
        if len(taken) >= self._most:
            return False
        taken.add(place)
        return True

    def give_back(self, caller: str, place: str) -> None:
        """See Slots."""
        taken = self._taken.get(caller)
        if taken is None:
            return
        taken.discard(place)
        if not taken:
            del self._taken[caller]

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Slots."""
        taken = self._taken.setdefault(caller, set())
        taken.difference_update(earlier)
        taken.add(place)

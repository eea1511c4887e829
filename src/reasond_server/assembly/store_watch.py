"""Looks at the store of a server every second: whether its files are in their places, its clock, how full it is."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError
from reasond_server.telemetry.observers import UNSEEN_STORE, StoreFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.assembly.stores import Stores

_LOOK_S: Final = 1.0
_MEASURED_EVERY: Final = 5
_FULL: Final = 0.98
_ROOM_AGAIN: Final = 0.95
_log = logging.getLogger("reasond.app")


class StoreWatch:
    """Calls `set_usable` with whether `stores` can be written, whenever that changes, and keeps their clock.

    Attributes:
        facts: how the store was last seen.
    """

    def __init__(self, stores: Stores, *, set_usable: Callable[[bool], None]) -> None:
        self._stores = stores
        self._set_usable = set_usable
        self._is_in_place = True
        self._is_answering = True
        self._is_full = False
        self.facts: StoreFacts = UNSEEN_STORE

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look_at_files()
            looks += 1
            if looks % _MEASURED_EVERY == 0 and self._is_in_place:
                await self._measure()

    async def _measure(self) -> None:
        fill, was_answering = self.facts.fill, self._is_answering
        try:
            await self._stores.clock.keep()
            fill = await self._stores.executions.room.read_fill()
            self._is_answering = True
        except ReasondError as error:
            self._is_answering = False
            if was_answering:
                _log.error("the store cannot be read and written; not ready: %s", error.full_message)
        except Exception:  # noqa: BLE001 - the task has no caller that could handle it
            self._is_answering = False
            _log.exception("the store could not be looked at; not ready")
        if self._is_answering is not was_answering:
            if self._is_answering:
                _log.info("the store answers again")
            self._report()
        self.facts = StoreFacts(fill=fill, clock_jump_s=self._stores.clock.jump_s)
        is_full = fill >= (_ROOM_AGAIN if self._is_full else _FULL)
        if is_full is not self._is_full:
            self._is_full = is_full
            _log.warning(
                "the store is full; not ready" if is_full else "the store has room again", extra={"fill": fill}
            )
            self._report()

    def _report(self) -> None:
        self._set_usable(self._is_in_place and self._is_answering and not self._is_full)

    async def _look_at_files(self) -> None:
        is_in_place = self._stores.is_in_place()
        if is_in_place is self._is_in_place:
            return
        self._is_in_place = is_in_place
        self._report()
        if is_in_place:
            _log.info("the store is in its place again")
            return
        _log.error("a file of the store was deleted, replaced or cut; not ready until it is back")
        if self._stores.transactions is not None:
            # What is committed in a deleted write-ahead log only would end with this process.
            with suppress(ReasondError):
                await self._stores.transactions.erase()

"""Looks at the store of a server every second: whether its files are in their places, and how full it is."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from reasond_server.errors import ReasondError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.stores import Stores

_LOOK_S: Final = 1.0
_log = logging.getLogger("reasond.app")


class StoreWatch:
    """Calls `set_usable` with whether `stores` can be written, whenever that changes."""

    def __init__(self, stores: Stores, *, set_usable: Callable[[bool], None]) -> None:
        self._stores = stores
        self._set_usable = set_usable
        self._is_in_place = True

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look()

    async def _look(self) -> None:
        is_in_place = self._stores.is_in_place()
        if is_in_place is self._is_in_place:
            return
        self._is_in_place = is_in_place
        self._set_usable(is_in_place)
        if is_in_place:
            _log.info("the store is in its place again; ready")
            return
        _log.error("a file of the store was deleted or replaced; not ready until it is back")
        if self._stores.transactions is not None:
            # What is committed in a deleted write-ahead log only would end with this process.
            with suppress(ReasondError):
                await self._stores.transactions.erase()

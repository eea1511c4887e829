"""A SQLite database in memory, which ends with the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from weakref import finalize

from reasond_server.storage.sqlite_file import (
    PAGE_BYTES,
    open_memory,
    read_used_bytes,
    run_transaction,
    translate_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection

ResultT = TypeVar("ResultT")


class SqliteMemory:
    """Runs jobs as `SqliteFile` does, but at once, on the event loop; closed when nobody refers to it any more.

    `max_bytes` bounds what is stored beside the empty tables; 0 means no limit.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._connection = open_memory()
        self._max_bytes = max_bytes
        self._empty_bytes = read_used_bytes(self._connection)
        if max_bytes:
            pages = (self._empty_bytes + max_bytes) // PAGE_BYTES
            self._connection.execute(f"PRAGMA max_page_count = {pages}").close()
        finalize(self, self._connection.close)

    async def write(self, job: Callable[[Connection], ResultT], *, then: Callable[[ResultT], None]) -> ResultT:
        """See SqliteDatabase."""
        with translate_errors():
            result = run_transaction(self._connection, "BEGIN", job)
        then(result)
        return result

    async def read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """See SqliteDatabase."""
        with translate_errors():
            return job(self._connection)

    async def read_size(self) -> int:
        """See SqliteDatabase."""
        return read_used_bytes(self._connection) - self._empty_bytes

    async def read_share(self) -> float:
        """See SqliteDatabase."""
        return await self.read_size() / self._max_bytes if self._max_bytes else 0.0

    async def read_share_of_disk(self) -> float:
        """See SqliteDatabase: it takes nothing of a disk."""
        return 0.0

    async def erase(self) -> None:
        """See SqliteDatabase: nothing of what is in memory is written to a disk."""

    async def aclose(self) -> None:
        """See SqliteDatabase: others may still refer to it."""

"""Statements on the database of a store in memory, behind the back of the store."""

from collections.abc import Sequence
from typing import Any

from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore


async def run_statement(store: MemoryExecutionStore, statement: str, *values: object) -> Sequence[Sequence[Any]]:
    """Run a statement of SQL with these values for its `?`; return its rows."""
    return await store._file.write(
        lambda connection: connection.execute(statement, values).fetchall(), then=lambda _: None
    )

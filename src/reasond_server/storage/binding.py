"""Statements with `:name` parameters on a connection to PostgreSQL."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.storage.postgres_pool import PgConnection

# The clock of the database server: the clocks of the processes differ.
NOW: Final = "extract(epoch FROM clock_timestamp())::float8"


async def fetch(connection: PgConnection, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Return the rows that `statement` returns."""
    cursor = await connection.execute(bind(statement), values)
    return await cursor.fetchall()


@cache
def bind(statement: str) -> bytes:
    """Return `statement` with its `:name` parameters in psycopg's form; `::` stays a cast."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.strip()).encode()

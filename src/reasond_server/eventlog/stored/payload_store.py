"""Payloads of executions: bodies by name in the database of the log, deleted with their execution."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.storage.transactions import Job, Rows, Transactions, Values

_ADD: Final = """
INSERT INTO payloads (tenant, execution_id, name, body)
SELECT :tenant, :execution_id, :name, :body
WHERE EXISTS (SELECT 1 FROM executions e WHERE e.tenant = :tenant AND e.execution_id = :execution_id)
ON CONFLICT (tenant, execution_id, name) DO
"""
_PUT: Final = f"{_ADD} NOTHING"
_REPLACE: Final = f"{_ADD} UPDATE SET body = excluded.body"
_READ: Final = """
SELECT name, body FROM payloads
WHERE tenant = :tenant AND execution_id = :execution_id AND name IN (SELECT key FROM json_each(:names))
"""
# A name in between begins with `after`, because no character of a name is above the tilde.
_LIST: Final = """
SELECT name, body FROM payloads
WHERE tenant = :tenant AND execution_id = :execution_id AND name > :after AND name < :until
ORDER BY name
"""
_CLEAR: Final = "DELETE FROM payloads WHERE tenant = :tenant AND execution_id = :execution_id"
_REMOVE: Final = f"{_CLEAR} AND name = :name"


class PayloadStore:
    """Keeps the payloads of executions. Every method raises StoreUnavailableError if the store cannot be reached."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def put(self, tenant: str, execution_id: str, bodies: Mapping[str, bytes], *, replaces: bool = False) -> None:
        """Keep bodies by name; a deleted execution keeps nothing.

        A name that is taken keeps its body, unless the new one `replaces` it.
        """
        place = {"tenant": tenant, "execution_id": execution_id}
        values = [place | {"name": each, "body": body} for each, body in bodies.items()]
        await self._transactions.change(partial(_change, _REPLACE if replaces else _PUT, values))

    async def read(self, tenant: str, execution_id: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return bodies by name; those that are not there are left out."""
        wanted = json.dumps(dict.fromkeys(names, 0))
        values = {"tenant": tenant, "execution_id": execution_id, "names": wanted}
        return {name: bytes(body) for name, body in await self._transactions.select(_READ, values)}

    async def list(self, tenant: str, execution_id: str, prefix: str, *, after: str = "") -> Mapping[str, bytes]:
        """Return the bodies whose names begin with `prefix` and follow `after`, by name and in its order."""
        values = {
            "tenant": tenant,
            "execution_id": execution_id,
            "after": after or prefix,
            "until": f"{prefix}~",
        }
        return {name: bytes(body) for name, body in await self._transactions.select(_LIST, values)}

    async def remove(self, tenant: str, execution_id: str, name: str) -> None:
        """Remove a body, if it is there."""
        values = [{"tenant": tenant, "execution_id": execution_id, "name": name}]
        await self._transactions.change(partial(_change, _REMOVE, values))

    async def clear(self, tenant: str, execution_id: str) -> None:
        """Remove all that is kept of an execution."""
        values = [{"tenant": tenant, "execution_id": execution_id}]
        await self._transactions.change(partial(_change, _CLEAR, values))
        await self._transactions.erase()


def _change(statement: str, values: Sequence[Values]) -> Job[Rows]:
    return (yield statement, values)

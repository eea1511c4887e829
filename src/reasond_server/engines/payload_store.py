"""Payloads of engines in the database of the log: written once under a name, deleted with the execution.

Names begin with what they are: `payload/` what an engine holds by its digest alone, `record/` a completed call or
check, `batch/` events for the process with the log.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.storage.transactions import Job, Rows, Transactions, Values

PAYLOAD: Final = "payload/"
RECORD: Final = "record/"
BATCH: Final = "batch/"

_PUT: Final = """
INSERT INTO payloads (tenant, execution_id, name, body)
SELECT :tenant, :execution_id, :name, :body
WHERE EXISTS (SELECT 1 FROM executions e WHERE e.tenant = :tenant AND e.execution_id = :execution_id)
ON CONFLICT DO NOTHING
"""
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


class PayloadStore:
    """Keeps the payloads of executions. Every method raises StoreUnavailableError if the store cannot be reached."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def put(self, tenant: str, execution_id: str, bodies: Mapping[str, bytes]) -> None:
        """Keep bodies by name; a name that is taken keeps its body, and a deleted execution keeps nothing."""
        name = {"tenant": tenant, "execution_id": execution_id}
        values = [name | {"name": each, "body": body} for each, body in bodies.items()]
        await self._transactions.change(partial(_change, _PUT, values))

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

    async def clear(self, tenant: str, execution_id: str) -> None:
        """Remove all that is kept of an execution."""
        values = [{"tenant": tenant, "execution_id": execution_id}]
        await self._transactions.change(partial(_change, _CLEAR, values))
        await self._transactions.erase()


def _change(statement: str, values: Sequence[Values]) -> Job[Rows]:
    return (yield statement, values)

"""Webhooks in OpenAI's form: what became of a response in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic_core import to_json

from reasond_server.executions.desk import read_log
from reasond_server.protocols.responses.response_json import ResponseRef
from reasond_server.protocols.responses.response_service import write_response
from reasond_server.types.turns import Reentered

if TYPE_CHECKING:
    from reasond_server.eventlog.store import ExecutionStore

_TOLD: Final = frozenset({"completed", "failed", "cancelled", "incomplete"})


async def write_response_event(
    store: ExecutionStore, tenant: str, execution_id: str, *, sequence: int, created_s: float
) -> bytes | None:
    """Return the event of the response that had ended at the event `sequence` of its log, such as response.completed.

    None if it was not asked for in the background, or is gone. `created_s` is in seconds since 1970.

    Raises:
        ReasondError: the store cannot be read.
    """
    log = await read_log(store, tenant, execution_id, until=sequence)
    if log is None:
        return None
    begun = [each.sequence - 1 for each in log.events if isinstance(each.event, Reentered)]
    ref = ResponseRef(execution_id=execution_id, after=begun[-1] if begun else 0)
    response = write_response(ref, log)
    status = response["status"]
    if not response["background"] or status not in _TOLD:
        return None
    data = {"id": ref.response_id}
    event = {"id": f"evt_{execution_id}_{sequence}", "object": "event", "created_at": int(created_s)}
    return to_json({**event, "type": f"response.{status}", "data": data})

"""Shared by the stores in SQLite and PostgreSQL: the sessions, as SQL with `:name` parameters.

The rows of the executions say which execution of a session is open, and a unique index permits only one. So a process
that ends, or an earlier release, cannot leave a session with an open execution that does not exist.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.contract import build_leased_error, build_session_not_found_error, require_entry
from reasond_server.eventlog.stored.codec import decode_state
from reasond_server.eventlog.stored.rows import PartRow, is_storable
from reasond_server.eventlog.stored.sql_store import CLAIMED, EXISTS, Database
from reasond_server.types import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reasond_server.eventlog.store import Claim, SessionClaim
    from reasond_server.storage.transactions import Job, Rows, Values

_COUNT_SUSPENDED: Final = "SELECT count(*) FROM executions WHERE state = 'suspended' AND kind = :kind"
# Written as in the indexes; otherwise the databases do not use them.
_IS_OPEN: Final = "session_id <> '' AND state IN ('running', 'suspended')"
_OPEN: Final = (
    f"SELECT execution_id FROM executions e WHERE e.tenant = s.tenant AND e.session_id = s.session_id AND {_IS_OPEN}"  # noqa: S608 - constants of ours
)
_COLUMNS: Final = f"""s.session_id, s.revision, s.state, coalesce(({_OPEN}), ''), s.execution_count, s.create_time,
    s.update_time, s.expire_time"""
_KEPT: Final = f"(s.expire_time > :now OR EXISTS ({_OPEN}))"
_FIND: Final = f"SELECT {_COLUMNS} FROM sessions s WHERE tenant = :tenant AND session_id = :session_id AND {_KEPT}"  # noqa: S608 - as above
_PAGE: Final = f"""
SELECT {_COLUMNS} FROM sessions s
WHERE tenant = :tenant AND {_KEPT}
    AND (update_time < :before_time OR (update_time = :before_time AND session_id < :before_id))
ORDER BY update_time DESC, session_id DESC LIMIT :size
"""  # noqa: S608 - as above
# A row without revision, which only the transaction that made it sees: there is then always one to lock.
MAKE: Final = """
INSERT INTO sessions (tenant, session_id, revision, state, execution_count, create_time, update_time, expire_time)
VALUES (:tenant, :session_id, 0, '{}', 0, :now, :now, :session_expiry) ON CONFLICT DO NOTHING
"""
LOCK: Final = """
SELECT revision, state, execution_count, create_time, expire_time FROM sessions
WHERE tenant = :tenant AND session_id = :session_id
"""
OPEN_ONE: Final = f"""
SELECT execution_id, state FROM executions WHERE tenant = :tenant AND session_id = :session_id AND {_IS_OPEN}
"""  # noqa: S608 - as above
ENTER: Final = """
UPDATE sessions SET revision = :revision, state = :session_state, execution_count = :execution_count,
    create_time = :session_create_time, update_time = :now, expire_time = :session_expiry
WHERE tenant = :tenant AND session_id = :session_id
"""
# An execution whose request id was released has left its session before.
_IS_IN_IT: Final = """
WHERE tenant = :tenant AND session_id = (
    SELECT e.session_id FROM executions e WHERE e.tenant = :tenant AND e.execution_id = :execution_id)
"""
LEAVE: Final = f"UPDATE sessions SET revision = revision + 1, update_time = :now {_IS_IN_IT}"  # noqa: S608 - as above
LEAVE_STATE: Final = f"""
UPDATE sessions SET revision = revision + 1, update_time = :now, state = :session_state, expire_time = :session_expiry
{_IS_IN_IT}
"""  # noqa: S608 - as above
# Executions that have expired stay expired: their session may have a successor of the same id.
KEEP: Final = """
UPDATE executions SET expire_time = (
    SELECT s.expire_time FROM sessions s WHERE s.tenant = :tenant AND s.session_id = :session_id)
WHERE tenant = :tenant AND session_id = :session_id AND session_id <> '' AND expire_time > :now AND expire_time < (
    SELECT s.expire_time FROM sessions s WHERE s.tenant = :tenant AND s.session_id = :session_id)
"""
DELETE_EXECUTIONS: Final = """
DELETE FROM executions WHERE tenant = :tenant AND session_id = :session_id AND session_id <> ''
RETURNING execution_id
"""
DELETE: Final = "DELETE FROM sessions WHERE tenant = :tenant AND session_id = :session_id"
EXPIRED: Final = f"""
SELECT tenant, session_id FROM sessions s WHERE expire_time <= :now AND NOT EXISTS ({_OPEN}) LIMIT :limit
"""  # noqa: S608 - as above

# The session may be deleted between the statement that makes it and the one that locks it.
_TRIES: Final = 3


def _build_claim_columns(claim: SessionClaim) -> dict[str, object]:
    """Return the parameters of the statements that let an execution enter a session."""
    if not claim.session_id or not is_storable(claim.session_id):
        raise InternalError("a session has a name that cannot be stored")
    return {"session_id": claim.session_id, "session_expiry": claim.expire_time.timestamp()}


def _enter(claim: SessionClaim, row: Sequence[Any], other: Rows, *, now: float) -> dict[str, object]:
    """Return the parameters of ENTER for an execution that enters the session.

    `row` is the row of LOCK, with revision 0 if the session is made for this execution. `other` are the rows of
    OPEN_ONE.

    Raises: as `ExecutionStore.create`.
    """
    revision, state, execution_count, create_time, expire_time = row
    if expire_time <= now and not other:
        revision = 0
    name, open_state = other[0] if other else ("", "")
    require_entry(claim, revision=revision, other=name, is_running=open_state == "running")
    expiry, is_new = claim.expire_time.timestamp(), not revision
    return {
        "revision": revision + 1,
        "session_state": "{}" if is_new else state,
        "execution_count": 1 if is_new else execution_count + 1,
        "session_create_time": now if is_new else create_time,
        "session_expiry": expiry if is_new else max(expiry, expire_time),
    }


class AnsweredError(Exception):
    """Undoes the transaction: the request was known, and its claim is the answer."""

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self.claim = claim


def create_in_session(
    session: SessionClaim, values: Mapping[str, Any], *, create: Callable[[Values], Job[Claim]], locking: str
) -> Job[Claim]:
    """Create an execution with `create` in a session; `locking` ends the statement that locks the session's row.

    Raises:
        AnsweredError: the request id stands for another execution, or the execution was created before.
    """
    values = {**values, **_build_claim_columns(session)}
    row = yield from _lock(values, locking)
    # Only now, because another call with the same request id may have had the lock before.
    is_repeated = yield EXISTS, values
    held = (yield CLAIMED, values) if values["request_id"] else []
    if is_repeated or (held and held[0][0] != values["inherits"]):
        raise AnsweredError((yield from create(values)))
    entered = _enter(session, row, (yield OPEN_ONE, values), now=values["now"])
    claim = yield from create(values)
    if claim.execution_id != values["execution_id"]:
        raise AnsweredError(claim)
    yield ENTER, {**values, **entered}
    yield KEEP, values
    return claim


def _lock(values: Values, locking: str) -> Job[Sequence[Any]]:
    """Return the row of the session, which nobody else changes until the transaction ends."""
    for _ in range(_TRIES):
        yield MAKE, values
        if rows := (yield f"{LOCK} {locking}", values):
            return rows[0]
    raise InternalError("a session was deleted whenever it was asked for")


def leave_sessions(rows: Iterable[PartRow], *, now: float) -> Job[None]:
    """Free the sessions of the executions that have ended with `rows`."""
    for row in rows:
        if row.leaves_session:
            execution, end = row.part.execution, row.part.session_end
            values = {
                "tenant": execution.tenant,
                "execution_id": execution.execution_id,
                "session_id": execution.session_id,
                "now": now,
                "session_state": row.session_state,
                "session_expiry": None if end is None else end.expire_time.timestamp(),
            }
            yield LEAVE if end is None else LEAVE_STATE, values
            yield KEEP, values


def _require_closed(session_id: str, other: Rows) -> None:
    """Refuse the deletion of a session with an open execution; `other` are the rows of OPEN_ONE.

    Raises:
        TurnLeasedError: there is one.
    """
    if other:
        name, state = other[0]
        raise build_leased_error(session_id, name, is_running=state == "running")


class SqlSessions:
    """A SessionStore over a database; `now` is the clock (UTC)."""

    def __init__(self, *, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def find(self, tenant: str, session_id: str) -> Session:
        """See SessionStore."""
        if is_storable(tenant, session_id):
            values = {"tenant": tenant, "session_id": session_id, "now": self._now().timestamp()}
            for row in await self._database.select(_FIND, values):
                return _read_session(tenant, row)
        raise build_session_not_found_error(session_id)

    async def page(self, tenant: str, *, size: int, before: tuple[float, str] | None) -> Sequence[Session]:
        """See SessionStore."""
        before_time, before_id = before or (math.inf, "")
        if not is_storable(tenant, before_id):
            return []
        values: Mapping[str, object] = {
            "tenant": tenant,
            "now": self._now().timestamp(),
            "before_time": before_time,
            "before_id": before_id,
            "size": size,
        }
        return [_read_session(tenant, row) for row in await self._database.select(_PAGE, values)]

    async def delete(self, tenant: str, session_id: str) -> None:
        """See SessionStore."""
        await self.find(tenant, session_id)
        values = {"tenant": tenant, "session_id": session_id}

        def remove() -> Job[Sequence[str]]:
            yield f"{LOCK} {self._database.locking}", values
            _require_closed(session_id, (yield OPEN_ONE, values))
            names = [name for (name,) in (yield DELETE_EXECUTIONS, values)]
            yield DELETE, values
            return names

        await self._database.remove(remove)

    async def count_suspended(self, kind: str) -> int:
        """See SessionStore."""
        rows = await self._database.select(_COUNT_SUSPENDED, {"kind": kind})
        count: int = rows[0][0]
        return count


def _read_session(tenant: str, row: Sequence[Any]) -> Session:
    session_id, revision, state, open_execution, execution_count, create_time, update_time, expire_time = row
    return Session(
        session_id=session_id,
        tenant=tenant,
        revision=revision,
        state=decode_state(state),
        open_execution=open_execution,
        execution_count=execution_count,
        create_time=datetime.fromtimestamp(create_time, tz=UTC),
        update_time=datetime.fromtimestamp(update_time, tz=UTC),
        expire_time=datetime.fromtimestamp(expire_time, tz=UTC),
    )

"""The sessions of the store in memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.contract import build_leased_error, build_session_not_found_error, require_entry
from reasond_server.eventlog.sizes import estimate_json_size
from reasond_server.types import ExecutionState, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import SessionClaim, SessionEnd
    from reasond_server.types import Execution


@dataclass(slots=True)
class SessionRow:
    """A session, the executions in it that the store holds, and the approximate size of its state in bytes."""

    session: Session
    executions: dict[str, None] = field(default_factory=dict)
    size: int = 0


class SessionTable:
    """The sessions by tenant and id, at most `max_sessions`; `find` returns an execution that the store holds.

    A tenant that has more than `max_per_tenant` is the first to lose one; None sets no bound.
    """

    def __init__(
        self,
        *,
        max_sessions: int,
        find: Callable[[str], Execution | None],
        now: Callable[[], datetime],
        max_per_tenant: int | None = None,
    ) -> None:
        self._max = max_sessions
        self._max_per_tenant = max_per_tenant
        self._counts: Counter[str] = Counter()
        self._find = find
        self._now = now
        # The one that was updated longest ago comes first.
        self._rows: OrderedDict[tuple[str, str], SessionRow] = OrderedDict()

    def find(self, tenant: str, session_id: str) -> Session | None:
        """Return the session; None if there is none, or if it has expired."""
        row = self._rows.get((tenant, session_id))
        return None if row is None or self._is_past(row) else self._session_of(row)

    def page(self, tenant: str) -> Sequence[Session]:
        """Return all sessions of a tenant."""
        return [self._session_of(row) for (of, _), row in self._rows.items() if of == tenant and not self._is_past(row)]

    def require_entry(self, tenant: str, claim: SessionClaim) -> None:
        """Refuse an execution that may not enter the session. Raises as `ExecutionStore.create`."""
        session = self.find(tenant, claim.session_id)
        if session is None:
            require_entry(claim, revision=0)
            return
        other = session.open_execution
        require_entry(claim, revision=session.revision, other=other, is_running=self._is_running(other))

    def find_surplus(self, tenant: str, session_id: str) -> SessionRow | None:
        """Return the session to delete before this one is created; None if it exists or there is room.

        Raises:
            StoreFullError: every session has an open execution.
        """
        if (tenant, session_id) in self._rows or len(self._rows) < self._max:
            return None
        oldest = self.find_oldest(sparing=session_id)
        if oldest is None:
            raise StoreFullError(
                f"The store holds {len(self._rows)} sessions with open executions and has no room for another",
                remedy="Wait until one has ended, or raise [store] max_executions.",
                metadata={"max_executions": str(self._max)},
            )
        return oldest

    def find_oldest(self, *, sparing: str) -> SessionRow | None:
        """Return the closed session that is to go first, except those with the id `sparing`; None if there is none.

        It is the one that was updated longest ago; first those of the tenant with most sessions, if it has too many.
        """
        closed = [
            row
            for row in self._rows.values()
            if row.session.session_id != sparing and not self._session_of(row).open_execution
        ]
        ((most_of, most),) = self._counts.most_common(1) or [("", 0)]
        if self._max_per_tenant is not None and most > self._max_per_tenant:
            own = next((row for row in closed if row.session.tenant == most_of), None)
            if own is not None:
                return own
        return next(iter(closed), None)

    def enter(self, execution: Execution, claim: SessionClaim) -> int:
        """Let a new execution that may enter its session do so; return by how many bytes the sessions grew."""
        key, now, freed = (execution.tenant, claim.session_id), self._now(), 0
        row = self._rows.get(key)
        if row is not None and self._is_past(row):
            freed, row = self.remove(row), None
        if row is None:
            session = Session(
                session_id=claim.session_id,
                tenant=execution.tenant,
                revision=0,
                state={},
                open_execution="",
                execution_count=0,
                create_time=now,
                update_time=now,
                expire_time=claim.expire_time,
            )
            self._rows[key] = row = SessionRow(session)
            self._counts[execution.tenant] += 1
        row.executions[execution.execution_id] = None
        row.session = replace(
            row.session,
            revision=row.session.revision + 1,
            open_execution=execution.execution_id,
            execution_count=row.session.execution_count + 1,
            update_time=now,
            expire_time=max(row.session.expire_time, claim.expire_time),
        )
        self._rows.move_to_end(key)
        return -freed

    def leave(self, execution: Execution, end: SessionEnd | None) -> int:
        """Free the session of an execution that has ended; return by how many bytes the sessions grew."""
        row = self.row_of(execution)
        if row is None:
            return 0
        session, before = row.session, row.size
        if end is not None:
            session, row.size = (
                replace(session, state=end.state, expire_time=end.expire_time),
                estimate_json_size(end.state),
            )
        row.session = replace(session, revision=session.revision + 1, open_execution="", update_time=self._now())
        self._rows.move_to_end((session.tenant, session.session_id))
        return row.size - before

    def row_of(self, execution: Execution) -> SessionRow | None:
        """Return the session that the execution belongs to; None if it belongs to none."""
        row = self._rows.get((execution.tenant, execution.session_id))
        return row if row is not None and execution.execution_id in row.executions else None

    def detach(self, execution: Execution) -> None:
        """Let an execution belong to no session any more."""
        row = self.row_of(execution)
        if row is not None:
            del row.executions[execution.execution_id]

    def find_closed(self, tenant: str, session_id: str) -> SessionRow:
        """Return a session that may be removed. Raises as `SessionStore.delete`."""
        session = self.find(tenant, session_id)
        if session is None:
            raise build_session_not_found_error(session_id)
        if session.open_execution:
            name = session.open_execution
            raise build_leased_error(session_id, name, is_running=self._is_running(name))
        return self._rows[tenant, session_id]

    def remove(self, row: SessionRow) -> int:
        """Remove a session, but not its executions; return how many bytes are free."""
        tenant = row.session.tenant
        del self._rows[tenant, row.session.session_id]
        self._counts[tenant] -= 1
        if not self._counts[tenant]:
            del self._counts[tenant]
        return row.size

    def find_expired(self, *, limit: int) -> Sequence[SessionRow]:
        """Return up to `limit` sessions that have expired."""
        return [row for row in self._rows.values() if self._is_past(row)][:limit]

    def _session_of(self, row: SessionRow) -> Session:
        """Return the session; the execution itself decides whether it is open."""
        session = row.session
        name = session.open_execution
        execution = self._find(name) if name in row.executions else None
        if name and (execution is None or execution.state.has_ended):
            row.session = session = replace(session, open_execution="")
        return session

    def _is_running(self, name: str) -> bool:
        execution = self._find(name)
        return execution is not None and execution.state is ExecutionState.RUNNING

    def _is_past(self, row: SessionRow) -> bool:
        return row.session.expire_time <= self._now() and not self._session_of(row).open_execution

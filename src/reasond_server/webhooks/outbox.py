"""The outbox: notices in the store until their receivers have confirmed them, and what is sent for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.eventlog.stored.rows import notice_columns
from reasond_server.eventlog.stored.sql_store import ADD_NOTICE
from reasond_server.types.values import value

if TYPE_CHECKING:
    from datetime import datetime

    from reasond_server.eventlog.store import Notice
    from reasond_server.storage.transactions import Job, Transactions
    from reasond_server.tools.address_checks import AddressPolicy, Target

_DUE: Final = "SELECT 1 FROM notices WHERE endpoint = :endpoint AND due_time <= :now LIMIT 1"
# Of two processes that claim the same notice the second waits for the first and then finds it no longer due.
_CLAIM: Final = """
UPDATE notices SET due_time = :until, attempts = attempts + 1
WHERE endpoint = :endpoint AND due_time <= :now AND notice_id IN (
    SELECT notice_id FROM notices WHERE endpoint = :endpoint AND due_time <= :now ORDER BY due_time LIMIT :limit)
RETURNING notice_id, tenant, execution_id, sequence, body, create_time, attempts
"""
_COLUMNS: Final = ("notice_id", "tenant", "execution_id", "sequence", "body", "create_time", "attempts")
_DELETE: Final = "DELETE FROM notices WHERE endpoint = :endpoint AND notice_id = :notice_id"
# Not after another process has claimed it.
_PUT_OFF: Final = """
UPDATE notices SET due_time = :until
WHERE endpoint = :endpoint AND notice_id = :notice_id AND attempts = :attempts
"""
_FORGET: Final = "DELETE FROM notices WHERE create_time < :oldest"


@value
class Letter:
    """A notice that this process sends; `attempts` counts this attempt, `create_time` is in seconds since 1970."""

    endpoint: str
    notice_id: str
    tenant: str
    execution_id: str
    sequence: int
    body: str
    create_time: float
    attempts: int


class Outbox:
    """Notices by receiver; `now` is the clock of the store. The methods raise as those of an `ExecutionStore`."""

    def __init__(self, rows: Transactions, *, now: Callable[[], datetime]) -> None:
        self._rows = rows
        self._now = now

    async def add(self, notices: Sequence[Notice]) -> None:
        """Add notices that belong to no execution; those that are there already stay as they are."""
        await self._run(ADD_NOTICE, *notice_columns(notices, now=self._now().timestamp()))

    async def claim(self, endpoint: str, *, lease_s: float, limit: int) -> Sequence[Letter]:
        """Take up to `limit` notices that are due; nobody else gets them within `lease_s` seconds."""
        now = self._now().timestamp()
        values = {"endpoint": endpoint, "now": now, "until": now + lease_s, "limit": limit}
        # Read first: a query that finds nothing must not occupy the writer of a file.
        if not await self._rows.select(_DUE, {"endpoint": endpoint, "now": now}):
            return []

        def job() -> Job[Sequence[Letter]]:
            rows = yield _CLAIM, values
            return [Letter(endpoint=endpoint, **dict(zip(_COLUMNS, row, strict=True))) for row in rows]

        return await self._rows.change(job, repeats=False)

    async def remove(self, letter: Letter) -> None:
        """Forget a notice that is confirmed, or given up."""
        await self._run(_DELETE, {"endpoint": letter.endpoint, "notice_id": letter.notice_id})

    async def put_off(self, letter: Letter, *, wait_s: float) -> None:
        """Let a notice be due in `wait_s` seconds."""
        values = {"endpoint": letter.endpoint, "notice_id": letter.notice_id, "attempts": letter.attempts}
        await self._run(_PUT_OFF, values | {"until": self._now().timestamp() + wait_s})

    async def forget(self, *, older_than_s: float) -> None:
        """Remove what is too old to be sent, as for receivers that are no longer configured."""
        await self._run(_FORGET, {"oldest": self._now().timestamp() - older_than_s})

    def measure_age(self, letter: Letter) -> float:
        """Return the seconds since a notice was added, by the clock of the store: that of the machine may be ahead."""
        return self._now().timestamp() - letter.create_time

    async def _run(self, statement: str, *values: dict[str, object]) -> None:
        def job() -> Job[None]:
            for each in values:
                yield statement, each

        await self._rows.change(job)


Render = Callable[["Letter"], Awaitable[bytes | None]]
"""Returns the body of a letter in the form of a wire; None if there is nothing to tell."""


@value
class Parcel:
    """One request: the vetted `target`, the `policy` of its addresses, and what it is sent."""

    target: Target
    policy: AddressPolicy
    headers: Mapping[str, str]
    body: bytes


class Packer(Protocol):
    """Makes the parcels of the letters with its `name` as endpoint."""

    @property
    def name(self) -> str:
        """The endpoint."""

    @property
    def lanes(self) -> int:
        """How many send at the same time, so that a slow receiver among several holds up some of the others only."""

    async def pack(self, letter: Letter, render: Render, now: datetime) -> Parcel | None:
        """Return what is sent `now`; None for nothing.

        Raises:
            ReasondError: it cannot be made now.
        """

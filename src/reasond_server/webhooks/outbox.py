"""The outbox: notices in the store until their receivers have confirmed them, and what is sent for each.

Clients name receivers for single executions: they are kept in the store, and deleted, with the execution. Their hosts
are those that the operator allows. Their headers hold secrets of the client, which nobody reads back.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.eventlog.store import Notice
from reasond_server.eventlog.stored.rows import notice_columns
from reasond_server.eventlog.stored.sql_store import ADD_NOTICE
from reasond_server.tools.address_checks import AddressPolicy, RefusedAddressError
from reasond_server.types import ExecutionState
from reasond_server.types.values import value

if TYPE_CHECKING:
    from datetime import datetime

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.eventlog.stored.payload_store import PayloadStore
    from reasond_server.storage.transactions import Job, Transactions
    from reasond_server.tools.address_checks import Target

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
TASKS: Final = ":tasks"
"""The endpoint of notices for these receivers; no receiver of the operator has such a name."""
MOST_RECEIVERS: Final = 10
"""Most receivers of one execution."""
_PREFIX: Final = "push/"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_VALUE: Final = re.compile(r"[ -~]{0,4096}")


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


@value
class TaskReceiver:
    """A receiver; `shown` is what the client may read of it, without its `headers`."""

    name: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    shown: Mapping[str, Any]


class TaskReceivers:
    """Keeps receivers, and packs what they are sent.

    Every method that reads or writes raises StoreUnavailableError if the store cannot be reached.
    """

    name: Final = TASKS
    lanes: Final = 4

    def __init__(self, payloads: PayloadStore, outbox: Outbox, store: ExecutionStore, *, policy: AddressPolicy) -> None:
        self._payloads = payloads
        self._outbox = outbox
        self._store = store
        self._policy = policy

    def check(self, receiver: TaskReceiver) -> None:
        """Refuse a receiver that could not be told.

        Raises:
            InvalidRequestError: its name, its host or a header is refused.
        """
        problems = []
        if not _NAME.fullmatch(receiver.name):
            problems.append(Violation(field="id", description="must have 1 to 128 letters, digits, '.', '_' and '-'"))
        if not all(map(_VALUE.fullmatch, receiver.headers.values())):
            text = "must have at most 4,096 characters, all of them printable ASCII"
            problems.append(Violation(field="authentication", description=text))
        try:
            self._policy.vet_url(receiver.url)
        except RefusedAddressError as error:
            problems.append(Violation(field="url", description=f"is refused: {error}"))
        if problems:
            raise InvalidRequestError.of(*problems)

    async def put(self, tenant: str, execution_id: str, receiver: TaskReceiver) -> None:
        """Keep a receiver, in place of the one with its name; it is told at once if the execution does not run.

        Raises:
            InvalidRequestError: `check` refuses it, or the execution has too many.
            ExecutionNotFoundError: it is gone.
        """
        self.check(receiver)
        found = await self.list(tenant, execution_id)
        is_new = receiver.name not in found
        if not is_new or len(found) < MOST_RECEIVERS:
            bodies = {f"{_PREFIX}{receiver.name}": to_json(asdict(receiver))}
            await self._payloads.put(tenant, execution_id, bodies, replaces=True)
            # Others may have come meanwhile: whoever finds too many goes again, and nobody who was there before.
            found = await self.list(tenant, execution_id)
        if is_new and len(found.keys() - {receiver.name}) >= MOST_RECEIVERS:
            await self.remove(tenant, execution_id, receiver.name)
            text = f"must be one of at most {MOST_RECEIVERS} receivers of a task; delete another one"
            raise InvalidRequestError.at("id", text)
        # Read after that: who is put while it ends is told by its last event, or here, by the same id.
        execution = await self._store.find(tenant, execution_id)
        if execution.state is not ExecutionState.RUNNING:
            sequence = execution.last_sequence
            key = f"msg_{execution_id}_{sequence}_{receiver.name}"
            await self._outbox.add([_notice(key, tenant, execution_id, sequence, receiver.name)])

    async def list(self, tenant: str, execution_id: str) -> Mapping[str, TaskReceiver]:
        """Return the receivers of an execution by their names."""
        bodies = await self._payloads.list(tenant, execution_id, _PREFIX)
        return {each.name: each for each in (TaskReceiver(**from_json(body)) for body in bodies.values())}

    async def remove(self, tenant: str, execution_id: str, name: str) -> None:
        """Forget a receiver, if it is there."""
        await self._payloads.remove(tenant, execution_id, f"{_PREFIX}{name}")

    async def pack(self, letter: Letter, render: Render, now: datetime) -> Parcel | None:
        """Return what a letter sends to the receiver that its body names; one without a name becomes one for each.

        None if there is nothing to send.

        Raises:
            RefusedAddressError: the operator does not allow its host any more.
            ReasondError: the store cannot be reached.
        """
        del now
        found = await self.list(letter.tenant, letter.execution_id)
        if not letter.body:
            place = letter.tenant, letter.execution_id, letter.sequence
            await self._outbox.add([_notice(f"{letter.notice_id}_{name}", *place, name) for name in found])
            return None
        receiver = found.get(letter.body)
        body = None if receiver is None else await render(letter)
        if receiver is None or body is None:
            return None
        headers = {"Content-Type": "application/json", "webhook-id": letter.notice_id, **receiver.headers}
        return Parcel(target=self._policy.vet_url(receiver.url), policy=self._policy, headers=headers, body=body)


def _notice(key: str, tenant: str, execution_id: str, sequence: int, body: str) -> Notice:
    return Notice(notice_id=key, endpoint=TASKS, tenant=tenant, execution_id=execution_id, sequence=sequence, body=body)

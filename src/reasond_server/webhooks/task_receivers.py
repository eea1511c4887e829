"""Receivers that clients name for single executions: kept in the store, and deleted, with the execution.

Their hosts are those that the operator allows. Their headers hold secrets of the client, which nobody reads back.
"""

from __future__ import annotations

import re
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.eventlog.store import Notice
from reasond_server.eventlog.stored.rows import notice_columns
from reasond_server.eventlog.stored.sql_store import ADD_NOTICE
from reasond_server.tools.address_checks import AddressPolicy, RefusedAddressError
from reasond_server.types.values import value
from reasond_server.webhooks.parcels import Parcel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from reasond_server.storage.transactions import Job, Transactions
    from reasond_server.webhooks.outbox import Letter, Outbox
    from reasond_server.webhooks.parcels import Render

TASKS: Final = ":tasks"
"""The endpoint of notices for these receivers; no receiver of the operator has such a name."""
MOST_RECEIVERS: Final = 10
"""Most receivers of one execution."""
_PREFIX: Final = "push/"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_VALUE: Final = re.compile(r"[ -~]{0,4096}")
_AT: Final = "tenant = :tenant AND execution_id = :execution_id"
# The character after the slash bounds the names that begin with the prefix.
_LIST: Final = f"SELECT name, body FROM payloads WHERE {_AT} AND name > 'push/' AND name < 'push0' ORDER BY name"  # noqa: S608 - fixed texts
_PUT: Final = f"""
INSERT INTO payloads (tenant, execution_id, name, body)
SELECT :tenant, :execution_id, :name, :body WHERE EXISTS (SELECT 1 FROM executions WHERE {_AT})
ON CONFLICT (tenant, execution_id, name) DO UPDATE SET body = excluded.body
"""  # noqa: S608 - as above
_REMOVE: Final = f"DELETE FROM payloads WHERE {_AT} AND name = :name"  # noqa: S608 - as above
_STATE: Final = f"SELECT state, last_sequence FROM executions WHERE {_AT}"  # noqa: S608 - as above


@value
class TaskReceiver:
    """A receiver; `shown` is what the client may read of it, without its `headers`."""

    name: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    shown: str = ""


class TaskReceivers:
    """Keeps receivers, and packs what they are sent.

    Every method that reads or writes raises StoreUnavailableError if the store cannot be reached.
    """

    name: Final = TASKS
    lanes: Final = 4

    def __init__(
        self, rows: Transactions, outbox: Outbox, *, policy: AddressPolicy, now: Callable[[], datetime]
    ) -> None:
        self._rows = rows
        self._outbox = outbox
        self._policy = policy
        self._now = now

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
        """
        self.check(receiver)
        name = receiver.name
        place = {"tenant": tenant, "execution_id": execution_id}
        now = self._now().timestamp()

        def job() -> Job[bool]:
            rows = yield _LIST, place
            if len({each for each, _ in rows} - {f"{_PREFIX}{name}"}) >= MOST_RECEIVERS:
                return False
            yield _PUT, place | {"name": f"{_PREFIX}{name}", "body": to_json(asdict(receiver))}
            for state, sequence in (yield _STATE, place):
                if state != "running":
                    key = f"msg_{execution_id}_{sequence}_{name}"
                    yield ADD_NOTICE, notice_columns([_notice(key, tenant, execution_id, sequence, name)], now=now)
            return True

        if not await self._rows.change(job):
            text = f"must be one of at most {MOST_RECEIVERS} receivers of a task; delete another one"
            raise InvalidRequestError.of(Violation(field="id", description=text))

    async def list(self, tenant: str, execution_id: str) -> Mapping[str, TaskReceiver]:
        """Return the receivers of an execution by their names."""
        rows = await self._rows.select(_LIST, {"tenant": tenant, "execution_id": execution_id})
        return {name.removeprefix(_PREFIX): TaskReceiver(**from_json(bytes(body))) for name, body in rows}

    async def remove(self, tenant: str, execution_id: str, name: str) -> None:
        """Forget a receiver, if it is there."""
        values = {"tenant": tenant, "execution_id": execution_id, "name": f"{_PREFIX}{name}"}

        def job() -> Job[None]:
            yield _REMOVE, values

        await self._rows.change(job)

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

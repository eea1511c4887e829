"""Notices by which the writes of one process reach the watchers in all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.eventlog.store import Change
from reasond_server.storage.transactions import bind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond_server.storage.postgres_pool import PgConnection

CHANNEL = "reasond_executions"
# PostgreSQL accepts 8,000 bytes in one notice; an id is assumed to take at most 128.
_IDS_PER_NOTICE = 60
NOTIFY = "SELECT pg_notify(:channel, :payload)"


async def notify_grown(connection: PgConnection, names: Sequence[str]) -> None:
    """Notify the watchers of these executions, in all processes, when the transaction commits."""
    for payload in build_grown_notices(names):
        await connection.execute(bind(NOTIFY), {"channel": CHANNEL, "payload": payload})


def build_grown_notices(names: Sequence[str]) -> list[str]:
    """Return the notices that these executions have new events."""
    return [
        build_notice(Change.GREW, names[start : start + _IDS_PER_NOTICE])
        for start in range(0, len(names), _IDS_PER_NOTICE)
    ]


def build_notice(change: Change, names: Iterable[str]) -> str:
    """Return the notice of a change of these executions."""
    return " ".join((change.value, *names))

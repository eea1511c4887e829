"""Builds what sends webhooks, from the settings and the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reasond_server.errors.base import SettingsError
from reasond_server.protocols.responses.webhook_events import write_response_event
from reasond_server.webhooks.courier import Courier
from reasond_server.webhooks.outbox import Outbox

if TYPE_CHECKING:
    from reasond_server.assembly.stores import Stores
    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.telemetry.observers import WebhookObserver
    from reasond_server.webhooks.outbox import Letter
    from reasond_server.webhooks.webhook_policy import WebhookPolicy


def build_courier(policy: WebhookPolicy, stores: Stores, clock: Clock, observer: WebhookObserver) -> Courier | None:
    """Return what sends webhooks; None if nobody is told.

    Raises:
        SettingsError: the store is in memory, or the address of a receiver is refused.
    """
    if not policy.endpoints:
        return None
    if stores.transactions is None:
        raise SettingsError(
            "[webhooks] needs a store that outlives the process",
            remedy="Set [store] url to a SQLite file or to PostgreSQL, or remove webhooks.endpoints.",
        )
    return Courier(
        outbox=Outbox(stores.transactions, now=stores.clock.expiry_now),
        policy=policy,
        render=partial(_render, stores.executions),
        now=stores.clock.now,
        random=clock.random,
        observer=observer,
    )


async def _render(store: ExecutionStore, letter: Letter) -> bytes | None:
    return await write_response_event(
        store, letter.tenant, letter.execution_id, sequence=letter.sequence, created_s=letter.create_time
    )

"""Builds what sends webhooks, from the settings and the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydantic_core import to_json

from reasond_server.errors.base import SettingsError
from reasond_server.eventlog.stored.payload_store import PayloadStore
from reasond_server.executions.desk import read_log
from reasond_server.protocols.a2a.task_writer import write_log
from reasond_server.protocols.responses.response_service import write_response_event
from reasond_server.tools.address_checks import AddressPolicy
from reasond_server.types.values import value
from reasond_server.webhooks.outbox import TASKS, Letter, Outbox, TaskReceivers
from reasond_server.webhooks.webhook_sender import WebhookSender, add_notices

if TYPE_CHECKING:
    from reasond_server.assembly.stores import Stores
    from reasond_server.base.clock import Clock
    from reasond_server.config.settings import A2aSettings
    from reasond_server.eventlog.store import Append, ExecutionStore
    from reasond_server.telemetry.observers import Observer
    from reasond_server.webhooks.webhook_policy import WebhookPolicy


@value
class Telling:
    """What tells receivers: the sender, and those that clients name, if the operator allows any."""

    sender: WebhookSender
    policy: WebhookPolicy
    tasks: TaskReceivers | None

    def tell(self, part: Append) -> Append:
        """Return `part` with its notices."""
        return add_notices(self.policy.endpoints, part, has_tasks=self.tasks is not None)


def build_telling(
    policy: WebhookPolicy, a2a: A2aSettings, stores: Stores, clock: Clock, observer: Observer
) -> Telling | None:
    """Return what sends webhooks; None if nobody is told.

    Raises:
        SettingsError: the store is in memory, or the address of a receiver is refused.
    """
    if not policy.endpoints and not a2a.has_push:
        return None
    if stores.transactions is None:
        raise SettingsError(
            "[webhooks] and [a2a] push_hosts need a store that outlives the process",
            remedy="Set [store] url to a SQLite file or to PostgreSQL, or remove webhooks.endpoints and push_hosts.",
        )
    now = stores.clock.expiry_now
    outbox, tasks = Outbox(stores.transactions, now=now), None
    if a2a.has_push:
        private = a2a.push_hosts if a2a.push_allow_private else ()
        allowed = AddressPolicy(
            allow_hosts=a2a.push_hosts, allow_private_hosts=private, allow_http=a2a.push_allow_private
        )
        tasks = TaskReceivers(PayloadStore(stores.transactions), outbox, stores.executions, policy=allowed)
    sender = WebhookSender(
        outbox=outbox,
        policy=policy,
        render=partial(_render, stores.executions),
        now=stores.clock.now,
        random=clock.random,
        observer=observer,
        more=() if tasks is None else (tasks,),
    )
    return Telling(sender=sender, policy=policy, tasks=tasks)


async def _render(store: ExecutionStore, letter: Letter) -> bytes | None:
    if letter.endpoint == TASKS:
        log = await read_log(store, letter.tenant, letter.execution_id, until=letter.sequence)
        return None if log is None else to_json({"task": write_log(log).write()})
    return await write_response_event(
        store, letter.tenant, letter.execution_id, sequence=letter.sequence, created_s=letter.create_time
    )

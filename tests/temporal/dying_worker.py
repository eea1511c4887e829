"""A worker that dies by SIGKILL in the activity that `DIE_IN` names: its work is done, and nobody knows of it yet."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio import activity

from reasond_server.cli.commands.worker import work
from reasond_server.engines.repair_worker import RepairWorker
from reasond_server.engines.workflow import COMMIT
from reasond_server.eventlog.stored.payload_store import PayloadStore

if TYPE_CHECKING:
    from collections.abc import Mapping

_perform = RepairWorker._perform
_put = PayloadStore.put


def die_in(name: str) -> None:
    """End this process if it works on that activity."""
    if activity.in_activity() and activity.info().activity_type == name == os.environ["DIE_IN"]:
        with Path("done.txt").open("a", encoding="utf-8") as done:
            done.write(f"{activity.info().activity_id}\n")
        os.kill(os.getpid(), signal.SIGKILL)


async def perform_and_die(self: RepairWorker, packed: bytes, do: Any) -> bytes:
    reply = await _perform(self, packed, do)
    die_in(activity.info().activity_type)
    return reply


async def put_and_die(self: PayloadStore, tenant: str, execution_id: str, bodies: Mapping[str, bytes]) -> None:
    await _put(self, tenant, execution_id, bodies)
    die_in(COMMIT)


def main() -> None:
    """Work on both queues."""
    RepairWorker._perform = perform_and_die  # type: ignore[assignment,method-assign]  # the test's point
    PayloadStore.put = put_and_die  # type: ignore[assignment,method-assign]  # likewise
    work(config=None, environ=os.environ)

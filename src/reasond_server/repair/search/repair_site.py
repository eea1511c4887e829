"""Services of one execution for writers and judges of its candidates, in this or another process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.repair.critics.code_reviews import Perform
    from reasond_server.runs.effects import Effects
    from reasond_server.runs.run import Run
    from reasond_server.runs.run_trace import RunTrace


@value
class RepairSite:
    """The execution of a repair.

    Attributes:
        tenant: whose code it is.
        execution_id: its id.
        nonce: the first nonce of the execution.
        trace: where spans belong.
        publish: takes text of a reply, and its index, for those who follow it live.
        wait_for_room: returns when more may be recorded.
        perform: makes a check or a review once per execution.
    """

    tenant: str
    execution_id: str
    nonce: str
    trace: RunTrace
    publish: Callable[[int, str], None]
    wait_for_room: Callable[[], Awaitable[None]]
    perform: Perform


def build_site(run: Run) -> RepairSite:
    """Return the site of a run of this process."""

    async def wait_for_room() -> None:
        if not run.log.has_room:
            await run.log.wait_for_room()

    return RepairSite(
        tenant=run.identity.tenant,
        execution_id=run.identity.execution_id,
        nonce=run.mark,
        trace=run.trace,
        publish=run.subscribers.publish,
        wait_for_room=wait_for_room,
        perform=partial(perform_once, run.effects),
    )


async def perform_once(effects: Effects, kind: str, digest: str, make: Callable[[], Awaitable[str]]) -> str:
    """Perform a check or a review once per execution: return what it returned in an earlier life, or run it now.

    It is repeated where the server went down in between: it changes nothing outside its workspace.
    """
    async with effects.begin(kind, digest, is_idempotent=True) as effect:
        if effect.recorded is not None:
            return effect.recorded
        body = await make()
        await effect.complete(body)
        return body

"""Sessions: executions of one tenant that belong together, of which at most one is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from datetime import datetime

    from reasond_server.types.tasks import Json


@value
class Session:
    """What executions that belong together share.

    Attributes:
        revision: 1 when the first execution starts, and one more at each further start and at each end.
        state: what the last execution that ended left for the next one; it is content of the caller.
        open_execution: the execution that runs or is suspended; empty if there is none.
        execution_count: how many executions were started in it.
        update_time: the time of the last start or end.
        expire_time: when it is no longer kept; while an execution is open it is kept longer.
    """

    session_id: str
    tenant: str
    revision: int
    state: Json
    open_execution: str
    execution_count: int
    create_time: datetime
    update_time: datetime
    expire_time: datetime

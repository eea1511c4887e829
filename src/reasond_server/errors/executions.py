"""Executions that are not there any more, or that nobody can go on with."""

from __future__ import annotations

from reasond_server.errors.base import LookupFailedError, Reason, ReasondError, RequestError


class ExecutionNotFoundError(LookupFailedError):
    """There is no such execution for this caller."""

    declaration = Reason(
        "EXECUTION_NOT_FOUND",
        "NOT_FOUND",
        remedy="Check the id and the token's subject; executions are forgotten when their retention ends.",
    )


class CursorExpiredError(LookupFailedError):
    """The log of the execution is no longer stored."""

    declaration = Reason(
        "CURSOR_EXPIRED", "OUT_OF_RANGE", remedy="Start the task again; the events after the cursor are no longer kept."
    )


class ExecutionRunningError(RequestError):
    """The execution has not ended, and what was asked for does not stop it."""

    declaration = Reason(
        "EXECUTION_RUNNING",
        "FAILED_PRECONDITION",
        remedy="Cancel it, or wait for its end.",
    )


class NotResumableError(ReasondError):
    """The server that ran the execution stopped, and no other server can resume it."""

    declaration = Reason(
        "NOT_RESUMABLE",
        "ABORTED",
        is_fault=True,
        remedy="Read what was done (`GetExecution`), then start the task again, with another request id if it had one.",
    )

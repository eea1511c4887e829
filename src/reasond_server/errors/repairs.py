"""Every error of repairs and snapshots; `errors` draws the whole tree and exports these classes."""

from __future__ import annotations

from reasond_server.errors.base import DEFAULT_RETRY_S, LookupFailedError, Reason, ReasondError, RequestError


class SnapshotNotFoundError(LookupFailedError):
    """There is no such snapshot for this caller, or contents of it are missing."""

    declaration = Reason(
        "SNAPSHOT_NOT_FOUND",
        "NOT_FOUND",
        remedy="Create the snapshot again and upload the contents that the answer names as missing.",
    )


class NotReproducedError(RequestError):
    """No check fails on the original code, so there is nothing to repair."""

    declaration = Reason(
        "NOT_REPRODUCED",
        "FAILED_PRECONDITION",
        remedy="Send a check that fails on this code, or set allow_unreproduced; no token was spent.",
    )


class CheckUnusableError(RequestError):
    """A check cannot be run on the original code, or its result cannot be read."""

    declaration = Reason(
        "CHECK_UNUSABLE",
        "FAILED_PRECONDITION",
        remedy="Mend the check so that it runs in the environment it names; no token was spent.",
    )


class EngineUnavailableError(ReasondError):
    """The engine that works repairs out cannot be reached."""

    declaration = Reason(
        "ENGINE_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        retry_after_s=DEFAULT_RETRY_S,
        remedy="Retry; if it stays so, have the operator look at the cluster that [engine] names; nothing was spent.",
    )


class EngineFailedError(ReasondError):
    """The engine ended a repair without a result: somebody terminated it there, or it took too long."""

    declaration = Reason(
        "ENGINE_FAILED",
        "ABORTED",
        is_fault=True,
        remedy="Start the repair again; what was done until then is kept.",
    )


class SandboxUnavailableError(RequestError):
    """No sandbox works on this server, so no code is run; or git does not, with which patches are made."""

    declaration = Reason(
        "SANDBOX_UNAVAILABLE",
        "FAILED_PRECONDITION",
        remedy="Have the operator run `reasond doctor`, which says what is missing; no token was spent.",
    )

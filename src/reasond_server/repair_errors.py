"""Every error of repairs and snapshots; `errors` draws the whole tree and exports these classes."""

from __future__ import annotations

from reasond_server.reasons import LookupFailedError, Reason, RequestError


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


class SandboxUnavailableError(RequestError):
    """No sandbox works on this server, so no code is run; or git does not, with which patches are made."""

    declaration = Reason(
        "SANDBOX_UNAVAILABLE",
        "FAILED_PRECONDITION",
        remedy="Have the operator run `reasond doctor`, which says what is missing; no token was spent.",
    )

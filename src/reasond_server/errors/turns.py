"""Every error of turns and sessions; `errors` draws the whole tree and exports these classes.

They stand here because a module has at most 500 lines.
"""

from __future__ import annotations

from reasond_server.errors.base import LookupFailedError, Reason, RequestError


class EtagMismatchError(RequestError):
    """The resource changed since its etag was read."""

    declaration = Reason(
        "ETAG_MISMATCH", "ABORTED", remedy="Read the resource again, apply the change to it, and send its new etag."
    )


class TurnLeasedError(RequestError):
    """Another caller is working on the turn."""

    declaration = Reason(
        "TURN_LEASED",
        "ABORTED",
        remedy="Wait for the other caller to finish, or follow the turn instead of starting it.",
    )


class ToolOutcomeUnknownError(RequestError):
    """It is not known whether a tool ran; a person has to decide."""

    declaration = Reason(
        "TOOL_OUTCOME_UNKNOWN",
        "ABORTED",
        remedy="Find out whether the tool ran, then say so; it is never run again by itself.",
    )


class ToolNotRegisteredError(RequestError):
    """The model called a tool that was not offered to it in that call."""

    declaration = Reason(
        "TOOL_NOT_REGISTERED",
        "FAILED_PRECONDITION",
        remedy="Start the turn again; if the model repeats it, name the tool in the mode or use a stronger model.",
    )


class ToolFailedInTurnError(RequestError):
    """A tool of the turn failed, and `on_tool_failure` says that the turn ends then."""

    declaration = Reason(
        "TOOL_FAILED",
        "ABORTED",
        remedy="Read the tool's result, mend its cause and start another turn; the session is usable. With"
        ' `on_tool_failure = "tell"` the model is told instead.',
    )


class ToolResultsMissingError(RequestError):
    """A re-entry lacks results or decisions for calls that were handed off."""

    declaration = Reason(
        "TOOL_RESULTS_MISSING",
        "FAILED_PRECONDITION",
        -32602,
        remedy="Send results or decisions for all calls at once, with the same etag; nothing was consumed.",
    )


class ToolResultsUnexpectedError(RequestError):
    """A re-entry has results or decisions that do not fit the calls that were handed off."""

    declaration = Reason(
        "TOOL_RESULTS_UNEXPECTED",
        "INVALID_ARGUMENT",
        -32602,
        remedy="Mend what the violations name and send everything again with the same etag; nothing was consumed.",
    )


class HandoffExpiredError(RequestError):
    """The client's results came after the hand-off expired."""

    declaration = Reason(
        "HANDOFF_EXPIRED",
        "FAILED_PRECONDITION",
        -32602,
        remedy="Start another turn in the same session; this one has ended.",
    )


class TurnNotAwaitingError(RequestError):
    """The turn does not wait for results: it runs, or it has ended."""

    declaration = Reason(
        "TURN_NOT_AWAITING",
        "FAILED_PRECONDITION",
        -32602,
        remedy="Read the turn: attach to it while it runs, or start another one after it has ended.",
    )


class TurnNotFoundError(LookupFailedError):
    """There is no such turn for this caller."""

    declaration = Reason(
        "TURN_NOT_FOUND",
        "NOT_FOUND",
        -32602,
        remedy="Check the id and the token's subject; turns are forgotten with their session.",
    )


class SessionNotFoundError(LookupFailedError):
    """There is no such session for this caller."""

    declaration = Reason(
        "SESSION_NOT_FOUND",
        "NOT_FOUND",
        -32602,
        remedy="Check the id and the token's subject; a session is forgotten when its retention ends.",
    )

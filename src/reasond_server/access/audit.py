"""The audit log: one line for each access decision; never the content of a request or an answer.

Lines go to the logger `reasond.audit`. They have `operation`, `permission`, `outcome` ("allowed", "denied", or
"unavailable" if the server could not serve any caller), `reason` (of the error table; empty if allowed), `subject`,
`tenant`, `key_id` (of an API key; empty for other tokens), `call_id` and, for an operation on an execution,
`execution_id`.

A transport begins a decision once it knows the caller. The core ends it if the operation concerns an execution, else
the transport ends it. Later events are not logged, except that a re-entry into a turn has further lines: which calls it
settled, approved or refused, or that it was rejected.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.access.permissions import Operation
from reasond_server.errors.access import AccessError, IssuerUnavailableError
from reasond_server.errors.base import LookupFailedError, ReasondError
from reasond_server.errors.limits import (
    DrainingError,
    LimitError,
    OverloadedError,
    SlowConsumerError,
    StoreFullError,
    StoreUnavailableError,
)
from reasond_server.telemetry.logs import emit_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import Principal

_DENIALS: Final = (AccessError, LimitError, LookupFailedError)
# These errors do not depend on the caller.
_OUTAGES: Final = (OverloadedError, DrainingError, StoreFullError, StoreUnavailableError, IssuerUnavailableError)
UNREAD: Final = Operation("Unread")
"""The operation of a JSON-RPC body that is not read because the token in its header is refused."""
_EXECUTION_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_log = logging.getLogger("reasond.audit")


@dataclass(slots=True, kw_only=True)
class Decision:
    """Whether `principal` may do `operation`; logged once."""

    operation: Operation
    principal: Principal
    call_id: str
    is_logged: bool = False

    def allow(self, execution_id: str = "") -> None:
        """Log that the operation is allowed; `execution_id` is empty if it concerns no execution."""
        if not self.is_logged:
            self.is_logged = True
            log_allowed(self.operation, principal=self.principal, call_id=self.call_id, execution_id=execution_id)

    def end(self, error: ReasondError, execution_id: str = "") -> None:
        """Log that the operation ended with `error`: a refusal of this caller is a denial, of every caller an outage.

        Any other error, such as that of an invalid request, means that the operation was allowed.
        """
        if not isinstance(error, _DENIALS) or isinstance(error, SlowConsumerError):
            self.allow(execution_id)
        elif not self.is_logged:
            self.is_logged = True
            log_denied(
                self.operation,
                error,
                principal=self.principal,
                call_id=self.call_id,
                execution_id=execution_id or error.execution_id or "",
            )


_CURRENT: Final[ContextVar[Decision | None]] = ContextVar("reasond_audit_decision", default=None)


def begin(operation: Operation, *, principal: Principal, call_id: str = "") -> Decision:
    """Begin the decision of the current call; it lasts as long as the context of the call."""
    decision = Decision(operation=operation, principal=principal, call_id=call_id)
    _CURRENT.set(decision)
    return decision


def concern(execution_id: str) -> None:
    """Log that the current call is allowed and concerns the execution."""
    decision = _CURRENT.get()
    if decision is not None:
        decision.allow(execution_id)


def refuse(error: ReasondError, execution_id: str = "") -> None:
    """Log that the current call is refused with `error`; `execution_id` is the caller's unchecked text."""
    decision = _CURRENT.get()
    if decision is not None:
        decision.end(error, execution_id)


def log_act(
    outcome: str, *, execution_id: str, tool_calls: Sequence[str], reason_length: int = 0, reason: str = ""
) -> None:
    """Log what the caller of the current call decided or settled about tool calls of an execution.

    `outcome` is "settled", "approved" or "refused"; of the reason that the caller gives, only its length is logged.
    It is "rejected", with the `reason` of the error table, for a re-entry that did not fit and changed nothing.
    """
    decision = _CURRENT.get()
    if decision is not None:
        own = decision.operation
        line = _describe_allowed(own, principal=decision.principal, call_id=decision.call_id, execution_id=execution_id)
        act = {"outcome": outcome, "reason": reason, "tool_calls": ",".join(tool_calls)}
        _write(line | act | {"reason_length": str(reason_length)})


def log_allowed(operation: Operation, *, principal: Principal, call_id: str = "", execution_id: str = "") -> None:
    """Log that `principal` may do `operation`."""
    _write(_describe_allowed(operation, principal=principal, call_id=call_id, execution_id=execution_id))


def log_denied(
    operation: Operation,
    error: ReasondError,
    *,
    principal: Principal | None = None,
    call_id: str = "",
    execution_id: str = "",
) -> None:
    """Log that a caller may not, or cannot, do `operation`, with the reason; `principal` is None if unknown."""
    _write(
        {
            "operation": operation.name,
            "call_id": call_id,
            "execution_id": _clean_id(execution_id),
            "subject": principal.subject if principal else "",
            "tenant": principal.tenant if principal else "",
            # A revoked or expired key has no principal, but the operator wants to know who still uses it.
            **_name_key(principal.key_id if principal else error.metadata.get("key_id", "")),
            "permission": error.metadata.get("permission", operation.permission),
            "outcome": "unavailable" if isinstance(error, _OUTAGES) else "denied",
            "reason": error.reason,
        }
    )


def _describe_allowed(operation: Operation, *, principal: Principal, call_id: str, execution_id: str) -> dict[str, str]:
    return {
        "operation": operation.name,
        "call_id": call_id,
        "execution_id": _clean_id(execution_id),
        "subject": principal.subject,
        "tenant": principal.tenant,
        **_name_key(principal.key_id),
        "permission": operation.permission,
        "outcome": "allowed",
        "reason": "",
    }


def _clean_id(execution_id: str) -> str:
    """Return an id that a line may contain; a caller may send any text as an id, even content."""
    return execution_id if not execution_id or _EXECUTION_ID.fullmatch(execution_id) else "malformed"


def _write(fields: dict[str, str]) -> None:
    emit_line(_log, logging.INFO, "%s %s", fields["operation"], fields["outcome"], fields=fields)


def _name_key(key_id: str) -> dict[str, str]:
    """Return the field of a line with the id of an API key; none if no key was used.

    The name of the field looks like a secret to the logs, which then examine each value of the line.
    """
    return {"key_id": key_id} if key_id else {}

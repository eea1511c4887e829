"""The audit log: one line for each decision about who may do what; never what was asked or answered.

Lines go to the logger `reasond.audit`. They have `operation`, `permission`, `outcome` ("allowed" or "denied"),
`reason` (of the error table; empty where allowed), `subject`, `tenant`, `request_id` and, where one is concerned,
`execution_id`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reasond_server.access.permissions import OPERATIONS

if TYPE_CHECKING:
    from reasond_server.errors import ReasondError
    from reasond_server.types import Principal

_log = logging.getLogger("reasond.audit")


def allowed(operation: str, *, principal: Principal, request_id: str = "", execution_id: str = "") -> None:
    """Note that `principal` may."""
    fields = {"permission": OPERATIONS.get(operation, ""), "outcome": "allowed", "reason": ""}
    _write(operation, fields, principal=principal, request_id=request_id, execution_id=execution_id)


def denied(
    operation: str,
    error: ReasondError,
    *,
    principal: Principal | None = None,
    request_id: str = "",
    execution_id: str = "",
) -> None:
    """Note that somebody may not, and why; `principal` is None where nobody was recognised."""
    permission = error.metadata.get("permission", OPERATIONS.get(operation, ""))
    fields = {"permission": permission, "outcome": "denied", "reason": error.reason}
    _write(operation, fields, principal=principal, request_id=request_id, execution_id=execution_id)


def _write(
    operation: str, fields: dict[str, str], *, principal: Principal | None, request_id: str, execution_id: str
) -> None:
    who = {"subject": principal.subject if principal else "", "tenant": principal.tenant if principal else ""}
    what = {"operation": operation, "request_id": request_id, "execution_id": execution_id}
    _log.info("%s %s", operation, fields["outcome"], extra={**what, **who, **fields})

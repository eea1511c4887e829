"""What permissions there are, and who may do what; each service declares which permission its operations need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from reasond_server.errors import PermissionMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reasond_server.types import Principal

EXECUTE = "reasoning:execute"
TOOLS = "reasoning:tools"
READ_EXECUTIONS = "executions:read"
WRITE_AGENTS = "agents:write"
METRICS = "metrics:read"
ADMIN = "admin"

_EXECUTE_ONE = re.compile(rf"{EXECUTE}:([a-z][a-z0-9_]*)")

KNOWN: Final = tuple(sorted({ADMIN, METRICS, TOOLS, EXECUTE, READ_EXECUTIONS, WRITE_AGENTS}))
"""Every permission but those for single strategies."""


class Operation(NamedTuple):
    """What a caller asks to do, named as the RPC that does it, and the permission that it needs; "" needs none."""

    name: str
    permission: str = ""


def unknown_permissions(permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that open nothing."""
    return [one for one in permissions if one not in KNOWN and not _EXECUTE_ONE.fullmatch(one)]


def require(principal: Principal, operation: Operation) -> None:
    """Refuse `operation` if `principal` may not; one strategy's permission opens what all strategies' does.

    Callers then ask `require_strategy` for the strategy that was chosen.

    Raises:
        PermissionMissingError: the token lacks the permission.
    """
    permission = operation.permission
    # Which strategy is chosen is not known here, so a token for one of them passes; `require_strategy` decides.
    is_granted = bool(principal.permissions & {permission, ADMIN})
    if not is_granted and not (permission == EXECUTE and allowed_strategies(principal)):
        raise _missing(permission)


def allowed_strategies(principal: Principal) -> frozenset[str] | None:
    """Return the strategies that `principal` may use; None means all."""
    if principal.permissions & {EXECUTE, ADMIN}:
        return None
    matches = (_EXECUTE_ONE.fullmatch(permission) for permission in principal.permissions)
    return frozenset(match[1] for match in matches if match)


def may_use_strategy(principal: Principal, strategy: str) -> bool:
    """Return whether `principal` may use `strategy`."""
    allowed = allowed_strategies(principal)
    return allowed is None or strategy in allowed


def require_strategy(principal: Principal, strategy: str) -> None:
    """Refuse `strategy` if `principal` may not use it.

    Raises:
        PermissionMissingError: the token grants other strategies only.
    """
    if not may_use_strategy(principal, strategy):
        raise _missing(f"{EXECUTE}:{strategy}")


def require_tools(principal: Principal) -> None:
    """Refuse runs that call tools if `principal` may not.

    Raises:
        PermissionMissingError: the token lacks `reasoning:tools`.
    """
    if not principal.permissions & {TOOLS, ADMIN}:
        raise _missing(TOOLS)


def require_metrics(principal: Principal) -> None:
    """Refuse a reader of metrics that may not.

    Raises:
        PermissionMissingError: the token lacks `metrics:read`.
    """
    if not principal.permissions & {METRICS, ADMIN}:
        raise _missing(METRICS)


def _missing(permission: str) -> PermissionMissingError:
    """Make the error that names `permission`; existing clients read its words (seed 001)."""
    return PermissionMissingError(
        f"Authorization failed: Missing required permission '{permission}'", metadata={"permission": permission}
    )

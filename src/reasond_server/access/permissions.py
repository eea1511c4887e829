"""Which permission each operation needs, for both transports; an operation that is not listed is refused."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from reasond_server.errors import InternalError, PermissionMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond_server.types import Principal

EXECUTE = "reasoning:execute"
TOOLS = "reasoning:tools"
READ_EXECUTIONS = "executions:read"
WRITE_AGENTS = "agents:write"
METRICS = "metrics:read"
ADMIN = "admin"

_EXECUTE_ONE = re.compile(rf"{EXECUTE}:([a-z][a-z0-9_]*)")

# Operations are named as the RPCs are; a JSON-RPC method asks for the RPC that does the same.
OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "Reason": EXECUTE,
        "ReasonIterations": EXECUTE,
        "ListStrategies": EXECUTE,
        "GetExecution": READ_EXECUTIONS,
        "CancelExecution": EXECUTE,
        "ListExecutions": READ_EXECUTIONS,
        "DeleteExecution": EXECUTE,
        "GetAgentCard": EXECUTE,
        "ListAgents": EXECUTE,
        "RegisterAgent": WRITE_AGENTS,
        "DeleteAgent": WRITE_AGENTS,
    }
)


KNOWN: Sequence[str] = tuple(sorted({ADMIN, METRICS, TOOLS, *OPERATIONS.values()}))
"""Every permission but those for single strategies."""


def unknown_permissions(permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that open nothing."""
    return [one for one in permissions if one not in KNOWN and not _EXECUTE_ONE.fullmatch(one)]


def require(principal: Principal, operation: str) -> None:
    """Refuse `operation` if `principal` may not; one strategy's permission opens what all strategies' does.

    Callers then ask `require_strategy` for the strategy that was chosen.

    Raises:
        PermissionMissingError: the token lacks the permission.
        InternalError: `operation` is not in OPERATIONS.
    """
    permission = OPERATIONS.get(operation)
    if permission is None:
        raise InternalError(f"operation {operation!r} has no permission in OPERATIONS")
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

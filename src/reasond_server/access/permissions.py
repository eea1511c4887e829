"""The permissions, the roles that grant them, and the checks; services declare the permissions of their operations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from reasond_server.errors.access import PermissionMissingError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond_server.types import Principal

EXECUTE = "reasoning:execute"
TOOLS = "reasoning:tools"
READ_EXECUTIONS = "executions:read"
EXECUTE_TURNS = "turns:execute"
APPROVE_TURNS = "turns:approve"
READ_TURNS = "turns:read"
EXECUTE_REPAIRS = "repair:execute"
REPAIR_COMMANDS = "repair:commands"
WRITE_AGENTS = "agents:write"
METRICS = "metrics:read"
ADMIN = "admin"

_EXECUTE_ONE = re.compile(rf"{EXECUTE}:([a-z_][a-z0-9_]*)")

KNOWN: Final = tuple(
    sorted(
        {
            ADMIN,
            METRICS,
            TOOLS,
            EXECUTE,
            READ_EXECUTIONS,
            EXECUTE_TURNS,
            APPROVE_TURNS,
            READ_TURNS,
            EXECUTE_REPAIRS,
            REPAIR_COMMANDS,
            WRITE_AGENTS,
        }
    )
)
"""Every permission except those for single strategies."""


class Operation(NamedTuple):
    """An operation with the name of its RPC, and the permission that it needs.

    One of `or_permissions` is enough as well. An operation without a permission is never passed to
    `require_permission`; only the audit log names it.
    """

    name: str
    permission: str = ""
    or_permissions: tuple[str, ...] = ()


def find_unknown_permissions(permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that no operation needs."""
    return [one for one in permissions if one not in KNOWN and not _EXECUTE_ONE.fullmatch(one)]


def require_permission(principal: Principal, operation: Operation) -> None:
    """Refuse `operation` if `principal` may not do it; a permission for one strategy is enough here.

    Callers then call `require_strategy` with the chosen strategy.

    Raises:
        PermissionMissingError: the token lacks the permission.
    """
    permission = operation.permission
    # The strategy is not known yet, so a token for one of them passes; `require_strategy` decides.
    is_granted = bool(principal.permissions & {permission, ADMIN, *operation.or_permissions})
    if not is_granted and not (permission == EXECUTE and find_allowed_strategies(principal)):
        raise _build_error(permission)


def find_allowed_strategies(principal: Principal) -> frozenset[str] | None:
    """Return the strategies that `principal` may use; None means all."""
    granted = principal.permissions
    if EXECUTE in granted or ADMIN in granted:
        return None
    matches = (_EXECUTE_ONE.fullmatch(permission) for permission in granted)
    return frozenset(match[1] for match in matches if match)


def may_use_strategy(principal: Principal, strategy: str) -> bool:
    """Return whether `principal` may use `strategy`."""
    allowed = find_allowed_strategies(principal)
    return allowed is None or strategy in allowed


def require_strategy(principal: Principal, strategy: str) -> None:
    """Refuse `strategy` if `principal` may not use it.

    Raises:
        PermissionMissingError: the token grants only other strategies.
    """
    if not may_use_strategy(principal, strategy):
        raise _build_error(f"{EXECUTE}:{strategy}")


def require_tools(principal: Principal) -> None:
    """Refuse `principal` if its runs may not call tools.

    Raises:
        PermissionMissingError: the token lacks `reasoning:tools`.
    """
    if not principal.permissions & {TOOLS, ADMIN}:
        raise _build_error(TOOLS)


def require_approval(principal: Principal) -> None:
    """Refuse `principal` if it may not approve calls of server tools that need approval.

    Raises:
        PermissionMissingError: the token lacks `turns:approve`.
    """
    if not principal.permissions & {APPROVE_TURNS, ADMIN}:
        raise _build_error(APPROVE_TURNS)


def require_repairs(principal: Principal) -> None:
    """Refuse `principal` if it may not use repairs.

    Raises:
        PermissionMissingError: the token lacks `repair:execute`.
    """
    if not principal.permissions & {EXECUTE_REPAIRS, ADMIN}:
        raise _build_error(EXECUTE_REPAIRS)


def may_use_commands(principal: Principal) -> bool:
    """Return whether the repairs of `principal` may run commands of its own."""
    return bool(principal.permissions & {REPAIR_COMMANDS, ADMIN})


def require_metrics(principal: Principal) -> None:
    """Refuse `principal` if it may not read metrics.

    Raises:
        PermissionMissingError: the token lacks `metrics:read`.
    """
    if not principal.permissions & {METRICS, ADMIN}:
        raise _build_error(METRICS)


def _build_error(permission: str) -> PermissionMissingError:
    """Return the error that names `permission`; existing clients parse its text (seed 001)."""
    return PermissionMissingError(
        f"Authorization failed: Missing required permission '{permission}'", metadata={"permission": permission}
    )


@value
class AccessRole:
    """A role of the configuration; with `strategies` it grants `reasoning:execute` only for those."""

    permissions: Sequence[str]
    strategies: Sequence[str] = ()

    @property
    def grants(self) -> frozenset[str]:
        """The permissions of the role, with one for each of its `strategies`."""
        if not self.strategies:
            return frozenset(self.permissions)
        others = {permission for permission in self.permissions if permission != EXECUTE}
        return frozenset(others | {f"{EXECUTE}:{name}" for name in self.strategies})


class Roles:
    """The roles of the configuration by name."""

    def __init__(self, roles: Mapping[str, AccessRole]) -> None:
        self._grants = {name: role.grants for name, role in roles.items()}

    def collect_grants(self, names: Iterable[str]) -> frozenset[str]:
        """Return all permissions that the roles grant; an unknown role grants none."""
        nothing: frozenset[str] = frozenset()
        return nothing.union(*(self._grants.get(name, nothing) for name in names))

"""The permissions, the roles that grant them, and who may do what; services declare what their operations need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from reasond_server.errors import PermissionMissingError

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

KNOWN: Final = tuple(sorted({ADMIN, METRICS, TOOLS, EXECUTE, READ_EXECUTIONS, WRITE_AGENTS}))
"""Every permission but those for single strategies."""


class Operation(NamedTuple):
    """What a caller asks to do, named as the RPC that does it, and the permission that it needs.

    An operation without one is only named in the audit log: nothing asks `require_permission` for it.
    """

    name: str
    permission: str = ""


def find_unknown_permissions(permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that no operation needs."""
    return [one for one in permissions if one not in KNOWN and not _EXECUTE_ONE.fullmatch(one)]


def require_permission(principal: Principal, operation: Operation) -> None:
    """Refuse `operation` if `principal` may not do it; here a permission for one strategy is as good as for all.

    Callers then call `require_strategy` with the strategy that was chosen.

    Raises:
        PermissionMissingError: the token lacks the permission.
    """
    permission = operation.permission
    # The strategy is not known yet, so a token for one of them passes; `require_strategy` decides.
    is_granted = bool(principal.permissions & {permission, ADMIN})
    if not is_granted and not (permission == EXECUTE and find_allowed_strategies(principal)):
        raise _build_error(permission)


def find_allowed_strategies(principal: Principal) -> frozenset[str] | None:
    """Return the strategies that `principal` may use; None means all."""
    if principal.permissions & {EXECUTE, ADMIN}:
        return None
    matches = (_EXECUTE_ONE.fullmatch(permission) for permission in principal.permissions)
    return frozenset(match[1] for match in matches if match)


def may_use_strategy(principal: Principal, strategy: str) -> bool:
    """Return whether `principal` may use `strategy`."""
    allowed = find_allowed_strategies(principal)
    return allowed is None or strategy in allowed


def require_strategy(principal: Principal, strategy: str) -> None:
    """Refuse `strategy` if `principal` may not use it.

    Raises:
        PermissionMissingError: the token grants other strategies only.
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


def require_metrics(principal: Principal) -> None:
    """Refuse `principal` if it may not read metrics.

    Raises:
        PermissionMissingError: the token lacks `metrics:read`.
    """
    if not principal.permissions & {METRICS, ADMIN}:
        raise _build_error(METRICS)


def _build_error(permission: str) -> PermissionMissingError:
    """Make the error that names `permission`; existing clients read its words (seed 001)."""
    return PermissionMissingError(
        f"Authorization failed: Missing required permission '{permission}'", metadata={"permission": permission}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRole:
    """A role of the configuration; with `strategies` it grants `reasoning:execute` for those alone."""

    permissions: Sequence[str]
    strategies: Sequence[str] = ()

    @property
    def grants(self) -> frozenset[str]:
        """The permissions, one for each strategy where `strategies` are given."""
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

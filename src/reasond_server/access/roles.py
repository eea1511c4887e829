"""Roles: names that tokens carry for sets of permissions, which the operator defines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.access.permissions import EXECUTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a role grants; with `strategies`, `reasoning:execute` is granted for those alone."""

    permissions: Sequence[str]
    strategies: Sequence[str] = ()

    @property
    def granted(self) -> frozenset[str]:
        """The permissions, with the strategies spelt out."""
        if not self.strategies:
            return frozenset(self.permissions)
        others = {permission for permission in self.permissions if permission != EXECUTE}
        return frozenset(others | {f"{EXECUTE}:{name}" for name in self.strategies})


class Roles:
    """The roles of the configuration by name."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._granted = {name: role.granted for name, role in roles.items()}

    def granted(self, names: Iterable[str]) -> frozenset[str]:
        """Return what the roles grant together; a role that is not known here grants nothing."""
        nothing: frozenset[str] = frozenset()
        return nothing.union(*(self._granted.get(name, nothing) for name in names))

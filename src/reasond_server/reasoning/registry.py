"""The strategies: found by entry point, loaded only if the operator enabled them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.base.plugins import PluginGroup
from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import InternalError, SettingsError, Violation, show
from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.strategies.strategy import ReasoningStrategy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from importlib.metadata import EntryPoint


class StrategyRegistry:
    """The enabled strategies by name. Several coexist; none is required (seed 000 BR-1, BR-2)."""

    def __init__(self, strategies: Iterable[ReasoningStrategy[Any]] = ()) -> None:
        self._strategies: dict[str, ReasoningStrategy[Any]] = {}
        for strategy in strategies:
            self.register(strategy)

    def register(self, strategy: ReasoningStrategy[Any]) -> None:
        """Add a strategy.

        Raises:
            SettingsError: the name is taken.
        """
        if strategy.name in self._strategies:
            raise SettingsError(
                f"Two strategies are named {strategy.name!r}", remedy="Uninstall or rename one of them."
            )
        self._strategies[strategy.name] = strategy

    @property
    def names(self) -> Sequence[str]:
        """The names, sorted."""
        return sorted(self._strategies)

    def __contains__(self, name: object) -> bool:
        return name in self._strategies

    def __iter__(self) -> Iterator[ReasoningStrategy[Any]]:
        return iter(self._strategies[name] for name in self.names)

    def get(self, name: str) -> ReasoningStrategy[Any]:
        """Return the strategy of that name.

        Raises:
            StrategyNotFoundError: it is unknown or disabled here; the error names the enabled ones.
        """
        if name in self._strategies:
            return self._strategies[name]
        here = f"Enabled here: {', '.join(map(repr, self.names)) or 'none'}"
        hint = suggest_nearest(name, self.names) if self.names else ""
        raise StrategyNotFoundError(
            f"Strategy not found: {show(name)}",
            remedy=f"{here}{hint if 'mean' in hint else '.'}",
            violations=[Violation(field="strategy", description=f"is not enabled here. {here}")],
            metadata={"strategy": show(name), "enabled": ",".join(self.names)},
        )


def _require_strategy(strategy: object) -> ReasoningStrategy[Any]:
    if not isinstance(strategy, ReasoningStrategy):
        raise InternalError(f"{type(strategy).__name__} is no ReasoningStrategy")
    return strategy


STRATEGIES: Final = PluginGroup(
    group="reasond.strategies",
    noun="strategy",
    setting="[reasoning] enabled_strategies",
    require=_require_strategy,
)


def discover(enabled: Iterable[str], *, installed: Iterable[EntryPoint] | None = None) -> StrategyRegistry:
    """Return a registry of the `enabled` strategies; see `PluginGroup.load`.

    Raises:
        SettingsError: an enabled strategy is not installed, cannot be loaded or is not a strategy.
    """
    return StrategyRegistry(STRATEGIES.load(enabled, installed=installed))


def check_tables(names: Iterable[str]) -> None:
    """Refuse a table `[reasoning.strategies.NAME]` if no installed strategy has that name.

    Raises:
        SettingsError: a table has an unknown name; the text names the nearest installed strategy.
    """
    known = STRATEGIES.find_installed().names
    for name in names:
        if name not in known:
            raise SettingsError(
                f"[reasoning.strategies.{name}] names no installed strategy{suggest_nearest(name, known)}",
                remedy="Correct the name, install the strategy's package, or remove the table.",
            )

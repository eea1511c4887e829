"""The strategies: found by entry point, loaded only if the operator enabled them."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from reasond_server.errors import SettingsError, StrategyNotFoundError, Violation, show
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.violations import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ENTRY_POINT_GROUP = "reasond.strategies"


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


def discover(enabled: Sequence[str], *, installed: Iterable[EntryPoint] | None = None) -> StrategyRegistry:
    """Return a registry of the `enabled` strategies, loaded from the entry points of `ENTRY_POINT_GROUP`.

    Raises:
        SettingsError: an enabled strategy is not installed, cannot be loaded or is not a strategy.
    """
    found = tuple(entry_points(group=ENTRY_POINT_GROUP) if installed is None else installed)
    by_name = {point.name: point for point in found}
    # Only enabled strategies are imported: a broken or slow package that is only installed must do no harm.
    return StrategyRegistry(_load(name, by_name) for name in dict.fromkeys(enabled))


def check_tables(names: Iterable[str], *, installed: Iterable[EntryPoint] | None = None) -> None:
    """Refuse a table `[reasoning.strategies.NAME]` if no installed strategy has that name.

    Raises:
        SettingsError: a table has an unknown name; the text names the nearest installed strategy.
    """
    known = {point.name for point in (entry_points(group=ENTRY_POINT_GROUP) if installed is None else installed)}
    for name in names:
        if name not in known:
            raise SettingsError(
                f"[reasoning.strategies.{name}] names no installed strategy{suggest_nearest(name, known)}",
                remedy="Correct the name, install the strategy's package, or remove the table.",
            )


def _load(name: str, by_name: dict[str, EntryPoint]) -> ReasoningStrategy[Any]:
    """Load one strategy by the name of its entry point."""
    point = by_name.get(name)
    if point is None:
        raise SettingsError(
            f"[reasoning] enabled_strategies names {name!r}, which is not installed{suggest_nearest(name, by_name)}",
            remedy=f"Installed are: {', '.join(sorted(by_name)) or 'none'}. Install its package or remove the name.",
        )
    try:
        strategy = point.load()()
    except Exception as error:
        raise SettingsError(
            f"Strategy {name!r} ({point.value}) could not be loaded: {type(error).__name__}",
            remedy="Update its package or remove the name from [reasoning] enabled_strategies.",
        ) from error
    # Configuration, permissions and cards use the name of the entry point, results that of the strategy.
    if not isinstance(strategy, ReasoningStrategy) or strategy.name != name:
        raise SettingsError(
            f"Entry point {name!r} ({point.value}) does not give a ReasoningStrategy of that name",
            remedy="Name the entry point as the strategy names itself.",
        )
    return strategy

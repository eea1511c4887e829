"""Selects the strategy: request > agent > system (seed 000 FR-2.2, seed 001 "Strategy Selection")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import StrategyNotSupportedError, StrategyRequiredError
from reasond_server.types import StrategySource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.strategies.strategy import ReasoningStrategy


@value
class Wish:
    """The inputs of the selection. None means no restriction; an empty sequence allows no strategy.

    `requested` is the strategy that the request names. `offered` are the strategies of the agent, in its order of
    preference. `narrowed_to` are the strategies that the request's `agent_capabilities` name. `allowed` are the
    strategies that the caller's permissions name: if the agent offers several, the first allowed one is taken. `select`
    checks no permission; its caller does. `default` is the operator's choice, empty for none.
    """

    requested: str | None = None
    offered: Sequence[str] | None = None
    narrowed_to: Sequence[str] | None = None
    allowed: frozenset[str] | None = None
    default: str = ""

    def may_take(self, name: str) -> bool:
        """Return whether agent, capabilities and permissions leave the strategy `name` to the caller."""
        offered = _list_offered(self)
        return (offered is None or name in offered) and (self.allowed is None or name in self.allowed)


@value
class Selection:
    """The strategy, the level that chose it, and what the caller is told of the choice."""

    strategy: ReasoningStrategy[Any]
    source: StrategySource
    warnings: Sequence[str] = ()


def select(wish: Wish, registry: StrategyRegistry) -> Selection:
    """Choose the strategy.

    Raises:
        StrategyNotFoundError: the named strategy is unknown or disabled here.
        StrategyNotSupportedError: the agent does not offer it, or offers no strategy that is enabled here.
        StrategyRequiredError: no level names one.
    """
    offered = _list_offered(wish)
    if wish.requested is not None:
        strategy, source = registry.get(wish.requested), StrategySource.REQUEST
        if offered is not None and strategy.name not in offered:
            raise _not_supported(strategy.name, offered)
    elif offered is not None:
        enabled = [name for name in offered if name in registry]
        if not enabled:
            raise _not_supported(None, offered)
        usable = [name for name in enabled if wish.allowed is None or name in wish.allowed]
        strategy, source = registry.get((usable or enabled)[0]), StrategySource.AGENT
    elif wish.default:
        strategy, source = registry.get(wish.default), StrategySource.SYSTEM
    else:
        raise StrategyRequiredError(
            "No strategy is named by the request, an agent or the system",
            remedy=f"Set 'strategy' to one of: {', '.join(registry.names) or 'none is enabled here'}.",
            violations=[Violation(field="strategy", description="is required, because this server has no default")],
        )
    return Selection(strategy=strategy, source=source)


def _list_offered(wish: Wish) -> Sequence[str] | None:
    """Return the strategies that the agent offers, narrowed by the request; None if neither restricts the choice."""
    if wish.offered is None or wish.narrowed_to is None:
        return wish.narrowed_to if wish.offered is None else wish.offered
    return [name for name in wish.offered if name in wish.narrowed_to]


def _not_supported(name: str | None, offered: Sequence[str]) -> StrategyNotSupportedError:
    names = ", ".join(map(repr, offered)) or "none"
    if name is None:
        text = f"Strategy not supported: none of the agent's strategies ({names}) is enabled here"
    else:
        text = f"Strategy not supported: the agent does not offer {show(name)}"
    return StrategyNotSupportedError(
        text,
        remedy=f"The agent offers: {names}. Choose one of them, or another agent.",
        violations=[Violation(field="strategy", description=f"must be one of the agent's: {names}")],
        metadata={"offered": ",".join(offered)},
    )

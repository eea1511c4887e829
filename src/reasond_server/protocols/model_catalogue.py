"""The names that clients give as `model`: each stands for a strategy, and maybe for more that the operator fixed.

`reasond` is the server's default strategy, `reasond/<strategy>` a strategy, and any other name a table of
`[openai.models]`. Nothing but this name, and the parameters beside it, chooses how a request is worked on: never a text
inside a message.
"""

from __future__ import annotations

from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from reasond_server.access.permissions import may_use_strategy
from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.reasoning.strategy_selection import AUTO
from reasond_server.types import Budget, CostClass, Principal
from reasond_server.types.policy_sections import ParameterTable, PolicySection, StrategyName
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.reasoning.service import StrategyInfo


_MOST: Final = 2**53 - 1


@value
class ModelBudget(PolicySection, Budget):
    """Bounds on one execution; a request may only lower them."""

    max_total_tokens: Annotated[int | None, Field(ge=1, le=_MOST, description="Most tokens of all model calls.")] = None
    max_model_calls: Annotated[int | None, Field(ge=1, le=_MOST, description="Most model calls.")] = None
    max_tool_calls: Annotated[int | None, Field(ge=0, le=_MOST, description="Most tool calls.")] = None
    max_elapsed_s: Annotated[float | None, Field(ge=0.001, le=86_400, description="Most seconds.")] = None
    max_output_tokens: Annotated[int | None, Field(ge=1, le=_MOST, description="Most tokens that are written.")] = None


@value
class ModelPreset(PolicySection):
    """What one model name stands for; without a `strategy` the agent or the server chooses it.

    A request cannot change the parameters in `config` nor the agent; of its budget and `budget` the lower bounds count.
    """

    strategy: Annotated[StrategyName | None, Field(description="Strategy of the model; left out: as for requests.")] = (
        None
    )
    config: Annotated[ParameterTable, Field(description="Parameters of the strategy that nobody can change.")] = field(
        default_factory=dict
    )
    budget: ModelBudget = field(default_factory=ModelBudget)
    agent: Annotated[str | None, Field(max_length=256, description="Agent whose strategies and values count.")] = None
    include_deltas: Annotated[
        bool, Field(description="Whether text is streamed while the model writes it, not only whole steps.")
    ] = False
    server_tools: Annotated[
        bool, Field(description="Whether a turn may call tools of the server beside those of its client.")
    ] = False


OWN_MODEL: Final = "reasond"
"""The model that stands for the server's default strategy."""


class ModelCatalogue:
    """The models of this server.

    `strategies` are those that are enabled; with `offers_auto` the rule `auto` is offered, too. `presets` are the
    operator's models.

    Raises:
        SettingsError: a preset names a strategy that is not enabled, or a parameter that its strategy lacks.
    """

    def __init__(
        self,
        *,
        strategies: Sequence[StrategyInfo],
        presets: Mapping[str, ModelPreset] | None = None,
        offers_auto: bool = False,
    ) -> None:
        self._parameters = {each.name: frozenset(each.config_schema.get("properties", ())) for each in strategies}
        self._cheap = frozenset(each.name for each in strategies if each.cost_class is CostClass.CONSTANT)
        if offers_auto:
            # The rule chooses a strategy by itself, with the defaults of that strategy.
            self._parameters[AUTO] = frozenset()
        self._default = next((each.name for each in strategies if each.is_default), None)
        named = {f"{OWN_MODEL}/{name}": ModelPreset(strategy=name) for name in self._parameters}
        self._presets = {OWN_MODEL: ModelPreset(), **named, **(presets or {})}
        self._check(presets or {})

    def find(self, name: str) -> ModelPreset:
        """Return what the model `name` stands for.

        Raises:
            StrategyNotFoundError: there is no such model.
        """
        preset = self._presets.get(name)
        if preset is None:
            hint = suggest_nearest(name, self._presets)
            raise StrategyNotFoundError(
                f"There is no model {show(name)} here{hint}",
                violations=[Violation(field="model", description=f"must be a model of this server{hint}")],
            )
        return preset

    def find_parameters(self, preset: ModelPreset, agent: str | None) -> frozenset[str]:
        """Return the parameters of the strategy that will work; empty if an agent chooses it."""
        strategy = preset.strategy or (None if agent else self._default)
        return self._parameters.get(strategy or "", frozenset())

    def is_cheap(self, preset: ModelPreset, agent: str | None) -> bool:
        """Whether the strategy that will work makes a constant number of calls."""
        return (preset.strategy or (None if agent else self._default)) in self._cheap

    def list_for(self, caller: Principal, only: str = "") -> list[str]:
        """Return the models whose strategy `caller` may use; `only` names the one that is asked for.

        Raises:
            StrategyNotFoundError: there is no such model, or the caller may not use it.
        """
        if only and not self._may_use(caller, self.find(only)):
            raise StrategyNotFoundError("The token does not permit this model")
        return [only] if only else [name for name, each in self._presets.items() if self._may_use(caller, each)]

    def _may_use(self, caller: Principal, preset: ModelPreset) -> bool:
        strategy = preset.strategy or (None if preset.agent else self._default)
        # Without a strategy of its own, the model of the server works only with an agent that the request names.
        if strategy is None:
            return preset.agent is not None
        return strategy == AUTO or may_use_strategy(caller, strategy)

    def _check(self, presets: Mapping[str, ModelPreset]) -> None:
        """Refuse presets that could never work."""
        problems: list[Violation] = []
        for name, preset in presets.items():
            key = f"openai.models.{name}"
            if preset.strategy is not None and preset.strategy not in self._parameters:
                hint = suggest_nearest(preset.strategy, self._parameters)
                problems.append(Violation(field=f"{key}.strategy", description=f"is no enabled strategy{hint}"))
                continue
            known = self.find_parameters(preset, preset.agent)
            for parameter in preset.config if known or preset.strategy else ():
                if parameter not in known:
                    hint = suggest_nearest(parameter, known)
                    problems.append(Violation(field=f"{key}.config.{parameter}", description=f"is not known{hint}"))
        if problems:
            text = "; ".join(
                f"[{one.field.rpartition('.')[0]}] {one.field.rpartition('.')[2]} {one.description}" for one in problems
            )
            raise SettingsError(text, violations=problems)


_BOUNDS: Final = tuple(each.name for each in fields(Budget))


def narrow(one: Budget, other: Budget) -> Budget:
    """Return `one` with the lower bound of each kind."""
    lower = {
        name: bound
        for name in _BOUNDS
        if (bound := getattr(other, name)) is not None and ((own := getattr(one, name)) is None or bound < own)
    }
    return replace(one, **lower) if lower else one

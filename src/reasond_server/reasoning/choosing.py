"""The decisions before an execution begins: the strategy, its configuration, and whether the task fits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reasond_server.access.permissions import find_allowed_strategies, require_strategy, require_tools
from reasond_server.agents.cards import strategies_of
from reasond_server.base.awake import limit_awake_time
from reasond_server.errors.base import InternalError, Violation
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import LONG_TEXT_CHARACTERS
from reasond_server.reasoning.answer_finishing import compile_schema
from reasond_server.reasoning.auto_choice import AUTO, READER, measure_fit
from reasond_server.reasoning.offered_models import preface_model
from reasond_server.reasoning.selection import Selection, Wish, select
from reasond_server.tools.programs import build_refusal
from reasond_server.types import StrategySource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.agents.directory import AgentDirectory, RegisteredAgent
    from reasond_server.reasoning.configuration import StrategyConfiguration
    from reasond_server.reasoning.offered_models import OfferedModels
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
    from reasond_server.types import Json, Principal, Task


@value
class _Rule:
    """What the rule of `auto_choice` needs: the agent, whether it may take the reader, whether the task asks for it."""

    agent: RegisteredAgent | None
    may_read: bool
    is_asked_for: bool


@value
class ChosenStrategy:
    """The strategy, its configuration, and the configuration in the form shown to callers.

    With a `rule` the choice is not final: `Chooser.apply_rule` may replace it.
    """

    selection: Selection
    config: StrategyConfig
    shown_config: Json
    rule: _Rule | None = None


class Chooser:
    """Chooses strategies and configurations for verified callers.

    Args:
        registry: the enabled strategies.
        configuration: their defaults and ceilings.
        directory: the agents that tasks may name.
        models: the models that tasks may name.
        default_strategy: the operator's choice; empty for none.
        is_auto_enabled: whether the rule of `auto_choice` may replace it, and tasks may ask for the rule.
        within_s: the time limit of an agent lookup, in seconds.
        has_programs: whether programs of the model can be run here.
    """

    def __init__(
        self,
        *,
        registry: StrategyRegistry,
        configuration: StrategyConfiguration,
        directory: AgentDirectory,
        models: OfferedModels,
        default_strategy: str,
        is_auto_enabled: bool = False,
        within_s: float,
        has_programs: bool = False,
    ) -> None:
        self._registry = registry
        self._configuration = configuration
        self._directory = directory
        self._models = models
        self._default_strategy = default_strategy
        self._is_auto_enabled = is_auto_enabled
        self._within_s = within_s
        self._has_programs = has_programs

    async def choose(self, caller: Principal, task: Task) -> ChosenStrategy:
        """Return the strategy and its configuration, by names alone: the texts of the task are not looked at.

        Raises:
            ReasondError: there is no such strategy or agent, the caller may not use it, or a parameter is wrong.
        """
        agent = await self._agent(caller, task) if task.agent else None
        is_auto = self._is_auto_enabled and task.strategy == AUTO
        if is_auto and task.config:
            description = f"must be empty with the strategy {AUTO!r}, which chooses another one by the size of the task"
            raise InvalidConfigError.of(Violation(field="config", description=description))
        wish = Wish(
            requested=None if is_auto else task.strategy,
            offered=None if agent is None else agent.strategies,
            # Capabilities that name no strategy do not restrict the choice.
            narrowed_to=strategies_of(task.agent_capabilities) or None,
            allowed=find_allowed_strategies(caller),
            default=self._default_strategy,
        )
        selection = select(wish, self._registry)
        rule = None
        if is_auto or (self._is_auto_enabled and selection.source is StrategySource.SYSTEM and not task.config):
            rule = _Rule(agent=agent, may_read=wish.may_take(READER), is_asked_for=is_auto)
        return self._configure(caller, task, selection, agent, rule)

    def _configure(
        self,
        caller: Principal,
        task: Task,
        selection: Selection,
        agent: RegisteredAgent | None,
        rule: _Rule | None = None,
    ) -> ChosenStrategy:
        """Return the choice of `selection`, if the caller may use it with the configuration that results."""
        strategy = selection.strategy
        # With a rule that may still take the reader, this strategy may be one that the caller may not use.
        if rule is None or not rule.may_read:
            require_strategy(caller, strategy.name)
        of_agent = {} if agent is None else agent.strategy_config.get(strategy.name, {})
        config, shown_config = self._configuration.resolve(strategy, request=task.config, agent=of_agent)
        runs_programs = config.runs_programs
        if runs_programs or config.uses_tools:
            require_tools(caller)
        if runs_programs and not self._has_programs:
            raise build_refusal()
        return ChosenStrategy(selection=selection, config=config, shown_config=shown_config, rule=rule)

    async def apply_rule(self, caller: Principal, task: Task, choice: ChosenStrategy) -> ChosenStrategy:
        """Return the choice by the rule of `auto_choice`, if it applies: long texts may be read by another strategy.

        For a long text this may take seconds of processor time.

        Raises:
            ReasondError: as `choose`.
        """
        rule = choice.rule
        if rule is None:
            return choice
        selection = choice.selection
        fit = await measure_fit(task, preface_model(self._models.find(task.model), task))
        is_replaced = not fit.fits and rule.may_read and READER in self._registry
        if is_replaced:
            selection = replace(selection, strategy=self._registry.get(READER))
        if is_replaced or rule.is_asked_for:
            warning = f"The strategy {AUTO!r} chose {selection.strategy.name!r}: {fit.reason}."
            selection = replace(selection, source=StrategySource.AUTO, warnings=(warning,))
        return self._configure(caller, task, selection, rule.agent)

    async def _agent(self, caller: Principal, task: Task) -> RegisteredAgent:
        """Return the agent that the task names."""
        try:
            async with limit_awake_time(self._within_s):
                return await self._directory.get(tenant=caller.tenant, agent_id=task.agent or "")
        except TimeoutError:
            raise StoreUnavailableError(
                f"Looking the agent up took longer than {self._within_s * 1000:g} ms",
                remedy="Retry, or raise [reasoning.performance] strategy_selection_timeout_ms.",
            ) from None

    async def check(self, strategy: ReasoningStrategy[Any], task: Task, config: StrategyConfig) -> None:
        """Let the strategy check the task; for a long text this may take seconds of processor time.

        Raises:
            ReasondError: the strategy refuses the task, or its schema cannot be used.
            InternalError: the strategy raised an exception that would end the whole process, such as SystemExit.
        """
        model = preface_model(self._models.find(task.model), task)
        try:
            if task.answer_schema is not None:
                await asyncio.to_thread(compile_schema, task.answer_schema)
            if task.text_characters > LONG_TEXT_CHARACTERS:
                await asyncio.to_thread(strategy.check, task, config, model)
            else:
                strategy.check(task, config, model)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise InternalError(f"the check of strategy {strategy.name!r} failed") from error

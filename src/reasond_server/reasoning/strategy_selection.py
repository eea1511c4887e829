"""The decisions before an execution begins: strategy, configuration, model, and whether the task fits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import find_allowed_strategies, require_strategy, require_tools
from reasond_server.agents.cards import list_strategies
from reasond_server.base.asyncio_tasks import limit_awake_time
from reasond_server.base.violations import suggest_nearest
from reasond_server.context.answer_schemas import SchemaCompiler, write_schema_rule
from reasond_server.context.calls import run_by_size
from reasond_server.context.said_messages import write_said
from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.request import (
    InvalidConfigError,
    InvalidRequestError,
    StrategyNotSupportedError,
    StrategyRequiredError,
)
from reasond_server.llm.counting.requests import count_bytes
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ChatModel, ImagePart, Message, Role, find_image_tokens
from reasond_server.llm.wrapped_models import Preface, PrefacedModel
from reasond_server.reasoning.answer_finishing import check_schema
from reasond_server.tools.programs import build_refusal
from reasond_server.types import Json, Principal, StrategySource, Task
from reasond_server.types.tasks import MeasuredChoice, TaskForm, find_form
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.agents.directory import AgentDirectory, RegisteredAgent
    from reasond_server.reasoning.configuration import StrategyConfiguration
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig

_FOR_COUNTS: Final = "x" * 28
"""As long as a nonce."""


class OfferedModels:
    """The server's `own` model, and the `others` that the operator lets tasks name, by the names of their backends."""

    def __init__(self, own: ChatModel, others: Mapping[str, ChatModel] = MappingProxyType({})) -> None:
        self.own = own
        self._others = others

    @property
    def names(self) -> Sequence[str]:
        """The names that a task may give, sorted."""
        return sorted(self._others)

    def find(self, name: str | None) -> ChatModel:
        """Return the model with this name, the server's own for None.

        Raises:
            InvalidRequestError: it is not offered.
        """
        if name is None:
            return self.own
        if name not in self._others:
            known = suggest_nearest(name, self._others) or "; none is offered ([llm] offered), so leave it out"
            raise InvalidRequestError.at("model", f"must be a backend that is offered here, got {show(name)}{known}")
        return self._others[name]


def preface_model(model: ChatModel, task: Task, *, nonce: str = _FOR_COUNTS) -> ChatModel:
    """Return `model` with the instructions, the history, the answer schema and the images of `task` in each call.

    `nonce` marks the fences of tool results in the history; without one the model may only count.

    Raises:
        InvalidRequestError: there are images, and the model takes none.
    """
    if not (task.system or task.history or task.images or task.answer_schema is not None):
        return model
    tokens = find_image_tokens(model)
    if task.images and not tokens:
        description = f"are not taken by the model {model.name!r}; leave them out, or name another model"
        raise InvalidRequestError.at("images", description)
    images = tuple(ImagePart(media_type=each.media_type, base64=each.base64, tokens=tokens) for each in task.images)
    rule = "" if task.answer_schema is None else write_schema_rule(task.answer_schema)
    history = tuple(write_said(task.history, nonce=nonce, is_native=model.has_native_tools, image_tokens=tokens))
    system = "\n\n".join(part for part in (task.system, rule) if part)
    return PrefacedModel(model=model, preface=Preface(system=system, history=history, images=images))


AUTO: Final = "auto"
"""The name under which a task asks for the rule."""
READER: Final = "bounded_context"
"""The strategy that reads what does not fit."""

_FRAME_TOKENS: Final = 512
_REPLY_TOKENS: Final = 4096
# A text with more bytes for each token of the window than this is not counted: no tokenizer makes such tokens of prose.
_MOST_BYTES_PER_TOKEN: Final = 16


@value
class Fit:
    """Whether a task fits the model's window, and the sentence that says why."""

    fits: bool
    reason: str


async def measure_fit(task: Task, model: ChatModel) -> Fit:
    """Measure `task` against the window of `model`, which adds instructions and history; see the module."""
    window = model.context_window
    if window is None:
        return Fit(fits=True, reason="the window of the model is not known")
    room = window - min(_REPLY_TOKENS, window // 4) - _FRAME_TOKENS
    size = count_bytes(task.query) + count_bytes(task.material)
    if size > _MOST_BYTES_PER_TOKEN * window:
        return Fit(fits=False, reason=f"the task has {size} bytes, and the model's window {window} tokens")
    messages = [Message(role=Role.USER, content=f"{task.query}\n{task.material}")]
    if task.text_characters > LONG_TEXT_CHARACTERS:
        prompt = await asyncio.to_thread(model.counter.count_prompt, messages)
    else:
        prompt = model.counter.count_prompt(messages)
    reason = f"the task has {prompt} tokens, and the model's window of {window} has room for {max(room, 0)}"
    return Fit(fits=prompt <= room, reason=reason)


NO_STRATEGY_NAMED: Final = (
    "agent_capabilities named no strategy, as reasoning.strategy.NAME does: they did not narrow the choice."
)


@value
class SelectionInputs:
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


def select(inputs: SelectionInputs, registry: StrategyRegistry) -> Selection:
    """Choose the strategy.

    Raises:
        StrategyNotFoundError: the named strategy is unknown or disabled here.
        StrategyNotSupportedError: the agent does not offer it, or offers no strategy that is enabled here.
        StrategyRequiredError: no level names one.
    """
    offered = _list_offered(inputs)
    if inputs.requested is not None:
        strategy, source = registry.get(inputs.requested), StrategySource.REQUEST
        if offered is not None and strategy.name not in offered:
            raise _build_not_supported_error(strategy.name, offered)
    elif offered is not None:
        enabled = [name for name in offered if name in registry]
        if not enabled:
            raise _build_not_supported_error(None, offered)
        usable = [name for name in enabled if inputs.allowed is None or name in inputs.allowed]
        strategy, source = registry.get((usable or enabled)[0]), StrategySource.AGENT
    elif inputs.default:
        strategy, source = registry.get(inputs.default), StrategySource.SYSTEM
    else:
        raise StrategyRequiredError(
            "No strategy is named by the request, an agent or the system",
            remedy=f"Set 'strategy' to one of: {', '.join(registry.names)}."
            if registry.names
            else "No strategy is enabled on this server: its operator sets [reasoning] enabled_strategies.",
            violations=[Violation(field="strategy", description="is required, because this server has no default")],
        )
    return Selection(strategy=strategy, source=source)


def _list_offered(inputs: SelectionInputs) -> Sequence[str] | None:
    """Return the strategies that the agent offers, narrowed by the request; None if neither restricts the choice."""
    if inputs.offered is None or inputs.narrowed_to is None:
        return inputs.narrowed_to if inputs.offered is None else inputs.offered
    return [name for name in inputs.offered if name in inputs.narrowed_to]


def _build_not_supported_error(name: str | None, offered: Sequence[str]) -> StrategyNotSupportedError:
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


@value
class _Rule:
    """What the rule of `auto` needs: the agent, what the caller may take, whether the task asks for it."""

    agent: RegisteredAgent | None
    inputs: SelectionInputs
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


@dataclass(eq=False, kw_only=True)
class Chooser:
    """Chooses strategies and configurations for verified callers.

    Args:
        registry: the enabled strategies.
        configuration: their defaults and ceilings.
        directory: the agents that tasks may name.
        models: the models that tasks may name.
        default_strategy: the operator's choice; empty for none.
        is_auto_enabled: whether the rule of `auto` may replace it, and tasks may ask for the rule.
        within_s: the time limit of an agent lookup, in seconds.
        has_programs: whether programs of the model can be run here.
        choices: what the rule of `auto` takes for tasks that fit, by their form.
        schemas: compiles the schemas of answers.
    """

    registry: StrategyRegistry
    configuration: StrategyConfiguration
    directory: AgentDirectory
    models: OfferedModels
    default_strategy: str
    is_auto_enabled: bool = False
    within_s: float
    has_programs: bool = False
    choices: Mapping[TaskForm, MeasuredChoice] = field(default_factory=dict)
    schemas: SchemaCompiler = field(default_factory=SchemaCompiler)

    async def choose(self, caller: Principal, task: Task) -> ChosenStrategy:
        """Return the strategy and its configuration, by names alone: the texts of the task are not looked at.

        Raises:
            ReasondError: there is no such strategy or agent, the caller may not use it, or a parameter is wrong.
        """
        agent = await self._find_agent(caller, task) if task.agent else None
        is_auto = self.is_auto_enabled and task.strategy == AUTO
        if is_auto and task.config:
            description = f"must be empty with the strategy {AUTO!r}, which chooses another one by the size of the task"
            raise InvalidConfigError.at("config", description)
        inputs = SelectionInputs(
            requested=None if is_auto else task.strategy,
            offered=None if agent is None else agent.strategies,
            # Capabilities that name no strategy do not restrict the choice.
            narrowed_to=list_strategies(task.agent_capabilities) or None,
            allowed=find_allowed_strategies(caller),
            default=self.default_strategy,
        )
        selection = select(inputs, self.registry)
        if task.agent_capabilities and inputs.narrowed_to is None:
            selection = replace(selection, warnings=(*selection.warnings, NO_STRATEGY_NAMED))
        rule = None
        if is_auto or (self.is_auto_enabled and selection.source is StrategySource.SYSTEM and not task.config):
            rule = _Rule(agent=agent, inputs=inputs, is_asked_for=is_auto)
        return self._configure(caller, task, selection, agent, rule=rule)

    def _configure(
        self,
        caller: Principal,
        task: Task,
        selection: Selection,
        agent: RegisteredAgent | None,
        *,
        rule: _Rule | None = None,
        measured: MeasuredChoice | None = None,
    ) -> ChosenStrategy:
        """Return the choice of `selection`, if the caller may use it with the configuration that results."""
        strategy = selection.strategy
        # With a rule that may still take another strategy, this one may be one that the caller may not use.
        if rule is None or not any(map(rule.inputs.may_take, self._list_replacements())):
            require_strategy(caller, strategy.name)
        of_agent = {} if agent is None else agent.strategy_config.get(strategy.name, {})
        asked = task.config if measured is None else measured.config
        config, shown_config = self.configuration.resolve(strategy, request=asked, agent=of_agent)
        window = self.models.find(task.model).context_window
        adapted = config if window is None else config.adapt_to_window(window)
        if adapted != config:
            config, shown_config = adapted, adapted.model_dump(mode="json")
            warning = f"What was not set of {strategy.name!r} follows the model's window of {window} tokens."
            selection = replace(selection, warnings=(*selection.warnings, warning))
        runs_programs = config.runs_programs
        if runs_programs or config.uses_tools:
            require_tools(caller)
        if runs_programs and not self.has_programs:
            raise build_refusal()
        return ChosenStrategy(selection=selection, config=config, shown_config=shown_config, rule=rule)

    async def apply_rule(self, caller: Principal, task: Task, choice: ChosenStrategy) -> ChosenStrategy:
        """Return the choice by the rule of `auto`, if it applies.

        Long texts are read by another strategy. What fits is worked out by the one that was measured to be the best for
        tasks of its form, where the operator has such a table.

        For a long text this may take seconds of processor time.

        Raises:
            ReasondError: as `choose`.
        """
        rule = choice.rule
        if rule is None:
            return choice
        selection = choice.selection
        fit = await measure_fit(task, preface_model(self.models.find(task.model), task))
        measured = self.choices.get(find_form(task)) if fit.fits else None
        name = READER if measured is None else measured.strategy
        is_replaced = (not fit.fits or measured is not None) and rule.inputs.may_take(name) and name in self.registry
        if is_replaced:
            selection = replace(selection, strategy=self.registry.get(name))
        else:
            measured = None
        if is_replaced or rule.is_asked_for:
            reason = fit.reason if measured is None else f"measured for tasks of this form: {measured.why}"
            warning = f"The strategy {AUTO!r} chose {selection.strategy.name!r}: {reason}."
            selection = replace(selection, source=StrategySource.AUTO, warnings=(*selection.warnings, warning))
        return self._configure(caller, task, selection, rule.agent, measured=measured)

    def _list_replacements(self) -> Sequence[str]:
        return [READER, *(each.strategy for each in self.choices.values())]

    async def _find_agent(self, caller: Principal, task: Task) -> RegisteredAgent:
        """Return the agent that the task names."""
        try:
            async with limit_awake_time(self.within_s):
                return await self.directory.get(tenant=caller.tenant, agent_id=task.agent or "")
        except TimeoutError:
            raise StoreUnavailableError(
                f"Looking the agent up took longer than {self.within_s * 1000:g} ms",
                remedy="Retry, or raise [reasoning.performance] strategy_selection_timeout_ms.",
            ) from None

    async def check(
        self, caller: Principal, strategy: ReasoningStrategy[Any], task: Task, config: StrategyConfig
    ) -> None:
        """Let the strategy check the task; for a long text this may take seconds of processor time.

        Raises:
            ReasondError: the strategy refuses the task, or its schema cannot be used.
            InternalError: the strategy raised an exception that would end the whole process, such as SystemExit.
        """
        model = self.models.find(task.model)
        try:
            if task.answer_schema is not None:
                await check_schema(task.answer_schema, schemas=self.schemas, tenant=caller.tenant)
            await run_by_size(task.text_characters, lambda: strategy.check(task, config, preface_model(model, task)))
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise InternalError(f"the check of strategy {strategy.name!r} failed") from error

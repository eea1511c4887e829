"""The port to strategies: their inputs, their events, and their descriptions.

A strategy is stateless: all state of one run is local to `run`. A strategy does not depend on the transport, the store
or the subscribers. The runner numbers and times its steps and adds their cost.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from reasond_server.base.clock import new_nonce
from reasond_server.context.answer_schemas import SchemaCompiler
from reasond_server.context.tags import restore
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.tools.tool import NO_TOOLS, Toolbox
from reasond_server.types import Budget, CostClass, FinishReason, StepDetail, StrategyMetrics, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel
    from reasond_server.types import Json, TokenChance, Usage


Temperature = Annotated[
    float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of the model.")
]
"""The parameter `temperature` of a configuration."""


class StrategyConfig(BaseModel):
    """Base of every strategy's configuration: strict types, unknown keys refused, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _take_whole_numbers(cls, values: object) -> object:
        """Take 4096.0 for a whole number, as JSON Schema does; many languages write all numbers so."""
        if not isinstance(values, Mapping):
            return values
        whole = {name for name, field in cls.model_fields.items() if field.annotation is int}
        return {
            name: int(value) if name in whole and isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        }

    @property
    def uses_tools(self) -> bool:
        """Whether the run calls tools. Only then it receives tools, and its caller needs `reasoning:tools`."""
        return False

    @property
    def runs_programs(self) -> bool:
        """Whether the run runs programs of the model. Only then it receives `RunContext.programs`.

        Servers that cannot run programs refuse it, and its caller needs `reasoning:tools`.
        """
        return False

    @property
    def window_tokens(self) -> int | None:
        """Most tokens of prompt and output together of any call; None: only the model's context window bounds them."""
        return None

    @property
    def most_steps(self) -> int | None:
        """Most steps of a run, by which its progress is shown; None: not known, as by default."""
        return None

    def adapt_to_window(self, window: int) -> Self:  # noqa: ARG002 - the default has nothing to adapt
        """Return the configuration with what nobody set made to fit a model's `window` in tokens; else the same one."""
        return self

    @classmethod
    def combine(cls, *levels: Json) -> dict[str, Any]:
        """Return the merged parameters of all `levels`, the weakest first, before they are validated.

        A parameter of a weaker level may be adapted to a parameter of a stronger level, but not the reverse.
        """
        return {name: value for level in levels for name, value in level.items()}


ConfigT = TypeVar("ConfigT", bound=StrategyConfig)


@value
class Wrote:
    """Text of the step in progress, as the model writes it.

    With `thinking` it is part of the answer in that step, which begins with all such text, but for white space around
    it; `thinking` are the pieces of the reasoning before it, which is the text of the step.
    """

    text: str
    thinking: Sequence[str] | None = None


@value
class Step:
    """A completed step. `metrics` are those of the run so far; an interrupted run keeps the last ones.

    `usage` is what the step spent and `elapsed_s` how long it took; None: all that was spent, and the time, since the
    step before. Steps that were made at the same time say both. `tokens` are those of the answer, with their log
    probabilities, where these were asked for.
    """

    detail: StepDetail
    answer_found: bool
    metrics: StrategyMetrics
    usage: Usage | None = None
    elapsed_s: float | None = None
    tokens: Sequence[TokenChance] = ()


@value
class Outcome:
    """The end of a run; nothing follows it. `usage` is what `reason` adds: what the run spent."""

    answer: str
    finish_reason: FinishReason
    metrics: StrategyMetrics
    warnings: Sequence[str] = ()
    usage: Usage | None = None


StrategyEvent = Wrote | Step | Outcome

SHORTAGES: Final = (TokenBudgetExhaustedError, ContextExhaustedError)
"""The errors of a call that a run has no budget for, or whose prompt does not fit the model's window."""


def find_shortage_reason(error: ReasondError) -> FinishReason:
    """Return how a run ends that goes no further for one of SHORTAGES."""
    return FinishReason.TRUNCATED if isinstance(error, ContextExhaustedError) else FinishReason.BUDGET_EXHAUSTED


class EarlyEnding:
    """What a run has made so far, and how it ends with that if a later call is refused for a shortage."""

    def __init__(self) -> None:
        self._last: Step | None = None
        self._answer = ""

    def note(self, step: Step) -> None:
        """Take in the next step."""
        self._last = step
        if step.answer_found:
            self._answer = getattr(step.detail, "answer", "") or self._answer

    def build_outcome(self, error: ReasondError) -> Outcome:
        """Return the outcome with the last answer that a step found; `error` is one of SHORTAGES, and its warning.

        Raises:
            ReasondError: `error`, if there was no step.
        """
        if self._last is None:
            raise error
        return Outcome(
            answer=restore(self._answer),
            finish_reason=find_shortage_reason(error),
            metrics=self._last.metrics,
            warnings=(error.full_message,),
        )


class Effect(Protocol):
    """An effect that must not happen twice, as an asynchronous context manager.

        async with context.effect("mail", digest, is_idempotent=False) as effect:
            if effect.recorded is None:
                await effect.complete(json.dumps(await send(key=effect.idempotency_key)))

    Without a call of `complete`, the effect stays begun. A resumed run repeats it if it is idempotent, and fails
    otherwise.
    """

    @property
    def recorded(self) -> str | None:
        """The body of `complete` before the run was resumed; None if the effect must be done now."""

    @property
    def idempotency_key(self) -> str:
        """The idempotency key for another system; it is the same after a resume."""

    async def __aenter__(self) -> Self:
        """Record that the effect begins, unless it is completed.

        Raises:
            ToolOutcomeUnknownError: the effect was begun before the run was resumed, and is not idempotent.
        """

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the record stays as it is."""

    async def complete(self, body: str) -> None:
        """Record `body`, a JSON text, as the result; return after the commit."""


class EffectSource(Protocol):
    """The store of a run's effects."""

    def begin(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:
        """See `RunContext.effect`."""


class PlainEffect:
    """An effect of a run without a server; nothing is recorded."""

    recorded: str | None = None

    def __init__(self) -> None:
        self.idempotency_key = new_nonce()

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""

    async def complete(self, body: str) -> None:
        """Record nothing."""


class _PlainEffects:
    def begin(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:  # noqa: ARG002 - the protocol gives it
        return PlainEffect()


@value
class RunContext(Generic[ConfigT]):
    """The inputs and services of one run.

    `model` meters and limits every call: it raises TokenBudgetExhaustedError before a call that the task's budget does
    not cover. `tools` are the tools that the run may call; a failure of a tool is returned, not raised. `programs` runs
    programs of the model apart from the server; a failure of a program is returned, too. `monotonic` returns seconds,
    for measuring durations. `new_nonce` returns a random mark for the fences of untrusted text (`context.fences`); a
    run calls it once. `schemas` compiles the schemas of answers.
    """

    config: ConfigT
    model: ChatModel
    tools: Toolbox = NO_TOOLS
    programs: ProgramRunner = NO_PROGRAMS
    monotonic: Callable[[], float] = time.monotonic
    new_nonce: Callable[[], str] = new_nonce
    effects: EffectSource = _PlainEffects()
    schemas: SchemaCompiler = field(default_factory=SchemaCompiler)

    def effect(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:
        """Return an effect that must not happen twice; it begins when its context is entered.

        `kind` is a word without a colon, and `digest` (hexadecimal) identifies the effect. Both are stored, so neither
        may have content of the task. Effects with equal `kind` and `digest` are numbered in the order of these calls.
        """
        return self.effects.begin(kind, digest, is_idempotent=is_idempotent)


class ReasoningStrategy(ABC, Generic[ConfigT]):
    """A reasoning strategy (seed 000 FR-1).

    Subclasses have a name (`name`, `^[a-z_][a-z0-9_]*$`), one sentence about their purpose (`description`), a Pydantic
    model of their configuration (`config_type`), and the growth of their model calls (`cost_class`, and `cost_formula`
    in terms of the configuration).

    `is_plain` says that texts of the task are sent as they are, on purpose, without fences around what strangers wrote.

    `shows_answer` says that its one step has the answer, and that texts of the answer are marked (`Wrote.thinking`).

    `is_replayable` promises that a run depends only on its task, its configuration, its nonces, and the replies of its
    model and tools: with the same inputs, it makes the same calls and steps again. Only such a run can be resumed after
    its process died; any other ends as FAILED with its steps so far. If a replay differs despite the promise, the run
    keeps its logged steps, and its result has a warning.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    config_type: ClassVar[type[StrategyConfig]]
    cost_class: ClassVar[CostClass | None] = None
    cost_formula: ClassVar[str] = ""
    is_plain: ClassVar[bool] = False
    shows_answer: ClassVar[bool] = False
    is_replayable: ClassVar[bool] = False

    @abstractmethod
    def run(self, task: Task, context: RunContext[ConfigT]) -> AsyncGenerator[StrategyEvent, None]:
        """Solve `task`: yield any number of Wrote and Step, then exactly one Outcome.

        Raises:
            ReasondError: the run failed; steps that were yielded before are kept. One of SHORTAGES after the first step
                is no failure: the run ends with the last answer that a step found.
        """

    def check(self, task: Task, config: ConfigT, model: ChatModel) -> None:
        """Refuse a task that cannot work, before anything is spent; the default accepts everything.

        Raises:
            InvalidConfigError: `config` cannot work for this task and model.
        """

    async def reason(
        self,
        query: str,
        *,
        model: ChatModel | None = None,
        material: str = "",
        programs: ProgramRunner = NO_PROGRAMS,
        **config: object,
    ) -> Outcome:
        """Run to the end without a server and return the outcome, with what it spent (seed 000 FR-1.2).

        `programs` runs programs, for the strategies that need it. Without `model` the embedded demo model answers, as
        on a server without configuration, with a warning.

        Raises:
            pydantic.ValidationError: `config` is not valid.
            InvalidRequestError: `query` is empty.
            ReasondError: as `run`.
        """
        if not query.strip():
            raise InvalidRequestError.at("query", "must not be empty")
        if model is None:
            # Imported here, because callers with their own model do not need it.
            from reasond_server.demo import DemoModel  # noqa: PLC0415 - see above

            outcome = await self.reason(
                query, model=(demo := DemoModel()), material=material, programs=programs, **config
            )
            return replace(outcome, warnings=(*outcome.warnings, *demo.warnings))
        task = Task(query=query, material=material, strategy=self.name)
        checked: Any = self.config_type.model_validate(config)
        if model.context_window is not None:
            checked = checked.adapt_to_window(model.context_window)
        self.check(task, checked, model)
        metered, ending = MeteredModel(model=model, budget=Budget()), EarlyEnding()
        async with aclosing(self.run(task, RunContext(config=checked, model=metered, programs=programs))) as events:
            try:
                async for event in events:
                    if isinstance(event, Outcome):
                        return replace(event, usage=metered.usage)
                    if isinstance(event, Step):
                        ending.note(event)
            except SHORTAGES as error:
                return replace(ending.build_outcome(error), usage=metered.usage)
        message = f"strategy {self.name!r} ended without an outcome"
        raise InternalError(message)

    def get_config_schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the configuration."""
        return {**self.config_type.model_json_schema(), "title": self.name, "description": self.description}

    def get_capabilities(self) -> list[str]:
        """Return the capabilities of this strategy, `reasoning.strategy.{name}` first."""
        return [f"reasoning.strategy.{self.name}"]

"""The port to strategies: what one is given, what it yields, how it describes itself.

A strategy is stateless: everything that belongs to one run is local to `run`. It knows neither the
transport nor the store nor who is listening; its steps are numbered, timed and costed by the runner.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from reasond_server.clock import new_nonce
from reasond_server.errors import InternalError
from reasond_server.tools.toolbox import NO_TOOLS
from reasond_server.types import CostClass, FinishReason, StepDetail, StrategyMetrics, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import Self

    from reasond_server.llm.model import ChatModel
    from reasond_server.tools.toolbox import Toolbox
    from reasond_server.types import Json


class StrategyConfig(BaseModel):
    """Base of every strategy's configuration: strict types, unknown keys refused, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @property
    def uses_tools(self) -> bool:
        """Whether the run calls tools: only then it is given any, and its caller needs `reasoning:tools`."""
        return False

    @classmethod
    def combine(cls, *levels: Json) -> dict[str, Any]:
        """Return the parameters of all `levels`, the weakest first, before they are checked.

        A parameter of a weaker level may be fitted to another one of a stronger level, never the other way round.
        """
        return {name: value for level in levels for name, value in level.items()}


ConfigT = TypeVar("ConfigT", bound=StrategyConfig)


@value
class Wrote:
    """Text of the step in progress, as the model writes it."""

    text: str


@value
class Step:
    """A completed step. `metrics` are the strategy's so far: a run that is cut keeps the last ones."""

    detail: StepDetail
    answer_found: bool
    metrics: StrategyMetrics


@value
class Outcome:
    """The end of a run; nothing follows it."""

    answer: str
    finish_reason: FinishReason
    metrics: StrategyMetrics
    warnings: Sequence[str] = ()


StrategyEvent = Wrote | Step | Outcome


class Effect(Protocol):
    """Something that must not happen twice, as an asynchronous context: what is in it happens once, whatever dies.

        async with context.effect("mail", digest, is_idempotent=False) as effect:
            if effect.recorded is None:
                await effect.complete(json.dumps(await send(key=effect.idempotency_key)))

    Left without `complete` it stays begun: a run that is gone on with does an idempotent one again, and fails with any
    other.
    """

    @property
    def recorded(self) -> str | None:
        """What `complete` was given in an earlier life of the run; None where it is to be done now."""
        ...

    @property
    def idempotency_key(self) -> str:
        """The key by which another system can tell that it is asked the same again: the same in every life."""
        ...

    async def __aenter__(self) -> Self:
        """Put on record that it begins, unless it is completed.

        Raises:
            ToolOutcomeUnknownError: it was begun in an earlier life, and is not idempotent.
        """
        ...

    async def __aexit__(self, *_: object) -> None:
        """Leave it as it is on record."""
        ...

    async def complete(self, body: str) -> None:
        """Keep `body`, JSON text, as what came of it; return once that is committed."""
        ...


class EffectSource(Protocol):
    """Where a run's effects are kept."""

    def begin(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:
        """See `RunContext.effect`."""
        ...


class PlainEffect:
    """An effect of a run without a server: it is done, and nothing is kept of it."""

    recorded: str | None = None

    def __init__(self) -> None:
        self.idempotency_key = new_nonce()

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""

    async def complete(self, body: str) -> None:
        """Keep nothing."""


class _PlainEffects:
    def begin(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:  # noqa: ARG002 - the protocol gives it
        return PlainEffect()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(Generic[ConfigT]):
    """What one run works with.

    `model` meters and bounds every call: it raises TokenBudgetExhaustedError before a call that the
    task's budget does not cover. `tools` are those that the run may call; calling one never raises for the
    tool's own failure. `monotonic` returns seconds, for measuring durations. `new_nonce` returns a random mark
    for the fences of untrusted text (`context.fences`); a run draws one and keeps it.
    """

    config: ConfigT
    model: ChatModel
    tools: Toolbox = NO_TOOLS
    monotonic: Callable[[], float] = time.monotonic
    new_nonce: Callable[[], str] = new_nonce
    effects: EffectSource = _PlainEffects()  # noqa: RUF009 - it keeps nothing

    def effect(self, kind: str, digest: str, *, is_idempotent: bool) -> Effect:
        """Return something that must not happen twice; it begins where its context is entered.

        `kind` is a word without a colon, and `digest` (hexadecimal) tells apart what is done: both are kept, so neither
        may be content. Alike effects are numbered in the order of these calls.
        """
        return self.effects.begin(kind, digest, is_idempotent=is_idempotent)


class ReasoningStrategy(ABC, Generic[ConfigT]):
    """A way of working a question out (seed 000 FR-1).

    Subclasses name themselves (`name`, `^[a-z][a-z0-9_]*$`), say in one sentence what they are good for
    (`description`), which Pydantic model configures them (`config_type`) and how their model calls grow
    (`cost_class`, and `cost_formula` in terms of the configuration).

    `is_replayable` promises that a run depends on nothing but its task, its configuration, the nonces it draws
    and the replies of its model and tools: given the same, it makes the same calls and steps again. Only then
    can a run whose process died go on elsewhere; otherwise it ends as FAILED with what it had. A run that does
    something else all the same keeps its logged steps, and its result has a warning.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    config_type: ClassVar[type[StrategyConfig]]
    cost_class: ClassVar[CostClass | None] = None
    cost_formula: ClassVar[str] = ""
    is_replayable: ClassVar[bool] = False

    @abstractmethod
    def run(self, task: Task, context: RunContext[ConfigT]) -> AsyncGenerator[StrategyEvent, None]:
        """Work `task` out: any number of Wrote and Step, then exactly one Outcome.

        Raises:
            ReasondError: the run failed; steps that were yielded before are kept.
        """

    def check(self, task: Task, config: ConfigT, model: ChatModel) -> None:
        """Refuse what cannot work before anything is spent; the default accepts everything.

        Raises:
            InvalidConfigError: `config` cannot work for this task and model.
        """

    async def reason(
        self, query: str, *, model: ChatModel | None = None, material: str = "", **config: object
    ) -> Outcome:
        """Run to the end without a server and return the outcome (seed 000 FR-1.2).

        Without `model` the embedded demo model answers, as on a server without configuration, and `warnings` say so.

        Raises:
            pydantic.ValidationError: `config` is not valid.
            ReasondError: as `run`.
        """
        if model is None:
            # Loaded here: whoever has a model does without this one.
            from reasond_server.llm.demo import DemoModel  # noqa: PLC0415 - see above

            outcome = await self.reason(query, model=(demo := DemoModel()), material=material, **config)
            return replace(outcome, warnings=(*outcome.warnings, *demo.warnings))
        task = Task(query=query, material=material, strategy=self.name)
        checked: Any = self.config_type.model_validate(config)
        self.check(task, checked, model)
        async with aclosing(self.run(task, RunContext(config=checked, model=model))) as events:
            async for event in events:
                if isinstance(event, Outcome):
                    return event
        message = f"strategy {self.name!r} ended without an outcome"
        raise InternalError(message)

    def get_config_schema(self) -> dict[str, Any]:
        """Return the JSON Schema (draft 2020-12) of the configuration."""
        return {**self.config_type.model_json_schema(), "title": self.name, "description": self.description}

    def get_capabilities(self) -> list[str]:
        """Return what this strategy can do, its own `reasoning.strategy.{name}` first."""
        return [f"reasoning.strategy.{self.name}"]

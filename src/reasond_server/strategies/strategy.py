"""The port to strategies: what one is given, what it yields, how it describes itself.

A strategy is stateless: everything that belongs to one run is local to `run`. It knows neither the
transport nor the store nor who is listening; its steps are numbered, timed and costed by the runner.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from reasond_server.clock import new_nonce
from reasond_server.errors import InternalError
from reasond_server.tools.toolbox import NO_TOOLS
from reasond_server.types import CostClass, FinishReason, StepDetail, StrategyMetrics, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.tools.toolbox import Toolbox


class StrategyConfig(BaseModel):
    """Base of every strategy's configuration: strict types, unknown keys refused, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @property
    def uses_tools(self) -> bool:
        """Whether the run calls tools: only then it is given any, and its caller needs `reasoning:tools`."""
        return False


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


class ReasoningStrategy(ABC, Generic[ConfigT]):
    """A way of working a question out (seed 000 FR-1).

    Subclasses name themselves (`name`, `^[a-z][a-z0-9_]*$`), say in one sentence what they are good for
    (`description`), which Pydantic model configures them (`config_type`) and how their model calls grow
    (`cost_class`, and `cost_formula` in terms of the configuration).

    `is_replayable` promises that a run depends on nothing but its task, its configuration, the nonces it draws
    and the replies of its model and tools: given the same, it makes the same calls and steps again. Only then
    can a run whose process died go on elsewhere; otherwise it ends as FAILED with what it had.
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

    async def reason(self, query: str, *, model: ChatModel, material: str = "", **config: object) -> Outcome:
        """Run to the end without a server and return the outcome (seed 000 FR-1.2).

        Raises:
            pydantic.ValidationError: `config` is not valid.
            ReasondError: as `run`.
        """
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

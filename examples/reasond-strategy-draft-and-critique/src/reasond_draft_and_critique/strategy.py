"""Draft, critique, revision: three kinds of model calls, each a step of its own."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors.base import Violation
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import (
    SHORTAGES,
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    Wrote,
    find_shortage_reason,
)
from reasond_server.types import CostClass, CustomMetrics, CustomStep, FinishReason, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatModel, Message
    from reasond_server.strategies.strategy import StrategyEvent

_LEAST_TOKENS = 64
_ACCEPTED = ("ok", "no objection", "no objections", "none")
_DRAFT = "Answer <question>. Write <answer>your answer</answer> and nothing after it."
_CRITIQUE = (
    "<notes> holds an answer to <question>. Look for what is wrong or missing in it. Write <answer>OK</answer> if "
    "there is nothing, else <answer>your objections</answer>."
)
_REVISION = (
    "<notes> holds an answer to <question> and the objections of a critic. Write <answer>a better answer</answer> that "
    "meets those that are right."
)


class DraftAndCritiqueConfig(StrategyConfig):
    """What a request, an agent's card or the operator can set. The published JSON Schema is made from this."""

    max_rounds: Annotated[int, Field(ge=0, le=8, description="Most rounds of a critique and a revision.")] = 2
    max_tokens: Annotated[
        int, Field(ge=_LEAST_TOKENS, le=8192, description="Most tokens the model may write in each call.")
    ] = 1024
    temperature: Annotated[
        float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of drafts and revisions.")
    ] = 0.7
    critic_temperature: Annotated[
        float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of the critic.")
    ] = 0.0


@dataclass(slots=True, kw_only=True)
class _Run:
    """What one run knows. It lives in `run` alone: one strategy object serves all runs at once."""

    task: Task
    context: RunContext[DraftAndCritiqueConfig]
    nonce: str
    answer: str = ""
    objections: str = ""
    rounds: int = 0
    is_accepted: bool = False
    finish: ModelFinish = ModelFinish.STOP
    said: str = ""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to go on with, or no need to."""
        return not self.answer or self.is_accepted or self.finish is ModelFinish.CONTENT_FILTER

    async def call(self, instructions: str, *, temperature: float) -> AsyncGenerator[Wrote, None]:
        """Make one model call and yield its text as it comes; `said` is then what it marked as its answer."""
        messages = build_prompt(
            instructions=instructions,
            question=self.task.query,
            nonce=self.nonce,
            notes=self._notes(),
            material=self.task.material,
        )
        call = stream_reply(
            model=self.context.model,
            messages=messages,
            max_tokens=_room(messages, self.context),
            temperature=temperature,
            kinds=(TagKind.ANSWER,),
        )
        # Closing the generator closes the model's stream: a cancelled run spends nothing more.
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    self.finish, self.said = piece.finish, (piece.parsed.content or piece.parsed.text).strip()
                else:
                    yield Wrote(text=piece.text)

    def step(self, kind: str, *, answer_found: bool = False) -> Step:
        """Return a completed step; over gRPC it travels as a Struct, over JSON-RPC as it is."""
        detail = CustomStep(data={"kind": kind, "round": self.rounds, "text": self.said})
        return Step(detail=detail, answer_found=answer_found, metrics=self._metrics())

    def outcome(self, reason: FinishReason, *warnings: str) -> Outcome:
        """Return the end of the run with the best answer so far."""
        # The model was shown the question neutralised and may repeat that; people see it as it was written.
        return Outcome(
            answer=restore(self.answer), finish_reason=reason, metrics=self._metrics(), warnings=tuple(warnings)
        )

    def _notes(self) -> str:
        if not self.objections:
            return self.answer
        return f"Answer:\n{self.answer}\n\nObjections:\n{self.objections}"

    def _metrics(self) -> CustomMetrics:
        return CustomMetrics(data={"rounds": self.rounds, "is_accepted": self.is_accepted})


class DraftAndCritique(ReasoningStrategy[DraftAndCritiqueConfig]):
    """Drafts an answer, has a critic read it, and revises it until the critic objects to nothing.

    Cost: 1 call for the draft and 2 for each round, the last of which may be the critique alone. Memory: one answer
    and its critique. Latency: that of the calls, one after the other.

    Failure modes: a critic that always objects uses up the rounds (MAX_ITERATIONS, with the last revision); one that
    never objects makes this a single call at twice the price. An empty revision leaves the answer as it was.
    """

    name: ClassVar[str] = "draft_and_critique"
    description: ClassVar[str] = "Drafts an answer, lets a critic read it, and revises it until nothing is objected."
    config_type: ClassVar[type[DraftAndCritiqueConfig]] = DraftAndCritiqueConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = "at most 1 + 2 * max_rounds model calls"
    # The replies decide everything: no clock, no random numbers.
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: DraftAndCritiqueConfig, model: ChatModel) -> None:
        """Refuse what cannot work, before anything is spent.

        Raises:
            InvalidConfigError: an answer, its critique and a revision do not fit the model's window.
        """
        del task
        window = model.context_window
        if window is not None and 3 * config.max_tokens >= window:
            raise InvalidConfigError.of(
                Violation(
                    field="max_tokens",
                    description=f"must be below a third of the model's context window of {window} tokens, "
                    f"got {config.max_tokens}",
                )
            )

    async def run(self, task: Task, context: RunContext[DraftAndCritiqueConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Yield a step for every draft, critique and revision, then the outcome.

        Raises:
            TokenBudgetExhaustedError: the budget does not cover the draft.
            ContextExhaustedError: the question does not fit the model's window.
        """
        run = _Run(task=task, context=context, nonce=context.new_nonce())
        try:
            async with aclosing(_draft(run)) as events:
                async for event in events:
                    yield event
            while run.rounds < context.config.max_rounds and not run.is_over:
                run.rounds += 1
                async with aclosing(_round(run)) as events:
                    async for event in events:
                        yield event
        except SHORTAGES as error:
            if not run.answer:
                raise
            yield run.outcome(find_shortage_reason(error), error.full_message)
        else:
            yield _end(run)


async def _draft(run: _Run) -> AsyncGenerator[StrategyEvent, None]:
    config = run.context.config
    async with aclosing(run.call(_DRAFT, temperature=config.temperature)) as wrote:
        async for text in wrote:
            yield text
    run.answer = run.said
    yield run.step("draft", answer_found=bool(run.answer) and not config.max_rounds)


async def _round(run: _Run) -> AsyncGenerator[StrategyEvent, None]:
    config, run.objections = run.context.config, ""
    # What the critic writes is no part of an answer, so it is not streamed.
    async with aclosing(run.call(_CRITIQUE, temperature=config.critic_temperature)) as wrote:
        async for _ in wrote:
            pass
    run.objections = run.said
    run.is_accepted = run.objections.strip(" .!").casefold() in _ACCEPTED
    yield run.step("critique", answer_found=run.is_accepted)
    if run.is_over:
        return
    async with aclosing(run.call(_REVISION, temperature=config.temperature)) as wrote:
        async for text in wrote:
            yield text
    run.answer = run.said or run.answer
    yield run.step("revision")


def _end(run: _Run) -> Outcome:
    """Return how a run ends that was not cut short."""
    if run.finish is ModelFinish.CONTENT_FILTER:
        return run.outcome(FinishReason.CONTENT_FILTERED)
    if not run.answer:
        return run.outcome(FinishReason.TRUNCATED, "The model wrote no draft.")
    if run.is_accepted or not run.rounds:
        return run.outcome(FinishReason.ANSWERED)
    return run.outcome(FinishReason.MAX_ITERATIONS, "The critic objected to the answer before this one.")


def _room(messages: Sequence[Message], context: RunContext[Any]) -> int:
    """Return how much the model may write.

    Raises:
        ContextExhaustedError: the prompt leaves too little of the model's window.
    """
    window, most = context.model.context_window, context.config.max_tokens
    if window is None:
        return int(most)
    prompt = context.model.counter.count_prompt(messages)
    if window - prompt < _LEAST_TOKENS:
        raise ContextExhaustedError(
            f"the prompt has {prompt} tokens of the model's context window of {window}",
            remedy="Shorten query or material, or lower max_tokens.",
        )
    return min(int(most), window - prompt)

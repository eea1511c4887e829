"""Bounded context: reasoning of any length, and material of any length, in windows of one fixed size."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from reasond_server.context.calls import Reply, hear
from reasond_server.context.fences import new_nonce
from reasond_server.context.fitting import fitted_windows
from reasond_server.context.savings import SavingsMeter
from reasond_server.context.tags import TagKind, neutralize, restore
from reasond_server.context.windows import (
    MAX_CHUNK_SIZE,
    MAX_SEGMENTS,
    MIN_CARRYOVER_SIZE,
    WindowLimits,
    WindowPlan,
    plan_windows,
)
from reasond_server.errors import InvalidConfigError, TokenBudgetExhaustedError, Violation, shown
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig, Wrote
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    CarryoverMode,
    FinishReason,
    WindowMetrics,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.context.fitting import Fitted
    from reasond_server.context.replies import Fragment, Parsed
    from reasond_server.context.windows import Window
    from reasond_server.llm.model import ChatModel, TokenCounter
    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.types import Task, Usage

# Counting a text longer than this takes long enough to be felt by other runs in the same event loop.
_LONG_TEXT_CHARACTERS = 50_000
_MAX_EMPTY_REPLIES = 2


class BoundedContextConfig(StrategyConfig):
    """The parameters, with the defaults and ranges of seed 001; `carryover_mode` and `max_segments` are our own.

    `carryover_mode` defaults to "tail", the only mode of this release. "hybrid", the default that the
    contract plans, and "summary" come with a later one; until then they are refused.
    """

    chunk_size: Annotated[
        int, Field(ge=1024, le=MAX_CHUNK_SIZE, description="Size of every window: prompt, carryover and generated.")
    ] = 8192
    carryover_size: Annotated[
        int, Field(ge=MIN_CARRYOVER_SIZE, le=16384, description="Most tokens carried from one window to the next.")
    ] = 4096
    max_iterations: Annotated[
        int, Field(ge=1, le=50, description="Most reasoning iterations; reading material is not counted.")
    ] = 5
    # Not strict, because JSON has no enums and strict Pydantic takes no strings for them. The schema says what is
    # accepted today rather than what the contract plans.
    carryover_mode: Annotated[
        CarryoverMode,
        Field(
            strict=False,
            description="How progress is carried over; only 'tail' works now.",
            json_schema_extra={"enum": [CarryoverMode.TAIL.value]},
        ),
    ] = CarryoverMode.TAIL
    max_segments: Annotated[
        int, Field(ge=1, le=MAX_SEGMENTS, description="Most segments that the material may be read in.")
    ] = 512
    temperature: Annotated[
        float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of the model.")
    ] = 0.7


class BoundedContext(ReasoningStrategy[BoundedContextConfig]):
    """Windows of C = chunk_size tokens; the last m = carryover_size tokens written go on to the next.

    For every call prompt + carryover + generated <= C: by the server's count where it tells one, else by the
    model's counter; where that only estimates, by its upper estimate (`is_window_exact` false).
    `context.windows` states the arithmetic, `context.fitting` what happens where a server counts more.

    Reading: material that does not fit one window is read in segments, one call each. Reasoning: then at most
    `max_iterations` calls see question and notes; the last is told to answer. What a window passes on is the
    raw tail of its `<continue>` text, or of all it wrote if it marked none. An answer given before the last
    segment is kept as notes. An answer in the first call costs one call.

    Cost: with q tokens of question and frame, D of material and I iterations at most
    D / (C - q - m - C/8), times two where boundaries fall badly, plus I calls of at most C tokens: linear in
    D and I, attention at most calls * C(C+1)/2. Every window is sent q and m again, so more tokens are billed
    than in one pass (`tokens_pct` is negative). Memory: one window, and a line of metrics for each.
    Latency: that of the calls, one after the other.

    Failure modes: facts that the notes drop are lost; untrained models lose quality at C = 8192 against one
    pass (arXiv 2510.06557, figures for models off the shelf), less at 16384; the default carryover of half a
    window (seed 000) is the costliest choice of m. Two empty replies in a row end the run as TRUNCATED. A budget
    that ends after the first step ends the run as BUDGET_EXHAUSTED with the best answer so far.

    Source: seeds 000 (FR-3 to FR-5, BR-4, BR-5) and 001; Delethink, arXiv 2510.06557.
    """

    name: ClassVar[str] = "bounded_context"
    description: ClassVar[str] = (
        "Reads and reasons in windows of fixed size, carrying notes from each to the next: for long material and "
        "long reasoning."
    )
    config_type: ClassVar[type[BoundedContextConfig]] = BoundedContextConfig
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: BoundedContextConfig, model: ChatModel) -> None:
        """Refuse what cannot work; linear in the task's texts.

        Raises:
            InvalidConfigError: the mode is not there yet, chunk_size is larger than the model's window or too
                small for carryover_size, or the material needs too many segments.
        """
        if config.carryover_mode is not CarryoverMode.TAIL:
            raise InvalidConfigError.of(
                Violation(
                    field="carryover_mode",
                    description=f"must be 'tail' in this release, got {shown(config.carryover_mode.value)}; "
                    "'hybrid' and 'summary' come with a later one",
                )
            )
        window = model.context_window
        if window is not None and window < config.chunk_size:
            raise InvalidConfigError.of(
                Violation(
                    field="chunk_size",
                    description=f"must be at most the model's context window of {window} tokens, "
                    f"got {config.chunk_size}",
                )
            )
        _plan(task, config, model, new_nonce())

    async def run(self, task: Task, context: RunContext[BoundedContextConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Read, then reason; see the base class.

        Raises:
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ContextExhaustedError: by the server's count nothing useful fits a window.
        """
        config, model, nonce = context.config, context.model, context.new_nonce()
        if len(task.query) + len(task.material) > _LONG_TEXT_CHARACTERS:
            plan = await asyncio.to_thread(_plan, task, config, model, nonce)
        else:
            plan = _plan(task, config, model, nonce)
        progress = _Progress(plan=plan, counter=model.counter)
        async with aclosing(fitted_windows(plan, model=model, notes=lambda: progress.carryover)) as windows:
            async for fitted in windows:
                started_s = context.monotonic()
                progress.adopt(fitted)
                try:
                    async with aclosing(_called(fitted, config, model)) as heard:
                        async for piece in heard:
                            if isinstance(piece, Reply):
                                reply = piece
                            else:
                                yield Wrote(text=piece.text)
                except TokenBudgetExhaustedError:
                    if not progress.lines:
                        raise
                    yield progress.outcome(progress.best, FinishReason.BUDGET_EXHAUSTED)
                    return
                ending = progress.judge(fitted.window, reply)
                yield progress.step(fitted.window, reply, ending=ending, elapsed_s=context.monotonic() - started_s)
                if ending is not None:
                    yield progress.outcome(ending.answer, ending.finish_reason)
                    return


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How the run ends and with what."""

    answer: str
    finish_reason: FinishReason

    @property
    def is_answered(self) -> bool:
        return self.finish_reason in {FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED}


@dataclass(slots=True, kw_only=True)
class _Progress:
    """What one run knows between two windows; `best` is the last answer that was marked, whole or not."""

    plan: WindowPlan
    counter: TokenCounter
    is_question_clipped: bool = False
    is_window_exact: bool = True
    are_all_exact: bool = True
    carryover: str = ""
    best: str = ""
    empty_in_a_row: int = 0
    compressions: int = 0
    lines: list[WindowMetrics] = field(default_factory=list)
    savings: SavingsMeter = field(init=False)

    def __post_init__(self) -> None:
        self.savings = SavingsMeter(single_pass_tokens=self.plan.single_pass_tokens)

    def adopt(self, fitted: Fitted) -> None:
        """Take over what holds for the window that comes."""
        self.counter = fitted.counter
        self.is_question_clipped = fitted.plan.is_question_clipped
        self.is_window_exact = fitted.is_exact
        self.are_all_exact = self.are_all_exact and fitted.is_exact

    def judge(self, window: Window, reply: Reply) -> _Ending | None:
        """Decide whether `reply` ends the run; None to go on."""
        parsed = reply.parsed
        content = parsed.content.strip()
        answer = content if parsed.kind is TagKind.ANSWER else ""
        self.best = answer or self.best
        self.empty_in_a_row = 0 if parsed.written else self.empty_in_a_row + 1
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return _Ending(answer=self.best, finish_reason=FinishReason.CONTENT_FILTERED)
        if answer and parsed.is_closed and window.may_answer:
            return _Ending(answer=answer, finish_reason=FinishReason.ANSWERED)
        # Once may be an accident of sampling; twice in a row every further window would be paid for nothing.
        if self.empty_in_a_row == _MAX_EMPTY_REPLIES:
            return _Ending(answer=self.best, finish_reason=FinishReason.TRUNCATED)
        if window.reading is None and reply.finish is ModelFinish.STOP and _is_untagged(parsed):
            return _Ending(answer=parsed.text.strip(), finish_reason=FinishReason.ANSWERED_UNTAGGED)
        if window.is_last:
            last = content or parsed.written or self.best
            return _Ending(answer=last, finish_reason=FinishReason.MAX_ITERATIONS)
        return None

    def step(self, window: Window, reply: Reply, *, ending: _Ending | None, elapsed_s: float) -> Step:
        """Book the window and make its step."""
        written = reply.parsed.written
        is_generated = ending is None and bool(written)
        if is_generated:
            self.carryover = self._tail(reply.parsed)
            self.compressions += 1
        is_answered = ending is not None and ending.is_answered
        if reply.usage.total_tokens > self.plan.limits.chunk_size:
            # A server that ignores limits, or counts otherwise than it answers, does not make a promise of ours true.
            self.is_window_exact = self.are_all_exact = False
        self._book(window, reply.usage, is_answered=is_answered, is_generated=is_generated, elapsed_s=elapsed_s)
        carryover = self.carryover if ending is None else ""
        detail = BoundedContextStep(
            text=written,
            carryover=carryover,
            carryover_mode=CarryoverMode.TAIL,
            carryover_tokens=self.counter.count_text(carryover),
            carryover_generated=is_generated,
            window_tokens=reply.usage.total_tokens,
            is_window_exact=self.is_window_exact,
            reading=window.reading,
        )
        return Step(detail=detail, answer_found=is_answered, metrics=self._metrics())

    def outcome(self, answer: str, finish_reason: FinishReason) -> Outcome:
        """Make the end of the run."""
        warnings = []
        if self.is_question_clipped:
            warnings.append(
                "The query is longer than its share of a window: its beginning and end were shown in every window, "
                "what lies between was read as material."
            )
        return Outcome(
            answer=restore(answer), finish_reason=finish_reason, metrics=self._metrics(), warnings=tuple(warnings)
        )

    def _tail(self, parsed: Parsed) -> str:
        """Return the carryover: the last tokens of the notes, or of everything where none are marked."""
        notes = parsed.content.strip() if parsed.kind is TagKind.CONTINUE else ""
        # Neutralised first, because that can make it longer and the next window has no room for more.
        return self.counter.tail(neutralize(notes or parsed.written), self.plan.limits.carryover_size)

    def _book(self, window: Window, usage: Usage, *, is_answered: bool, is_generated: bool, elapsed_s: float) -> None:
        self.savings.add(usage)
        self.lines.append(
            WindowMetrics(
                iteration=len(self.lines),
                tokens=usage.total_tokens,
                has_answer=is_answered,
                carryover_generated=is_generated,
                execution_time_s=elapsed_s,
                is_reading=window.reading is not None,
            )
        )

    def _metrics(self) -> BoundedContextMetrics:
        return BoundedContextMetrics(
            iterations=tuple(self.lines),
            carryover_compressions=self.compressions,
            savings=self.savings.savings,
            capacity_tokens=self.plan.capacity_tokens,
            effective_capacity_tokens=self.plan.effective_capacity_tokens,
            is_window_exact=self.are_all_exact,
        )


def _is_untagged(parsed: Parsed) -> bool:
    """Return whether the reply has text and no marked content, so that the text is what the model has to say."""
    return bool(parsed.text.strip()) and not parsed.content.strip()


def _called(fitted: Fitted, config: BoundedContextConfig, model: ChatModel) -> AsyncGenerator[Fragment | Reply, None]:
    return hear(model=model, messages=fitted.messages, max_tokens=fitted.max_tokens, temperature=config.temperature)


def _plan(task: Task, config: BoundedContextConfig, model: ChatModel, nonce: str) -> WindowPlan:
    limits = WindowLimits(
        chunk_size=config.chunk_size,
        carryover_size=config.carryover_size,
        max_segments=config.max_segments,
        max_iterations=config.max_iterations,
    )
    return plan_windows(query=task.query, material=task.material, limits=limits, counter=model.counter, nonce=nonce)

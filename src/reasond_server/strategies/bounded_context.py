"""Bounded context: reasoning of any length, and material of any length, in windows of one fixed size."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from reasond_server.base.clock import new_nonce
from reasond_server.context.calls import ModelReply, run_by_size, stream_reply
from reasond_server.context.carryover import Carryover, Compression, Summary, compress, summarize
from reasond_server.context.tags import restore
from reasond_server.context.window_accounts import WindowAccounts
from reasond_server.context.window_endings import EndingJudge, RepetitionGuard, WindowEnding, adds_nothing
from reasond_server.context.window_fitting import FittedWindow, fit_windows
from reasond_server.context.window_plan import (
    MAX_CHUNK_SIZE,
    MAX_SEGMENTS,
    MIN_CARRYOVER_SIZE,
    WindowLimits,
    WindowPlan,
    plan_windows,
)
from reasond_server.errors.base import Violation
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ChatModel, ModelFinish, TokenCounter
from reasond_server.strategies.strategy import (
    SHORTAGES,
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    Temperature,
    Wrote,
    find_shortage_reason,
)
from reasond_server.types import NOTHING, BoundedContextStep, CarryoverMode, CostClass, FinishReason, Json, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import StrategyEvent

_CLIPPED = (
    "The query is longer than its share of a window: its beginning and end were shown in every window, "
    "what lies between was read as material."
)
_REPEATING = "The reasoning repeated itself: the model was asked to answer before max_iterations."
_AGAIN = "The model wrote nothing in a window that showed text: the same text was shown once more."
_DEFAULT_CARRYOVER_SIZE = 4096
_LEAST_CHUNK_SIZE = 1024
_LOOP = "The model repeated one piece of text over and over: its window was ended there."
_NARROWED = (
    "The model's server takes no more than {window} tokens: chunk_size was lowered from {chunk_size}, and the text is "
    "read in shorter passages."
)


class BoundedContextConfig(StrategyConfig):
    """The parameters, with the defaults and ranges of seed 001; the last three are our own."""

    chunk_size: Annotated[
        int,
        Field(
            ge=_LEAST_CHUNK_SIZE,
            le=MAX_CHUNK_SIZE,
            description="Size of every window: prompt, carryover and generated; where it is not set, at most the "
            "model's window.",
        ),
    ] = 8192
    carryover_size: Annotated[
        int,
        Field(
            ge=MIN_CARRYOVER_SIZE,
            le=16384,
            description="Most tokens carried from one window to the next; where chunk_size alone is set, at most half "
            "of it.",
        ),
    ] = _DEFAULT_CARRYOVER_SIZE
    max_iterations: Annotated[
        int, Field(ge=1, le=50, description="Most reasoning iterations; reading material is not counted.")
    ] = 5
    # Not strict, because JSON has no enums, and strict Pydantic refuses strings for them.
    carryover_mode: Annotated[
        CarryoverMode,
        Field(
            strict=False,
            description="What is carried over: 'hybrid' (head, fields, facts, tail), 'summary' (fields) or 'tail'.",
        ),
    ] = CarryoverMode.HYBRID
    max_segments: Annotated[
        int, Field(ge=1, le=MAX_SEGMENTS, description="Most segments that the material may be read in.")
    ] = 512
    temperature: Temperature = 0.7

    @property
    def window_tokens(self) -> int:
        """`chunk_size`."""
        return self.chunk_size

    @classmethod
    def combine(cls, *levels: Json) -> dict[str, Any]:
        """Return the parameters; limit carryover_size to half of a chunk_size from a stronger level."""
        values = super().combine(*levels)
        window, carryover = values.get("chunk_size"), values.get("carryover_size", _DEFAULT_CARRYOVER_SIZE)
        setting = next((level for level in reversed(levels) if {"chunk_size", "carryover_size"} & level.keys()), {})
        if "carryover_size" not in setting and isinstance(window, int) and isinstance(carryover, int):
            values["carryover_size"] = max(MIN_CARRYOVER_SIZE, min(carryover, window // 2))
        return values

    def adapt_to_window(self, window: int) -> Self:
        """Return it with a chunk_size that nobody set lowered to `window`."""
        is_kept = "chunk_size" in self.model_fields_set or window >= self.chunk_size
        return self if is_kept else self.narrow(window, is_carryover_kept="carryover_size" in self.model_fields_set)

    def narrow(self, window: int, *, is_carryover_kept: bool = False) -> Self:
        """Return it with a chunk_size of `window` tokens, and a carryover_size of at most half of that."""
        chunk_size = max(_LEAST_CHUNK_SIZE, window)
        most = self.carryover_size if is_carryover_kept else max(MIN_CARRYOVER_SIZE, chunk_size // 2)
        sizes = {"chunk_size": chunk_size, "carryover_size": min(self.carryover_size, most)}
        return self.model_copy(update=sizes)

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.max_iterations


class BoundedContext(ReasoningStrategy[BoundedContextConfig]):
    """Windows of C = chunk_size tokens; at most m = carryover_size tokens are passed from one to the next.

    For every call, prompt + carryover + generated <= C. The server's count is used if it reports one, else the count of
    the model's counter. If that is an estimate, the bound holds only by the estimate (`is_window_exact` false), and the
    model may count more. `context.window_plan` has the arithmetic, `context.window_fitting` the handling of servers
    that count more.

    When to use: for material or reasoning that does not fit one window, or to bound memory and attention. If
    everything fits one window, one pass of `chain_of_thought` costs fewer tokens.

    Reading: material that does not fit one window is read in segments, one call each. Reasoning: then at most
    `max_iterations` calls see question and notes, and the last one must answer. `context.carryover` describes the
    notes. In the modes hybrid and summary, a window that was cut at its limit needs one more call, which writes at most
    0.15 (C - m) tokens. An answer before the last segment is kept as notes. An answer in the first call costs one call.

    Cost: q is the number of tokens of question, rules and all fences, D that of the material, and I the number of
    iterations. R is 0 for tail, else at most 0.15 (C - m) plus the request. There are at most D / (C - q - m - C/8 - R)
    reading windows, or twice as many with bad boundaries, plus I windows, each of at most C tokens, and at most twice
    as many calls. These numbers are by the counter of the plan; if a server counts more, there are more and shorter
    segments. The cost is linear in D and I, and attention is at most calls * C(C+1)/2. Every window has the question
    and the notes again, so more tokens are billed than in one pass (`tokens_pct` is never positive). Memory: one
    window, and some 150 bytes for each earlier one. Latency: the calls are sequential.

    Failure modes: facts that the carryover drops are lost. Untrained models lose quality at C = 8192 compared with
    one pass (arXiv 2510.06557, figures for models off the shelf), less at 16384. The default carryover of half
    a window (seed 000) is the most expensive choice of m. A failed summary is replaced by facts and tail, with a
    warning. A run that repeats itself must answer in its next window and ends there. Text whose reply is empty is
    shown again in one more call, which counts for the budget but not for I. Two empty replies in a row, or a last
    window that hidden reasoning used up, end the run as TRUNCATED; `is_only_hidden_reasoning` of the last line of the
    metrics shows which. A budget that is exhausted after the first step ends the run as BUDGET_EXHAUSTED with the best
    answer so far. If counts that grow during the run leave no room for more text, or need more than max_segments, the
    model answers from what was read, and the run ends as TRUNCATED with a warning.

    Source: seeds 000 (FR-3 to FR-5, BR-4, BR-5) and 001; Delethink, arXiv 2510.06557.
    """

    name: ClassVar[str] = "bounded_context"
    description: ClassVar[str] = (
        "Reads and reasons in windows of fixed size, carrying notes from each to the next: for long material and "
        "long reasoning."
    )
    config_type: ClassVar[type[BoundedContextConfig]] = BoundedContextConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = (
        "windows <= max_iterations + min(max_segments, 1 + 2 * material / (7/8 * chunk_size - carryover_size - prompt "
        "- summary)), and one more for each empty reply; calls <= 2 * windows, = windows for carryover_mode tail; "
        "tokens <= calls * chunk_size; prompt: question, rules and all fences; summary: what is kept for a summary "
        "call, 0 for tail"
    )
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: BoundedContextConfig, model: ChatModel) -> None:
        """Refuse tasks that cannot work. Takes time linear in the task's texts.

        Raises:
            InvalidConfigError: chunk_size is larger than the model's window or too small for carryover_size, or
                the material needs too many segments.
        """
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
        """Read, then reason; see the base class. A server that refuses a window gets smaller ones from there on.

        Raises:
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ContextExhaustedError: by the server's count, the first window has no room for output.
        """
        config, model = context.config, context.model
        work = partial(_plan, task, config, model, context.new_nonce())
        plan = await run_by_size(task.text_characters, work)
        progress = _Progress(plan=plan, config=config, counter=model.counter)
        fitting = fit_windows(
            plan,
            model=model,
            sizes=lambda: (progress.config.chunk_size, progress.config.carryover_size),
            notes=progress.render_notes,
            must_end=lambda: progress.is_repeating,
            must_repeat=lambda: progress.is_unread,
        )
        try:
            async with aclosing(fitting) as windows:
                async for fitted in windows:
                    started_s = context.monotonic()
                    progress.adopt(fitted)
                    call = stream_reply(
                        model=model,
                        messages=fitted.messages,
                        max_tokens=fitted.max_tokens,
                        temperature=config.temperature,
                        ends_loops=True,
                    )
                    try:
                        async with aclosing(call) as pieces:
                            async for piece in pieces:
                                if isinstance(piece, ModelReply):
                                    reply = piece
                                else:
                                    yield Wrote(text=piece.text)
                    except ContextExhaustedError as error:
                        if not progress.narrow(error):
                            raise
                        continue
                    ending = progress.judge.decide(fitted.window, reply)
                    summary = None if ending else await _summarize(fitted, reply, progress.config, model)
                    elapsed_s = context.monotonic() - started_s
                    yield progress.build_step(fitted, reply, ending=ending, summary=summary, elapsed_s=elapsed_s)
                    if ending is not None:
                        yield progress.build_outcome(ending)
                        return
        except SHORTAGES as error:
            if progress.accounts.is_empty:
                raise
            reason = find_shortage_reason(error)
            warning = error.full_message if reason is FinishReason.TRUNCATED else ""
            yield progress.build_outcome(
                WindowEnding(answer=progress.judge.best, finish_reason=reason, warning=warning)
            )


class _Progress:
    """The state of one run between two windows."""

    def __init__(self, *, plan: WindowPlan, config: BoundedContextConfig, counter: TokenCounter) -> None:
        self.accounts = WindowAccounts(plan, counter=counter)
        self._plan = plan
        self.is_repeating = False
        self.is_unread = False
        self.config = config
        self._counter = counter
        self._carryover = Carryover(mode=config.carryover_mode)
        self.judge = EndingJudge()
        self._guard = RepetitionGuard()
        self._is_window_exact = True

    def render_notes(self, counter: TokenCounter) -> str:
        """Return the carryover, within carryover_size by `counter`."""
        return self._carryover.render(counter=counter, limit=self.config.carryover_size)

    def narrow(self, error: ContextExhaustedError) -> bool:
        """Make the windows as small as `error` tells, or half as large; return False if it is not of the server."""
        size, reported = self.config.chunk_size, int(error.metadata.get("context_window", 0))
        window = reported if 0 < reported < size else size // 2
        if "status" not in error.metadata or window < _LEAST_CHUNK_SIZE:
            return False
        self.accounts.warn(_NARROWED.format(window=window, chunk_size=size))
        self.config = self.config.narrow(window)
        return True

    def adopt(self, fitted: FittedWindow) -> None:
        """Use the counter and the exactness of `fitted` for the next window."""
        self._counter = fitted.counter
        self._is_window_exact = fitted.is_exact
        self._plan = fitted.plan
        self.accounts.warn(_CLIPPED if fitted.plan.is_question_clipped else "")
        self.accounts.warn(fitted.plan.shortfall)

    def build_step(
        self,
        fitted: FittedWindow,
        reply: ModelReply,
        *,
        ending: WindowEnding | None,
        summary: Summary | None,
        elapsed_s: float,
    ) -> Step:
        """Book the window, make its carryover, and return its step."""
        window, written = fitted.window, reply.parsed.written
        is_generated = ending is None and bool(written)
        made = self._compress(reply, summary) if is_generated else None
        is_empty = ending is None and not written
        self.is_unread = fitted.shows_text and is_empty and not adds_nothing(window, reply)
        self.accounts.warn(_AGAIN if self.is_unread else "")
        self.accounts.warn(_LOOP if reply.is_loop else "")
        notes = made.text if made else ""
        if ending is None and made is None:
            notes = self.render_notes(self._counter)
        # Only reasoning windows are compared, because every reading window shows another text.
        if is_generated and window.reading is None and self._guard.note_repetition(text=written, notes=notes):
            self.is_repeating = True
            self.accounts.warn(_REPEATING)
        is_answered = ending is not None and ending.is_answered
        tokens = self._book(
            fitted, reply, summary, is_answered=is_answered, is_generated=is_generated, elapsed_s=elapsed_s
        )
        detail = BoundedContextStep(
            text=written,
            carryover=notes,
            carryover_mode=self.config.carryover_mode,
            carryover_tokens=self._counter.count_text(notes),
            carryover_generated=is_generated,
            window_tokens=tokens,
            is_window_exact=self._is_window_exact,
            reading=window.reading,
            carryover_report=made.report if made else None,
        )
        return Step(detail=detail, answer_found=is_answered, metrics=self.accounts.metrics)

    def build_outcome(self, ending: WindowEnding) -> Outcome:
        """Return the outcome of the run. An answer does not count as one to the whole text if a part was left out."""
        self.accounts.warn(ending.warning)
        reason = ending.finish_reason
        is_short = self._plan.is_text_left_out or (bool(self._plan.shortfall) and not ending.is_answered)
        if is_short and (ending.is_answered or reason is FinishReason.MAX_ITERATIONS):
            reason = FinishReason.TRUNCATED
        return Outcome(
            answer=restore(ending.answer),
            finish_reason=reason,
            metrics=self.accounts.metrics,
            warnings=self.accounts.warnings,
        )

    def _compress(self, reply: ModelReply, summary: Summary | None) -> Compression:
        """Replace the carryover and return how it was made."""
        made = compress(
            self._carryover,
            written=reply.parsed,
            summary=summary.notes if summary else None,
            failure=summary.failure if summary else "",
            has_own_call=summary is not None and summary.usage is not None,
            counter=self._counter,
            limit=self.config.carryover_size,
        )
        self._carryover = made.carryover
        if reason := made.report.fallback_reason:
            self.accounts.warn(f"Facts and tail were carried over without a summary of the window: {reason}.")
        return made

    def _book(
        self,
        fitted: FittedWindow,
        reply: ModelReply,
        summary: Summary | None,
        *,
        is_answered: bool,
        is_generated: bool,
        elapsed_s: float,
    ) -> int:
        """Book the window and return its tokens."""
        usages = [reply.usage, *([summary.usage] if summary and summary.usage else [])]
        # The server may ignore limits, or count differently than it answers, so the reported usage is checked too.
        is_kept = all(usage.total_tokens <= self.config.chunk_size for usage in usages)
        self._is_window_exact = self._is_window_exact and is_kept and (summary is None or summary.is_exact)
        self.accounts.book_cut_call(reply.cut_usage + (summary.cut_usage if summary else NOTHING))
        return self.accounts.book(
            reply.usage,
            fitted=fitted,
            summary=summary.usage if summary else None,
            is_exact=self._is_window_exact,
            is_answered=is_answered,
            is_generated=is_generated,
            is_only_hidden_reasoning=reply.is_only_hidden_reasoning,
            elapsed_s=elapsed_s,
        )


async def _summarize(
    fitted: FittedWindow, reply: ModelReply, config: BoundedContextConfig, model: ChatModel
) -> Summary | None:
    """Return the summary of a window that was cut at its limit, made by a separate call; None if none is needed."""
    is_cut = reply.finish is ModelFinish.LENGTH and not reply.parsed.is_closed
    if config.carryover_mode is CarryoverMode.TAIL or not is_cut:
        return None
    return await summarize(
        model=model,
        messages=fitted.messages,
        written=reply.parsed,
        chunk_size=config.chunk_size,
        most_tokens=fitted.plan.summary_tokens,
        temperature=config.temperature,
    )


def _plan(task: Task, config: BoundedContextConfig, model: ChatModel, nonce: str) -> WindowPlan:
    limits = WindowLimits(
        chunk_size=config.chunk_size,
        carryover_size=config.carryover_size,
        max_segments=config.max_segments,
        max_iterations=config.max_iterations,
        carryover_mode=config.carryover_mode,
    )
    return plan_windows(query=task.query, material=task.material, limits=limits, counter=model.counter, nonce=nonce)

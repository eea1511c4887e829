"""Self-refine: a draft, a critique of it by the model itself, and a revision, until the critique finds nothing."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply
from reasond_server.context.final_replies import STEPS_FIRST, FinalReply, describe_silence, read_final_reply
from reasond_server.context.stages import Shown, StageCalls, StagePrompt, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelError
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Wrote
from reasond_server.types import CostClass, FinishReason, SelfRefineMetrics, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

DRAFT: Final = "draft"
CRITIQUE: Final = "critique"
REVISION: Final = "revision"
_CRITICISE: Final = (
    "The last section is a draft of the answer. Check it step by step: say of each step and fact whether it is right, "
    "and then whether the final answer is what the question asks for. Name each fault that must be mended, and how. "
    "Only then end with <answer>REVISE</answer> if there is a fault, or with <answer>PASS</answer> if there is none."
)
_REVISE: Final = (
    "The last sections are a draft of the answer and a critique of it. Mend what the critique is right about and leave "
    f"the rest as it is. Write the whole solution anew. {STEPS_FIRST}"
)
_VERDICT: Final = re.compile(r"\W{0,8}(pass|revise)\b\W{0,8}", re.IGNORECASE)
_BEFORE: Final = "the answer is that of before."
_FLAWS: Final = MappingProxyType(
    {
        ModelFinish.CONTENT_FILTER: "was withheld by the provider",
        ModelFinish.LENGTH: "was cut off before its verdict",
    }
)
# With temperature 0 the same draft gets the same verdict, as far as the model is repeatable.
_CRITIQUE_TEMPERATURE: Final = 0.0


class SelfRefineConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_rounds: Annotated[int, Field(ge=1, le=10, description="Most rounds of a critique and a revision.")] = 3
    max_tokens: Annotated[
        int,
        Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write for the draft or a revision."),
    ] = 4096
    max_critique_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens the model may write per critique.")
    ] = 1024
    temperature: Annotated[
        float, Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Sampling temperature of draft and revisions.")
    ] = 0.7

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return 2 * self.max_rounds + 1


class SelfRefine(ReasoningStrategy[SelfRefineConfig]):
    """Draft an answer, let the model criticise it, and revise it, for at most r = max_rounds rounds.

    A critique ends with a verdict. The run ends when a critique finds nothing to mend, when a revision gives an answer
    that was there before, or after r rounds; the last revision is not criticised. A call sees the question, the
    material, the last draft, and for a revision the last critique; nothing older.

    Cost: at most 1 + 2 r calls, 2 if the first critique finds nothing. A draft has P + G tokens, a critique at most
    P + G + K, a revision at most P + 2 G + K: P for the prompt, cached from the second call on if the provider caches,
    G <= max_tokens, K <= max_critique_tokens. Memory: one draft and one critique. Latency: all calls one after the
    other.

    Failure modes: a model that does not see its mistake passes it; one that doubts everything changes right answers
    into wrong ones. A critique without a readable verdict ends the run with the draft, with a warning. A revision
    without a whole answer, or a call that fails after the draft, ends the run with the answer before, with a warning.
    If the budget ends early, the last whole answer is given (BUDGET_EXHAUSTED).

    Source: Madaan et al. 2023, arXiv 2303.17651.
    """

    name: ClassVar[str] = "self_refine"
    description: ClassVar[str] = (
        "Drafts an answer, criticises it and revises it until the critique finds nothing: for texts and solutions "
        "whose faults the model can see when it reads them again."
    )
    config_type: ClassVar[type[SelfRefineConfig]] = SelfRefineConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = (
        "calls <= 1 + 2 * max_rounds, = 2 if the first critique finds nothing; a draft has at most prompt + max_tokens "
        "tokens, a critique prompt + max_tokens + max_critique_tokens, a revision prompt + 2 * max_tokens + "
        "max_critique_tokens"
    )
    is_replayable: ClassVar[bool] = True

    async def run(self, task: Task, context: RunContext[SelfRefineConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Draft, then criticise and revise; see the base class.

        Raises:
            ContextExhaustedError: question and material leave too little room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the draft.
            ModelError: the call for the draft failed.
        """
        stages = await prepare_stages(
            task,
            model=context.model,
            nonce=context.new_nonce(),
            instructions=(STEPS_FIRST, _CRITICISE, _REVISE),
            shown=2,
        )
        run = RefiningRun(config=context.config, stages=stages)
        async with aclosing(run.write_draft()) as events:
            async for event in events:
                yield event
        try:
            async with aclosing(run.refine()) as events:
                async for event in events:
                    yield event
        except TokenBudgetExhaustedError:
            run.end(FinishReason.BUDGET_EXHAUSTED, "The budget ended before the answer was refined to the end.")
        except ModelError as error:
            run.end(run.final.finish_reason, f"A call after the draft failed ({error.reason}): {_BEFORE}")
        yield run.build_outcome()


@dataclass(slots=True, kw_only=True)
class RefiningRun:
    """The state of one run.

    Attributes:
        seen: the answers so far, as they are compared.
        reason: why the run ends; None while it goes on.
        final: the last whole answer, or the draft if it has none.
        reply: the reply of the last call.
    """

    config: SelfRefineConfig
    stages: StageCalls
    seen: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    critiques: int = 0
    revisions: int = 0
    is_passed: bool = False
    is_repeated: bool = False
    reason: FinishReason | None = None
    final: FinalReply = field(init=False)
    reply: ModelReply = field(init=False)

    @property
    def metrics(self) -> SelfRefineMetrics:
        """The metrics so far."""
        return SelfRefineMetrics(
            critiques=self.critiques,
            revisions=self.revisions,
            is_passed=self.is_passed,
            is_repeated=self.is_repeated,
        )

    def end(self, reason: FinishReason, *warnings: str) -> None:
        """End the run with the last whole answer."""
        self.reason = reason
        self.warnings += warnings

    async def write_draft(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for the draft."""
        prompt = self.stages.fit(STEPS_FIRST, max_tokens=self.config.max_tokens)
        async with aclosing(self._call(prompt, temperature=self.config.temperature)) as written:
            async for event in written:
                yield event
        self.final = final = read_final_reply(self.reply, is_program=self.stages.is_program)
        self.warnings += describe_silence(self.reply, final)
        self.seen.add(_compute_key(final))
        yield self._build_step(DRAFT, final)

    async def refine(self) -> AsyncGenerator[StrategyEvent, None]:
        """Criticise and revise until the run is over; without a whole draft there is nothing to refine."""
        if not self.final.is_answered:
            self.end(self.final.finish_reason)
        while self.reason is None and self.revisions < self.config.max_rounds:
            prompt = self.stages.fit(_CRITICISE, self._show_draft(), max_tokens=self.config.max_critique_tokens)
            async with aclosing(self._call(prompt, temperature=_CRITIQUE_TEMPERATURE)) as written:
                async for event in written:
                    yield event
            critique = self._take_critique()
            yield Step(detail=StageStep(stage=CRITIQUE, text=critique.text), answer_found=False, metrics=self.metrics)
            if self.reason is not None:
                break
            prompt = self.stages.fit(_REVISE, self._show_draft(), critique, max_tokens=self.config.max_tokens)
            async with aclosing(self._call(prompt, temperature=self.config.temperature)) as written:
                async for event in written:
                    yield event
            yield self._take_revision()

    def _take_critique(self) -> Shown:
        """Read the critique; the run ends if it finds nothing or has no verdict."""
        parsed, finish = self.reply.parsed, self.reply.finish
        text = parsed.text.strip() or parsed.thinking.strip()
        self.critiques += 1
        verdict = read_verdict(parsed.content or parsed.text) if finish is ModelFinish.STOP else None
        if verdict:
            self.is_passed = True
            self.end(self.final.finish_reason)
        elif verdict is None or not text:
            cause = _FLAWS.get(finish, "has no verdict that can be read" if verdict is None else "names no fault")
            self.end(self.final.finish_reason, f"Critique {self.critiques} {cause}: {_BEFORE}")
        return Shown(name=CRITIQUE, text=text)

    def _take_revision(self) -> Step:
        """Read the revision; the run ends if it has no whole answer, or one that was there before."""
        final = read_final_reply(self.reply, is_program=self.stages.is_program)
        self.revisions += 1
        if not final.is_answered:
            self.end(self.final.finish_reason, f"Revision {self.revisions} has no whole answer: {_BEFORE}")
            return self._build_step(REVISION, final)
        self.final = final
        if _compute_key(final) in self.seen:
            self.is_repeated = True
            warning = (
                f"Revision {self.revisions} gave an answer that was there before, although the critique found faults."
            )
            self.end(final.finish_reason, warning)
        elif self.revisions == self.config.max_rounds:
            warning = f"The last of {self.config.max_rounds} revisions was not criticised any more (max_rounds)."
            self.end(FinishReason.MAX_ITERATIONS, warning)
        self.seen.add(_compute_key(final))
        return self._build_step(REVISION, final)

    async def _call(self, prompt: StagePrompt, *, temperature: float) -> AsyncGenerator[Wrote, None]:
        """Make a call; its end sets `reply`."""
        async with aclosing(self.stages.stream(prompt, temperature=temperature)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    self.reply = piece
                else:
                    yield Wrote(text=piece.text)

    def _show_draft(self) -> Shown:
        text = "\n".join(part for part in (self.final.thought, f"Final answer: {self.final.answer}") if part)
        return Shown(name=DRAFT, text=text)

    def _build_step(self, stage: str, final: FinalReply) -> Step:
        detail = StageStep(stage=stage, text=final.thought, answer=final.answer)
        return Step(detail=detail, answer_found=final.is_answered, metrics=self.metrics)

    def build_outcome(self) -> Outcome:
        """Return the outcome with the last whole answer."""
        return Outcome(
            answer=restore(self.final.answer),
            finish_reason=self.reason or self.final.finish_reason,
            metrics=self.metrics,
            warnings=(*self.warnings, *self.stages.warnings),
        )


def read_verdict(text: str) -> bool | None:
    """Return whether a critique passes the draft: True for PASS, False for REVISE, on its last line; else None."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = _VERDICT.fullmatch(lines[-1].strip()) if lines else None
    return None if found is None else found[1].casefold() == "pass"


def _compute_key(final: FinalReply) -> str:
    return normalize_answer(restore(final.answer))

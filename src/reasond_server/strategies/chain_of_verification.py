"""Chain of verification: a draft, questions about its facts, answers without the draft, and a revised answer."""

from __future__ import annotations

import re
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply, take_reply
from reasond_server.context.final_replies import STEPS_FIRST, FinalReply, describe_silence, read_final_reply
from reasond_server.context.sections import FENCE_TOKENS
from reasond_server.context.stages import Shown, StageCalls, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.dialects.answer_marks import EXAMPLE_ANSWER
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.waves import follow_wave
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Temperature, Wrote
from reasond_server.types import NOTHING, ChainOfVerificationMetrics, CostClass, FinishReason, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

DRAFT: Final = "draft"
QUESTIONS: Final = "questions"
CHECK: Final = "check"
REVISION: Final = "revision"

_ASK: Final = (
    "The passage holds a draft of the answer. Write at most {count} short questions that check the facts and numbers "
    "on which it rests, the doubtful ones first. Each must be clear to a reader who has not seen the draft, and must "
    "not say what the draft claims. Write each on a line of its own, as `Question 1: ...?`, and nothing else."
)
_CHECK: Final = (
    "The passage holds a question about this task. Answer the question in the passage, and no other, in a sentence or "
    "two, with the calculation if there is one. If it cannot be known, say so. Then repeat the answer alone between "
    f"tags, for example: <answer>{EXAMPLE_ANSWER}</answer>"
)
_REVISE: Final = (
    "The passages hold a draft of the answer, and questions about its facts with answers that were given without the "
    "draft. Correct the draft where these answers show that it is wrong, and keep what they support. "
    f"{STEPS_FIRST}"
)
# What lists of questions begin with: numbers, letters, bullets, marks of tables and JSON, and labels in some languages.
_LABEL: Final = (
    r"(?:verification |check )?(?:questions?|q|frage|pregunta|pergunta|domanda|вопрос|问题|質問|질문)[ \t]{0,2}"
)
_LEAD: Final = re.compile(
    r"[\s*_#>`\"'|(\[{\u2022\u2013-]{0,8}(?:<(?:question|q|li)>)?"
    rf"(?:(?P<label>{_LABEL}(?:\d{{1,3}}|(?=[:\uff1a\"])))|\d{{1,3}}(?=\s?[.):|\uff1a\u3001])|[a-z](?=[.)] ))?"
    r"[\s*_`.):\"'|\[{\uff1a\u3001-]{0,8}(?:question\"\s?:\s?\")?",
    re.IGNORECASE,
)
_MARK: Final = "?\uff1f\u061f"
_END: Final = re.compile(rf"[{_MARK}](?=[^{_MARK}]*\Z)")
_ASIDE: Final = re.compile(rf"[{_MARK}](?=[\s\"'*_`]{{0,4}}[(\[\u2013\u2014-])")
_NEXT: Final = re.compile(
    rf"(?<=[{_MARK}])[\s\"'*_`}}]{{0,4}}(?:,\s?|;\s?)?(?=\(?\d{{1,2}}[.):]\s|\(?[a-z][.)]\s|[*\u2022-]\s|{_LABEL}\d|[\"'{{])",
    re.IGNORECASE,
)
_EACH: Final = re.compile(rf"(?<=[{_MARK}])\s+")
_MAX_LINES: Final = 200
_MAX_QUESTION_CHARACTERS: Final = 500
_CHECKS_AT_ONCE: Final = 8
_NOT_KNOWN: Final = "(no answer)"
_NO_DRAFT: Final = FinalReply(thought="", answer="", finish_reason=FinishReason.TRUNCATED)


class ChainOfVerificationConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_questions: Annotated[int, Field(ge=1, le=10, description="Most questions about the facts of the draft.")] = 4
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens of the draft, and of the revised answer.")
    ] = 4096
    max_check_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=8192, description="Most tokens of all questions, and of the answer to each.")
    ] = 512
    temperature: Temperature = 0.0

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.max_questions + 3


class ChainOfVerification(ReasoningStrategy[ChainOfVerificationConfig]):
    """Draft an answer, check its facts one by one, and revise it.

    The questions are answered independently (the "factored" variant of the paper): a check shows the task and its own
    question, but neither the draft nor the other questions, so that an error of the draft is not just repeated. Checks
    run in parallel, 8 at once.

    Cost: q + 3 calls for q <= n = max_questions questions; 2 if no question can be read, 1 without a whole draft.
    Draft and revision write at most max_tokens, the others at most max_check_tokens. Every call reads the prompt of P
    tokens; the revision reads draft and checks, too. Memory: all replies. Latency: 4 calls one after the other for
    n <= 8.

    Failure modes: what the model believes wrongly in the draft it often believes in the check. A check that fails has
    no answer, with a warning. Without readable questions, or if the call for them or the revision fails, the draft is
    the answer, with a warning. If the revision is cut off or withheld, the draft is the answer, and the finish reason
    says so. If the budget ends, the draft is the answer (BUDGET_EXHAUSTED).

    Source: Dhuliawala et al. 2023, arXiv 2309.11495.
    """

    name: ClassVar[str] = "chain_of_verification"
    description: ClassVar[str] = (
        "Drafts an answer, checks its facts in model calls of their own that do not see the draft, and revises it: for "
        "questions about facts, where a fluent answer may be made up."
    )
    config_type: ClassVar[type[ChainOfVerificationConfig]] = ChainOfVerificationConfig
    cost_class: ClassVar[CostClass | None] = CostClass.LINEAR
    cost_formula: ClassVar[str] = (
        "calls <= max_questions + 3: draft, questions, a check of each, revision; draft and revision write at most "
        "max_tokens, the others max_check_tokens"
    )
    is_replayable: ClassVar[bool] = True

    async def run(
        self, task: Task, context: RunContext[ChainOfVerificationConfig]
    ) -> AsyncGenerator[StrategyEvent, None]:
        """Draft, ask, check, revise; see the base class.

        Raises:
            ContextExhaustedError: question and material leave no room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the draft.
            ModelError: the call for the draft failed.
        """
        run = await prepare_verification(task, context)
        for stage in (run.write_draft, run.ask_questions, run.check_facts, run.revise):
            try:
                async with aclosing(stage()) as events:
                    async for event in events:
                        yield event
            except TokenBudgetExhaustedError:
                if run.draft is _NO_DRAFT:
                    raise
                run.is_out_of_budget = run.is_over = True
            except ModelError as error:
                if run.draft is _NO_DRAFT:
                    raise
                run.is_over = True
                run.warnings.append(
                    f"A call after the draft failed ({error.reason}): the answer is that of the draft, unchecked."
                )
            if run.is_over:
                break
        yield run.build_outcome()


@dataclass(slots=True, kw_only=True)
class VerificationRun:
    """The state of one run: the draft, the questions, and the answer to each; empty if it has none."""

    task: Task
    config: ChainOfVerificationConfig
    context: RunContext[ChainOfVerificationConfig]
    calls: StageCalls
    allowance: Allowance
    ask_rule: str
    draft: FinalReply = field(default_factory=lambda: _NO_DRAFT)
    draft_tokens: int = 0
    questions: Sequence[str] = ()
    answers: list[str] = field(default_factory=list)
    revision: FinalReply | None = None
    warnings: list[str] = field(default_factory=list)
    is_out_of_budget: bool = False
    is_over: bool = False

    @property
    def metrics(self) -> ChainOfVerificationMetrics:
        """The metrics so far."""
        final = self.revision if self.revision is not None and self.revision.is_answered else self.draft
        return ChainOfVerificationMetrics(
            questions=len(self.questions),
            answered=sum(map(bool, self.answers)),
            is_revised=_differ(final.answer, self.draft.answer),
        )

    async def write_draft(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for the draft; without a whole one the run is over."""
        prompt = self.calls.fit(STEPS_FIRST, max_tokens=self.config.max_tokens)
        async with aclosing(self.calls.stream(prompt, temperature=self.config.temperature)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        self._settle(reply)
        self.draft = read_final_reply(reply, is_program=self.calls.is_program)
        self.draft_tokens = reply.usage.output_tokens
        self.warnings += describe_silence(reply, self.draft)
        self.is_over = not self.draft.is_answered
        detail = StageStep(stage=DRAFT, text=self.draft.thought, answer=self.draft.answer)
        yield Step(detail=detail, answer_found=self.draft.is_answered, metrics=self.metrics)

    async def ask_questions(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for questions about the draft; without a readable one the run is over."""
        asking = await self._bound_cost(self.ask_rule, self.draft_tokens + self.config.max_check_tokens)
        if not self.allowance.can_cover(asking + await self._bound_check() + await self._bound_revision(1)):
            self.is_out_of_budget = self.is_over = True
            return
        prompt = self.calls.fit(self.ask_rule, self._show_draft(), max_tokens=self.config.max_check_tokens)
        async with aclosing(self.calls.stream(prompt, temperature=self.config.temperature, kinds=())) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        self._settle(reply)
        self.questions = read_questions(reply.parsed.text, most=self.config.max_questions)
        if not self.questions:
            self.is_over = True
            self.warnings.append("The model wrote no question that could be read: the draft was not checked.")
        yield Step(
            detail=StageStep(stage=QUESTIONS, text=reply.parsed.text.strip()), answer_found=False, metrics=self.metrics
        )

    async def check_facts(self) -> AsyncGenerator[StrategyEvent, None]:
        """Answer each question without the draft, as many as the budget covers."""
        worst, revising = await self._bound_check(), await self._bound_revision(len(self.questions))
        covered = 0
        while covered < len(self.questions) and self.allowance.can_cover(worst + revising):
            self.allowance.reserve(worst)
            covered += 1
        if covered < len(self.questions):
            self.is_out_of_budget = True
            self.questions = self.questions[:covered]
        checks = [partial(self._check, number, question) for number, question in enumerate(self.questions)]
        wave = follow_wave(
            checks,
            at_once=_CHECKS_AT_ONCE,
            failures=(ModelError, TokenBudgetExhaustedError),
            monotonic=self.context.monotonic,
        )
        async with aclosing(wave) as results:
            async for result, elapsed_s in results:
                yield self._read_check(result, worst, elapsed_s)
        self.is_over = not self.questions
        if missing := self.answers.count(""):
            self.warnings.append(f"{missing} of {len(self.answers)} questions about the draft got no answer.")

    def _read_check(self, result: ModelReply | ReasondError, worst: Cost, elapsed_s: float) -> Step:
        """Settle the next check, keep its answer, and return its step."""
        question = self.questions[len(self.answers)]
        if isinstance(result, ReasondError):
            self.is_out_of_budget |= isinstance(result, TokenBudgetExhaustedError)
            self.allowance.settle(worst, Cost() if isinstance(result, UNSPENT) else worst)
            self.answers.append("")
            detail, spent = StageStep(stage=CHECK, text=question, answer=""), NOTHING
        else:
            self._settle(result, reserved=worst)
            final = read_final_reply(result, is_program=False)
            self.answers.append(final.answer if final.is_answered else "")
            text = f"{question}\n\n{final.thought}" if final.thought else question
            detail, spent = StageStep(stage=CHECK, text=text, answer=self.answers[-1]), result.spent
        return Step(detail=detail, answer_found=False, metrics=self.metrics, usage=spent, elapsed_s=elapsed_s)

    async def revise(self) -> AsyncGenerator[StrategyEvent, None]:
        """Ask for the answer in the light of the checks."""
        if not any(self.answers):
            self.warnings.append("No question about the draft was answered: the draft was not checked.")
            return
        lines = [
            f"Question {number}: {question}\nAnswer: {answer or _NOT_KNOWN}"
            for number, (question, answer) in enumerate(zip(self.questions, self.answers, strict=True), start=1)
        ]
        checks = Shown(name="checks", text="\n\n".join(lines))
        prompt = self.calls.fit(_REVISE, self._show_draft(), checks, max_tokens=self.config.max_tokens)
        async with aclosing(self.calls.stream(prompt, temperature=self.config.temperature)) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        self.revision = final = read_final_reply(reply, is_program=self.calls.is_program)
        self.warnings += describe_silence(reply, final)
        detail = StageStep(stage=REVISION, text=final.thought, answer=final.answer)
        yield Step(detail=detail, answer_found=final.is_answered, metrics=self.metrics)

    async def _check(self, number: int, question: str) -> ModelReply:
        """Answer one question; the prompt shows nothing of the draft."""
        # Equal questions have equal requests, and a replay must not swap them.
        shown = Shown(name=CHECK, text=question)
        prompt = self.calls.fit(_CHECK, shown, max_tokens=self.config.max_check_tokens)
        return await take_reply(self.calls.stream(prompt, temperature=self.config.temperature, label=f"check {number}"))

    def _show_draft(self) -> Shown:
        return Shown(name=DRAFT, text=f"{self.draft.thought}\n\nAnswer: {self.draft.answer}".strip())

    async def _bound_cost(self, instruction: str, more_tokens: int) -> Cost:
        """Return the largest cost of a call whose prompt and output have `more_tokens` beside question and material."""
        if self.task.budget.max_total_tokens is None:
            return Cost(model_calls=1)
        return Cost(model_calls=1, tokens=await self.calls.bound_tokens(instruction, more_tokens=more_tokens))

    async def _bound_check(self) -> Cost:
        return await self._bound_cost(_CHECK, self.config.max_check_tokens + _MAX_QUESTION_CHARACTERS + FENCE_TOKENS)

    async def _bound_revision(self, checks: int) -> Cost:
        """Return the cost of a revision that is as long as the draft."""
        shown = self.draft_tokens + checks * (self.config.max_check_tokens + _MAX_QUESTION_CHARACTERS)
        return await self._bound_cost(_REVISE, shown + min(self.config.max_tokens, self.draft_tokens + LEAST_TOKENS))

    def _settle(self, reply: ModelReply, *, reserved: Cost | None = None) -> None:
        spent = Cost(model_calls=reply.spent.model_calls, tokens=reply.spent.total_tokens)
        self.allowance.settle(reserved or Cost(), spent)

    def build_outcome(self) -> Outcome:
        """Return the revised answer, or the draft if there is none."""
        final, revision, reason = self.draft, self.revision, self.draft.finish_reason
        if revision is not None:
            reason = revision.finish_reason
            final = revision if revision.is_answered else self.draft
            if not revision.is_answered:
                self.warnings.append("The revision has no whole answer: the answer is that of the draft.")
        if self.is_out_of_budget and final.is_answered:
            reason = FinishReason.BUDGET_EXHAUSTED
            if revision is None:
                self.warnings.append("The budget ended before the draft was checked: the answer is that of the draft.")
            else:
                self.warnings.append("The budget did not cover all questions about the draft.")
        return Outcome(
            answer=restore(final.answer),
            finish_reason=reason,
            metrics=self.metrics,
            warnings=(*self.warnings, *self.calls.warnings),
        )


async def prepare_verification(task: Task, context: RunContext[ChainOfVerificationConfig]) -> VerificationRun:
    """Measure the window and set up the run.

    Raises:
        ContextExhaustedError: question and material leave too little of the model's context window.
    """
    config = context.config
    ask_rule = _ASK.format(count=config.max_questions)
    calls = await prepare_stages(
        task,
        model=context.model,
        nonce=context.new_nonce(),
        instructions=(STEPS_FIRST, ask_rule, _CHECK, _REVISE),
        shown=2,
    )
    return VerificationRun(
        task=task,
        config=config,
        context=context,
        calls=calls,
        allowance=Allowance(max_calls=task.budget.max_model_calls, max_tokens=task.budget.max_total_tokens),
        ask_rule=ask_rule,
    )


def read_questions(text: str, *, most: int) -> Sequence[str]:
    """Return the first `most` different questions, without their numbers and what is said about them.

    They are lines with a question mark, or with a label such as "Question 1:", and the items of a list in one line. A
    reply of one line has a question at each mark.
    """
    lines = [line for line in text.splitlines()[:_MAX_LINES] if line.strip()]
    if len(lines) == 1 and not _NEXT.search(lines[0]):
        lines = _EACH.split(lines[0])
    found: dict[str, None] = {}
    for item in [item for line in lines for item in _NEXT.split(line)]:
        question = _read_question(item)
        if 1 < len(question) <= _MAX_QUESTION_CHARACTERS:
            found[question] = None
    return tuple(found)[:most]


def _read_question(item: str) -> str:
    """Return the question of one item of a list; empty if it has none."""
    lead = _LEAD.match(item)
    rest = item[lead.end() :] if lead else item
    end = _ASIDE.search(rest) or _END.search(rest)
    if end is None:
        return rest.strip(' \t*_`",]}') if lead and lead["label"] else ""
    return rest[: end.end()]


def _differ(one: str, other: str) -> bool:
    return normalize_answer(restore(one)) != normalize_answer(restore(other))

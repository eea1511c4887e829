"""The contest of one run: its samples, their solutions, what the judge says of them, and which answer is the best."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.context.answer_schemas import VerifiedAnswer, verify_by_program, verify_by_schema
from reasond_server.context.calls import ModelReply, take_reply
from reasond_server.context.final_replies import STEPS_FIRST
from reasond_server.context.samples import (
    SAMPLES_AT_ONCE,
    OutputShares,
    SampleCalls,
    SampledAnswer,
    build_ladder,
    describe_gaps,
    explain_silence,
    read_sample,
)
from reasond_server.context.scores import (
    expect_preference,
    expect_score,
    pair_with_pivots,
    read_judgement,
    weigh_matches,
)
from reasond_server.context.sections import FENCE_TOKENS
from reasond_server.context.stages import Shown, StageCalls, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.llm.model import ModelFinish, find_most_logprobs
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.waves import follow_wave
from reasond_server.strategies.best_of_n.parameters import AnswerJudge, AnswerVerifier, BestOfNConfig
from reasond_server.strategies.strategy import Outcome, Step
from reasond_server.tools.programs import build_refusal
from reasond_server.types import BestOfNMetrics, FinishReason, ScoredAnswer, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from reasond_server.strategies.strategy import RunContext

SAMPLE: Final = "sample"
"""The stage of a sample."""
JUDGEMENT: Final = "judgement"
"""The stage of a judgement: what the judge wrote, the answer that it judged, and its score."""
COMPARISON: Final = "comparison"
"""The stage of a comparison: what the judge wrote, the answer that was shown first, and how likely it is preferred."""
CHECK: Final = "check"
"""The stage of a check that printed something: the end of it, the answer, and its score."""
UNKNOWN_SCORE: Final = 0.5
_DECIMALS: Final = 9
# Told to go through a solution, a small model repeats it, and then goes on with what stands behind it here.
_JUDGE: Final = (
    "Judge the solution in the last section now, without writing it again. Say of each of its steps whether it is "
    "right, and then whether its final answer is what the question asks for. At the end write your score between "
    "tags, from 0 (certainly wrong) to 10 (certainly right), for example: <answer>7</answer>"
)
_JUDGE_BY_DIGIT: Final = _JUDGE.replace("from 0 (certainly wrong) to 10", "one digit from 0 (certainly wrong) to 9")
_COMPARE: Final = (
    "The last two sections are proposed solutions, the first and the second. Go through both step by step: write down "
    "where each of them is wrong, if it is. Only then end with the number of the better one between tags, 1 or 2, for "
    "example: <answer>2</answer>"
)
_TOP_DIGITS: Final = 20
"""Alternatives that are asked for: the ten digits, and as many other tokens."""
_NO_LOGPROBS: Final = (
    "The model's server tells no probabilities of tokens: the digits that the judge wrote are the scores."
)
# With temperature 0 the same solution gets the same score, as far as the model is repeatable.
_JUDGE_TEMPERATURE: Final = 0.0
_JUDGES: Final = MappingProxyType(
    {
        AnswerJudge.WRITTEN: _JUDGE,
        AnswerJudge.EXPECTED_SCORE: _JUDGE_BY_DIGIT,
        AnswerJudge.TOURNAMENT: _JUDGE_BY_DIGIT,
    }
)


@dataclass(slots=True, kw_only=True)
class _Solution:
    """A solution that one or more samples gave, word for word; `score` is None until it is judged."""

    read: SampledAnswer
    score: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.read.text, self.read.answer


@dataclass(slots=True, kw_only=True)
class Contest:
    """The state of one run: its samples in order, and their different solutions in order.

    `verify` tells whether an answer is right; None if the model judges.
    """

    config: BestOfNConfig
    monotonic: Callable[[], float]
    stages: StageCalls
    calls: SampleCalls
    worst_sample: Cost
    worst_judgement: Cost
    worst_comparison: Cost
    allowance: Allowance
    shares: OutputShares
    verify: Callable[[str], Awaitable[VerifiedAnswer]] | None = None
    top_logprobs: int | None = None
    samples: list[SampledAnswer] = field(default_factory=list)
    solutions: list[_Solution] = field(default_factory=list)
    errors: list[ReasondError] = field(default_factory=list)
    taken: int = 0
    judged: int = 0
    failed_judgements: int = 0
    finalists: Sequence[_Solution] = ()
    matches: Sequence[tuple[int, int]] = ()
    compared: int = 0
    preferred: dict[tuple[int, int], float] = field(default_factory=dict)
    is_out_of_budget: bool = False

    @property
    def may_sample(self) -> bool:
        """Whether another sample may be taken; not if one is verified, or all samples of the first wave failed."""
        is_down = bool(self.errors) and not self.samples
        is_verified = self.verify is not None and any(each.score == 1 for each in self.solutions)
        return self.taken < self.config.samples and not (self.is_out_of_budget or is_down or is_verified)

    @property
    def needs_judge(self) -> bool:
        """Whether scores of the judge can change the outcome."""
        if self.verify is not None:
            return False
        answers = {each.read.normalized_answer for each in self.solutions}
        return len(answers) > 1 or (bool(answers) and self.config.min_score > 0)

    @property
    def may_judge(self) -> bool:
        """Whether another solution may be judged."""
        return self.needs_judge and self.judged < len(self.solutions)

    async def take_wave(self) -> AsyncGenerator[Step, None]:
        """Take the samples of one wave and yield their steps in order, each when its sample has ended."""
        most = 1 if self.verify is not None else min(self.config.samples - self.taken, SAMPLES_AT_ONCE)
        calls_each = 1 if self.verify is not None else 2
        most = self.shares.divide(most, outstanding=self.config.samples - self.taken, calls_each=calls_each)
        covered = self._reserve_wave(most) if most else ()
        if not covered:
            self.is_out_of_budget = True
            return
        calls = self.calls.prepare_wave(self.taken, len(covered))
        reserves = iter(covered)
        async with aclosing(self._follow(calls)) as results:
            async for result, elapsed_s in results:
                reserved = next(reserves)
                self.taken += 1
                if isinstance(result, ReasondError):
                    self._note_failure(result, reserved, self.worst_sample)
                    self.errors.append(result)
                    continue
                self.shares.settle(result.spent.output_tokens)
                read = read_sample(result, is_program=self.stages.is_program)
                is_new = self._add(read)
                kept = reserved - self.worst_sample if is_new else Cost()
                self.allowance.settle(reserved, _measure_cost(result) + kept)
                score, printed = await self._score(read)
                detail = StageStep(stage=SAMPLE, text=read.text, answer=read.answer, score=score)
                found, metrics = bool(read.normalized_answer), self.build_metrics()
                yield Step(detail=detail, answer_found=found, metrics=metrics, usage=result.spent, elapsed_s=elapsed_s)
                if printed:
                    yield Step(detail=replace(detail, stage=CHECK, text=printed), answer_found=found, metrics=metrics)
        self.is_out_of_budget = self.is_out_of_budget or len(covered) < most

    def _follow(
        self, calls: Sequence[Callable[[], Awaitable[ModelReply]]]
    ) -> AsyncGenerator[tuple[ModelReply | ReasondError, float], None]:
        failures = (ModelError, TokenBudgetExhaustedError)
        return follow_wave(calls, at_once=len(calls), failures=failures, monotonic=self.monotonic)

    def _reserve_wave(self, most: int) -> Sequence[Cost]:
        """Reserve up to `most` samples, each with its judgement, and return what was reserved for each.

        The very first sample is reserved in any case: a small budget may suffice for one answer, and the meter refuses
        or shortens the call otherwise.
        """
        pair = self.worst_sample + self.worst_judgement
        covered: list[Cost] = []
        while len(covered) < most and self.allowance.reserve(pair):
            covered.append(pair)
        if not (covered or self.taken):
            self.allowance.reserve(self.worst_sample, is_forced=True)
            covered.append(self.worst_sample)
        return covered

    def _add(self, read: SampledAnswer) -> bool:
        """Add a sample and return whether its solution may have to be judged."""
        self.samples.append(read)
        solution = _Solution(read=read)
        is_new = bool(read.normalized_answer) and solution.key not in {each.key for each in self.solutions}
        if is_new:
            self.solutions.append(solution)
        return is_new

    async def _score(self, read: SampledAnswer) -> tuple[float | None, str]:
        """Return the score of a sample, 0 or 1, and what its check printed; None if a judge scores it, or nothing can.

        An answer is verified once, however many samples gave it.
        """
        if self.verify is None or not read.normalized_answer:
            return None, ""
        alike = [each for each in self.solutions if each.read.answer == read.answer]
        known = next((each.score for each in alike if each.score is not None), None)
        verdict = await self.verify(restore(read.answer)) if known is None else VerifiedAnswer(is_right=known == 1)
        score = 1.0 if verdict.is_right else 0.0
        for each in alike:
            each.score = score
        return score, verdict.printed

    def _note_failure(self, error: ReasondError, reserved: Cost, worst: Cost) -> None:
        self.shares.settle_failure(error)
        self.allowance.settle(reserved, Cost() if isinstance(error, UNSPENT) else worst)
        if isinstance(error, TokenBudgetExhaustedError):
            self.is_out_of_budget = True

    async def judge_wave(self) -> AsyncGenerator[Step, None]:
        """Judge the next solutions and yield the steps of their judgements in order, each when its call has ended.

        The amounts of these calls are still reserved, except that of a first sample whose pair was not covered.
        """
        wave = self.solutions[self.judged : self.judged + SAMPLES_AT_ONCE]
        calls = [
            partial(self._judge, solution, f"judgement {self.judged + place}") for place, solution in enumerate(wave)
        ]
        self.shares.divide_evenly(len(self.solutions) - self.judged)
        judged = iter(wave)
        async with aclosing(self._follow(calls)) as results:
            async for result, elapsed_s in results:
                solution = next(judged)
                self.judged += 1
                if isinstance(result, ReasondError):
                    self._note_failure(result, self.worst_judgement, self.worst_judgement)
                    self.failed_judgements += 1
                    continue
                self._settle(result, self.worst_judgement)
                solution.score = self._read_judgement(result)
                yield self._build_step(JUDGEMENT, result, solution, solution.score, elapsed_s)

    def _settle(self, reply: ModelReply, reserved: Cost) -> None:
        self.shares.settle(reply.spent.output_tokens)
        self.allowance.settle(reserved, _measure_cost(reply))

    def _build_step(
        self, stage: str, reply: ModelReply, solution: _Solution, score: float | None, elapsed_s: float
    ) -> Step:
        parts = (reply.parsed.thinking.strip(), reply.parsed.text.strip())
        text = "\n\n".join(part for part in parts if part)
        return Step(
            detail=StageStep(stage=stage, text=text, answer=solution.read.answer, score=score),
            answer_found=True,
            metrics=self.build_metrics(),
            usage=reply.spent,
            elapsed_s=elapsed_s,
        )

    def begin_tournament(self) -> None:
        """Reserve the comparisons of the different answers, each by its best solution; without room there are none."""
        if self.config.judge is not AnswerJudge.TOURNAMENT or not self.needs_judge:
            return
        self.finalists = [self._find_best(each.answer) for each in self.list_answers()]
        matches = pair_with_pivots(len(self.finalists))
        whole = sum([self.worst_comparison] * len(matches), start=Cost())
        if self.shares.can_cover(len(matches)) and self.allowance.reserve(whole):
            self.matches = matches
        else:
            self.is_out_of_budget = True

    @property
    def may_compare(self) -> bool:
        """Whether another comparison is to be made."""
        return self.compared < len(self.matches)

    async def compare_wave(self) -> AsyncGenerator[Step, None]:
        """Make the next comparisons and yield their steps in order, each when its call has ended."""
        wave = self.matches[self.compared : self.compared + SAMPLES_AT_ONCE]
        calls = [
            partial(self._compare, match, f"comparison {self.compared + place}") for place, match in enumerate(wave)
        ]
        self.shares.divide_evenly(len(self.matches) - self.compared)
        met = iter(wave)
        async with aclosing(self._follow(calls)) as results:
            async for result, elapsed_s in results:
                match = next(met)
                self.compared += 1
                if isinstance(result, ReasondError):
                    self._note_failure(result, self.worst_comparison, self.worst_comparison)
                    continue
                self._settle(result, self.worst_comparison)
                is_whole, parsed = result.finish is ModelFinish.STOP, result.parsed
                found = expect_preference(result.tokens, parsed.content, parsed.text) if is_whole else None
                if found is not None:
                    self.preferred[match] = found
                yield self._build_step(COMPARISON, result, self.finalists[match[0]], found, elapsed_s)

    async def _compare(self, match: tuple[int, int], label: str) -> ModelReply:
        texts = [self.finalists[place].read.solution for place in match]
        shown = [Shown(name=name, text=text) for name, text in zip(("first", "second"), texts, strict=True)]
        return await self._ask(_COMPARE, *shown, label=label)

    def _find_best(self, answer: str) -> _Solution:
        givers = [each for each in self.solutions if each.read.normalized_answer == answer]
        return max(givers, key=lambda each: _weigh_score(each.score))

    async def _judge(self, solution: _Solution, label: str) -> ModelReply:
        shown = Shown(name="candidate", text=solution.read.solution)
        return await self._ask(_JUDGES[self.config.judge], shown, label=label)

    async def _ask(self, instruction: str, *shown: Shown, label: str) -> ModelReply:
        prompt = self.shares.limit(self.stages.fit(instruction, *shown, max_tokens=self.config.max_judge_tokens))
        call = self.stages.stream(prompt, temperature=_JUDGE_TEMPERATURE, label=label, top_logprobs=self.top_logprobs)
        return await take_reply(call)

    def _read_judgement(self, reply: ModelReply) -> float | None:
        """Return the score of a judgement; None if it was cut, withheld or has none."""
        if reply.finish is not ModelFinish.STOP:
            return None
        score = None
        if self.config.judge is not AnswerJudge.WRITTEN:
            score = expect_score(reply.tokens, reply.parsed.content)
        return read_judgement(reply.parsed.content, reply.parsed.text) if score is None else score

    def list_answers(self) -> Sequence[ScoredAnswer]:
        """Return the answers as they were compared, the best first.

        The best has the largest sum of the scores of its samples; after a tournament the score of each is the share of
        its answer. Of equal sums votes decide, then the order. Those below `min_score` are behind all others.
        """
        votes = Counter(each.normalized_answer for each in self.samples if each.normalized_answer)
        shares = self._find_shares()
        scores = {answer: shares.get(answer, self._find_score(answer)) for answer in votes}
        sums = self._sum_scores(shares)
        answers = [ScoredAnswer(answer=answer, votes=votes[answer], score=score) for answer, score in scores.items()]
        return sorted(answers, key=lambda each: (self._is_short(each), -sums[each.answer], -each.votes))

    def _find_shares(self) -> Mapping[str, float]:
        """Return what each answer has won in the tournament; nothing where there was none, or it has not ended."""
        if not self.matches or self.may_compare:
            return {}
        answers = [each.read.normalized_answer for each in self.finalists]
        return dict(zip(answers, weigh_matches(len(answers), self.preferred), strict=True))

    def _find_score(self, answer: str) -> float | None:
        """Return the best score of the solutions that gave an answer; None if none of them is judged."""
        found = [each.score for each in self.solutions if each.read.normalized_answer == answer]
        return max([score for score in found if score is not None], default=None)

    def _sum_scores(self, shares: Mapping[str, float]) -> Mapping[str, float]:
        """Return the sum of the scores of the samples that gave an answer, by the answer; its share is one, too."""
        judged = {each.key: _weigh_score(each.score) for each in self.solutions}
        given: dict[str, list[float]] = {}
        for each in self.samples:
            if answer := each.normalized_answer:
                given.setdefault(answer, []).append(shares.get(answer, judged[each.text, each.answer]))
        # Rounded, because 0.7 + 0.2 is to be 0.9.
        return {answer: round(fsum(scores), _DECIMALS) for answer, scores in given.items()}

    def _is_short(self, answer: ScoredAnswer) -> bool:
        """Return whether an answer does not reach `min_score`."""
        return self.config.min_score > 0 and (answer.score is None or answer.score < self.config.min_score)

    def build_metrics(self, *, is_abstained: bool = False) -> BestOfNMetrics:
        """Return the metrics so far."""
        return BestOfNMetrics(
            samples=len(self.samples),
            judgements=len(self.solutions) if self.verify is not None else self.judged - self.failed_judgements,
            answers=self.list_answers(),
            is_abstained=is_abstained,
        )

    def build_outcome(self) -> Outcome:
        """Choose the best answer and return the outcome."""
        answers = self.list_answers()
        warnings = [*self.stages.warnings, *self._list_gaps(answers)]
        if not answers:
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else explain_silence(self.samples)
            return Outcome(answer="", finish_reason=reason, metrics=self.build_metrics(), warnings=tuple(warnings))
        best = answers[0]
        if self._is_short(best):
            warnings.append(self._describe_doubt(best))
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else FinishReason.MAX_ITERATIONS
            metrics = self.build_metrics(is_abstained=True)
            return Outcome(answer="", finish_reason=reason, metrics=metrics, warnings=tuple(warnings))
        chosen = self._find_best(best.answer)
        reason = FinishReason.ANSWERED if chosen.read.is_tagged else FinishReason.ANSWERED_UNTAGGED
        return Outcome(
            answer=restore(chosen.read.answer),
            finish_reason=FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else reason,
            metrics=self.build_metrics(),
            warnings=tuple(warnings),
        )

    def _list_gaps(self, answers: Sequence[ScoredAnswer]) -> Sequence[str]:
        """Return the warnings about samples without an answer, and about a judge that did not choose."""
        gaps = [*describe_gaps(self.samples, self.errors, taken=self.taken)]
        if self.verify is not None and self.solutions and all(each.score == 0 for each in self.solutions):
            test = "passes check_program" if self.config.runs_programs else "satisfies answer_schema"
            gaps.append(f"No answer of {len(self.samples)} samples {test}.")
        if not self.needs_judge:
            return gaps
        if self.config.judge is not AnswerJudge.WRITTEN and self.top_logprobs is None:
            gaps.append(_NO_LOGPROBS)
        scores = {_weigh_score(each.score) for each in (answers if self._find_shares() else self.solutions)}
        known = [each.score for each in self.solutions if each.score is not None]
        if not known:
            gaps.append("The judge could not be read for any solution: the answer that most samples gave is chosen.")
        elif len(known) < len(self.solutions):
            gaps.append(
                f"{len(self.solutions) - len(known)} of {len(self.solutions)} solutions were not scored, because the "
                f"judgement failed or could not be read; they count as {UNKNOWN_SCORE:g}."
            )
        if unread := len(self.matches) - len(self.preferred):
            gaps.append(f"{unread} of {len(self.matches)} comparisons failed or could not be read; each is a draw.")
        if known and len(answers) > 1 and len(scores) == 1:
            gaps.append(
                f"The judge could not tell the {len(answers)} answers apart, which all have the score "
                f"{scores.pop():g}: the one that most samples gave is chosen."
            )
        return gaps

    def _describe_doubt(self, best: ScoredAnswer) -> str:
        score = "no score" if best.score is None else f"the score {best.score:g}"
        return f"No answer was given: the best has {score}, and min_score asks for {self.config.min_score:g}."


def _weigh_score(score: float | None) -> float:
    return UNKNOWN_SCORE if score is None else score


def _measure_cost(reply: ModelReply) -> Cost:
    return Cost(model_calls=reply.spent.model_calls, tokens=reply.spent.total_tokens)


async def _find_verifier(
    task: Task, context: RunContext[BestOfNConfig]
) -> Callable[[str], Awaitable[VerifiedAnswer]] | None:
    """Return what verifies answers; None for the judge.

    Raises:
        SandboxUnavailableError: there is no sandbox for the check.
    """
    config = context.config
    if config.runs_programs:
        if not context.programs.is_available:
            raise build_refusal()
        check = partial(context.programs.run, config.check_program, material=task.material, most_s=config.max_check_s)
        return partial(verify_by_program, check)
    if config.verifier is AnswerVerifier.SCHEMA:
        # `check` refuses a task without a schema.
        return partial(verify_by_schema, await context.schemas.compile(task.answer_schema or {}))
    return None


async def prepare_contest(task: Task, context: RunContext[BestOfNConfig]) -> Contest:
    """Build the prompt that all samples share and find the largest cost of each call."""
    config, budget = context.config, task.budget
    verify = await _find_verifier(task, context)
    is_tournament = config.judge is AnswerJudge.TOURNAMENT and verify is None
    stages = await prepare_stages(
        task,
        model=context.model,
        nonce=context.new_nonce(),
        instructions=(STEPS_FIRST, *_JUDGES.values(), *((_COMPARE,) if is_tournament else ())),
        shown=2 if is_tournament else 1,
    )
    prompt = stages.fit(STEPS_FIRST, max_tokens=config.max_tokens)
    sample, judgement = Cost(model_calls=1), Cost(model_calls=1) if verify is None else Cost()
    comparison = judgement
    if budget.max_total_tokens is not None:
        more = prompt.max_tokens + FENCE_TOKENS + config.max_judge_tokens
        sample += Cost(tokens=await stages.bound_tokens(STEPS_FIRST, more_tokens=prompt.max_tokens))
        if verify is None:
            judgement += Cost(tokens=await stages.bound_tokens(_JUDGE, more_tokens=more))
            more += prompt.max_tokens + FENCE_TOKENS
            comparison += Cost(tokens=await stages.bound_tokens(_COMPARE, more_tokens=more))
    shares, most_logprobs = OutputShares(budget.max_output_tokens), find_most_logprobs(context.model)
    return Contest(
        config=config,
        monotonic=context.monotonic,
        stages=stages,
        calls=SampleCalls(
            stages=stages,
            prompt=prompt,
            shares=shares,
            temperatures=build_ladder(config.temperature, config.samples),
            prompt_tokens=await stages.count_tokens(prompt),
        ),
        worst_sample=sample,
        worst_judgement=judgement,
        worst_comparison=comparison,
        allowance=Allowance(max_calls=budget.max_model_calls, max_tokens=budget.max_total_tokens),
        shares=shares,
        verify=verify,
        top_logprobs=_TOP_DIGITS if config.judge is not AnswerJudge.WRITTEN and most_logprobs else None,
    )

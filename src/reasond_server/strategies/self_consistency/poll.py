"""One run of self-consistency: samples taken in waves, the votes they cast, and what they come to."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import answer_of_text, normalize_answer
from reasond_server.context.calls import Reply, bound_prompt, hear, measure_room
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors import UNSPENT, ModelError, ReasondError, TokenBudgetExhaustedError
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ModelFinish
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.waves import run_wave
from reasond_server.strategies.self_consistency.temperatures import ladder
from reasond_server.strategies.self_consistency.voting import Tally
from reasond_server.strategies.strategy import Outcome, Step
from reasond_server.types import AnswerVotes, FinishReason, Sample, SelfConsistencyMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, Message
    from reasond_server.strategies.self_consistency.config import SelfConsistencyConfig
    from reasond_server.strategies.strategy import RunContext
    from reasond_server.types import Task

_SAMPLES_AT_ONCE: Final = 8
_WARM_UP_S: Final = 1.0
_RULES: Final = (
    "Work out what <question> asks. Think step by step, then write <answer>the final answer</answer> and nothing "
    "after it. Between the tags stands the answer alone, as short as it can be: no explanation, and a unit only if "
    "the question asks for one."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """One sample that ended: what it said, whether it tagged its answer, whether its provider withheld the text."""

    sample: Sample
    is_tagged: bool
    is_withheld: bool = False


@dataclass(slots=True, kw_only=True)
class Poll:
    """One run: what was sampled so far, in sample order."""

    config: SelfConsistencyConfig
    model: ChatModel
    messages: Sequence[Message]
    max_tokens: int
    worst: Cost
    allowance: Allowance
    temperatures: Sequence[float]
    warnings: Sequence[str]
    samples: list[_Sampled] = field(default_factory=list)
    errors: list[ReasondError] = field(default_factory=list)
    taken: int = 0
    is_out_of_budget: bool = False

    @property
    def tally(self) -> Tally:
        """The votes so far."""
        return Tally(cast=[each.sample.normalized_answer for each in self.samples])

    @property
    def left(self) -> int:
        """Samples that may still be taken."""
        return self.config.samples - self.taken

    @property
    def is_decided(self) -> bool:
        """Whether the samples that are left cannot change the outcome."""
        return self.tally.is_decided(self.left, min_agreement=self.config.min_agreement)

    @property
    def is_over(self) -> bool:
        """Whether no further sample is taken: also where a whole wave failed before anything was sampled."""
        is_down = bool(self.errors) and not self.samples
        return not self.left or self.is_out_of_budget or is_down or self.is_decided

    async def wave(self) -> Sequence[Step]:
        """Take the samples of one wave and return their steps."""
        most = min(self.tally.fewest(self.left, min_agreement=self.config.min_agreement), _SAMPLES_AT_ONCE)
        # The very first call is the meter's to refuse or to shorten: a small budget may still buy one answer.
        covered = [place for place in range(most) if self._reserved(is_first=not (self.taken or place))]
        if not covered:
            self.is_out_of_budget = True
            return ()
        begun = asyncio.Event()
        if self.taken:
            begun.set()
        temperatures = self.temperatures[self.taken : self.taken + len(covered)]
        calls = [partial(self._sampled, place, temperatures[place], begun) for place in range(len(covered))]
        results = await run_wave(calls, at_once=len(calls), failures=(ModelError, TokenBudgetExhaustedError))
        self.taken += len(results)
        fresh: list[_Sampled] = []
        for temperature, result in zip(temperatures, results, strict=True):
            if isinstance(result, TokenBudgetExhaustedError):
                self.is_out_of_budget = True
                self.taken -= 1
            if isinstance(result, ReasondError):
                self.errors.append(result)
                self.allowance.settle(self.worst, Cost() if isinstance(result, UNSPENT) else self.worst)
                continue
            self.allowance.settle(self.worst, Cost(model_calls=1, tokens=result.usage.total_tokens))
            fresh.append(_judged(result, temperature))
        self.samples += fresh
        return [
            Step(detail=each.sample, answer_found=bool(each.sample.normalized_answer), metrics=self.metrics())
            for each in fresh
        ]

    def _reserved(self, *, is_first: bool) -> bool:
        return self.allowance.reserve(self.worst, is_forced=is_first)

    async def _sampled(self, place: int, temperature: float, begun: asyncio.Event) -> Reply:
        """Take one sample: the first of all at once; the others when it writes or ends, at the latest after a second.

        A model that does not show its reasoning may say nothing for long.
        """
        if place:
            # Not wait_for: that of Python 3.11 loses a cancellation that comes as the event is set.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WARM_UP_S):
                    await begun.wait()
        call = hear(
            model=self.model,
            messages=self.messages,
            max_tokens=self.max_tokens,
            temperature=temperature,
            kinds=(TagKind.ANSWER,),
            # Samples at the same temperature ask for the same, and a replay must not swap them.
            label=f"sample {self.taken + place}",
        )
        try:
            async with aclosing(call) as heard:
                async for piece in heard:
                    begun.set()
                    if isinstance(piece, Reply):
                        reply = piece
        finally:
            begun.set()
        return reply

    def metrics(self, *, is_abstained: bool = False) -> SelfConsistencyMetrics:
        """Return the metrics so far."""
        tally = self.tally
        return SelfConsistencyMetrics(
            samples=len(self.samples),
            votes=tuple(AnswerVotes(answer=answer, votes=votes) for answer, votes in tally.votes),
            margin=tally.margin,
            is_stopped_early=bool(self.left) and not self.is_out_of_budget and self.is_decided,
            is_abstained=is_abstained,
        )

    def outcome(self) -> Outcome:
        """Count the votes.

        Raises:
            ReasondError: there is no sample; the first call's error.
        """
        if not self.samples:
            raise self.errors[0]
        tally = self.tally
        warnings = [*self.warnings, *self._gaps()]
        winner = next((each for each in self.samples if each.sample.normalized_answer == tally.winner), None)
        if not tally.winner or winner is None:
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else self._reason_of_silence()
            return Outcome(answer="", finish_reason=reason, metrics=self.metrics(), warnings=tuple(warnings))
        if not tally.agrees(self.config.min_agreement):
            warnings.append(self._disagreement(tally))
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else FinishReason.MAX_ITERATIONS
            metrics = self.metrics(is_abstained=True)
            return Outcome(answer="", finish_reason=reason, metrics=metrics, warnings=tuple(warnings))
        answer = restore(winner.sample.answer)
        return Outcome(
            answer=answer, finish_reason=self._reason(tally), metrics=self.metrics(), warnings=tuple(warnings)
        )

    def _reason(self, tally: Tally) -> FinishReason:
        if self.is_out_of_budget:
            return FinishReason.BUDGET_EXHAUSTED
        voters = [each for each in self.samples if each.sample.normalized_answer == tally.winner]
        is_tagged = any(each.is_tagged for each in voters)
        return FinishReason.ANSWERED if is_tagged else FinishReason.ANSWERED_UNTAGGED

    def _reason_of_silence(self) -> FinishReason:
        """Return why no sample cast a vote: the provider's filter where it withheld every one."""
        is_withheld = all(each.is_withheld for each in self.samples)
        return FinishReason.CONTENT_FILTERED if is_withheld else FinishReason.TRUNCATED

    def _gaps(self) -> Sequence[str]:
        """Return what must be said of samples that cast no vote."""
        failed = [error for error in self.errors if not isinstance(error, TokenBudgetExhaustedError)]
        withheld = sum(each.is_withheld for each in self.samples)
        silent = sum(not each.sample.normalized_answer for each in self.samples) - withheld
        gaps = []
        if failed:
            reasons = ", ".join(sorted({error.reason for error in failed}))
            gaps.append(f"{len(failed)} of {self.taken} samples failed ({reasons}) and cast no vote.")
        if withheld:
            gaps.append(f"{withheld} of {self.taken} samples were withheld by a content filter and cast no vote.")
        if silent:
            gaps.append(f"{silent} of {self.taken} samples ended without a whole answer and cast no vote.")
        return gaps

    def _disagreement(self, tally: Tally) -> str:
        votes = tally.votes[0][1]
        return (
            f"No answer was given: the best has {votes} of {tally.total} votes, and min_agreement "
            f"{self.config.min_agreement:g} asks for more."
        )


def _judged(reply: Reply, temperature: float) -> _Sampled:
    """Return what a reply says: a whole tagged answer, or what an untagged one comes to."""
    parsed = reply.parsed
    content, before = parsed.content.strip(), parsed.text.strip()
    is_withheld = reply.finish is ModelFinish.CONTENT_FILTER
    is_tagged = bool(content) and parsed.is_closed and not is_withheld
    answer = content
    if not content and reply.finish is ModelFinish.STOP:
        answer = answer_of_text(before)
    is_whole = is_tagged or (not content and bool(answer) and not is_withheld)
    text = "\n\n".join(part for part in (parsed.thinking.strip(), before) if part)
    normalized = normalize_answer(restore(answer)) if is_whole else ""
    sample = Sample(text=text, answer=answer, normalized_answer=normalized, temperature=temperature)
    return _Sampled(sample=sample, is_tagged=is_tagged, is_withheld=is_withheld)


async def prepared(task: Task, context: RunContext[SelfConsistencyConfig]) -> Poll:
    """Build the prompt that all samples share and see how much each may write."""
    config, model, budget = context.config, context.model, task.budget
    build = partial(
        build_prompt, instructions=_RULES, question=task.query, nonce=context.new_nonce(), material=task.material
    )
    is_long = len(task.query) + len(task.material) > LONG_TEXT_CHARACTERS
    messages = await asyncio.to_thread(build) if is_long else build()
    max_tokens, warnings = await measure_room(messages, max_tokens=config.max_tokens, model=model)
    worst = Cost(model_calls=1)
    if budget.max_total_tokens is not None:
        bound = partial(bound_prompt, messages, model.counter)
        worst = Cost(model_calls=1, tokens=max_tokens + (await asyncio.to_thread(bound) if is_long else bound()))
    return Poll(
        config=config,
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        worst=worst,
        allowance=Allowance(max_calls=budget.max_model_calls, max_tokens=budget.max_total_tokens),
        temperatures=ladder(config.temperature, config.samples),
        warnings=warnings,
    )

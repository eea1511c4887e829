"""Self-consistency: several independent samples of one prompt, and a vote over their final answers."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS
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
    refuse_equal_samples,
)
from reasond_server.context.stages import prepare_stages
from reasond_server.context.tags import restore
from reasond_server.context.votes import Tally
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import ChatModel, find_most_logprobs
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.waves import follow_wave
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig
from reasond_server.types import AnswerVotes, CostClass, FinishReason, Sample, SelfConsistencyMetrics, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent


NO_LOGPROBS: Final = "The model's server tells no probabilities of tokens, so every vote counts the same."


class SelfConsistencyConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    samples: Annotated[int, Field(ge=1, le=40, description="Most samples; fewer where the vote is decided early.")] = 5
    temperature: Annotated[
        float,
        Field(ge=0.0, le=2.0, allow_inf_nan=False, description="Middle of the temperatures; above 0 for 2 samples up."),
    ] = 0.7
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write per sample.")
    ] = 4096
    min_agreement: Annotated[
        float,
        Field(ge=0.0, le=1.0, allow_inf_nan=False, description="Share of the samples taken that must give the winner."),
    ] = 0.0
    confidence: Annotated[
        float,
        Field(
            ge=0.5,
            le=1.0,
            allow_inf_nan=False,
            description="Stop when the winner is that of all samples with this probability; 1: when it is certain.",
        ),
    ] = 1.0
    weigh_votes: Annotated[
        bool,
        Field(description="Whether a vote counts as much as the mean probability of its tokens, if a server tells it."),
    ] = False

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.samples


class SelfConsistency(ReasoningStrategy[SelfConsistencyConfig]):
    """Sample the same prompt n = samples times, at slightly different temperatures, and count the answers as votes.

    Votes are counted over normalised answers (`context.answers`); in a tie, the answer that was given first wins.
    Samples are taken in waves. A wave has the fewest samples that can decide the vote, (n + 1) // 2 in the first wave,
    at most 8 at once. Sampling ends as soon as no further sample can change the outcome, or, with a `confidence` below
    1, as soon as one would with a probability of at most 1 - confidence (`context.votes`). That bound takes samples
    that could have come in any order, so all of them then have the same temperature. The first sample begins alone; the
    others of its wave begin when it has begun to write, or a slow server has read the prompt (`context.samples`). So a
    server with a prefix cache reads the prompt only once.

    Cost: between (n + 1) // 2 and n calls, or fewer if min_agreement becomes impossible earlier or `confidence` is
    below 1: 7 of 40 with 0.95 if all agree. A call has P + G tokens: P for the prompt, cached from the second call on
    if the provider caches, and G <= max_tokens of output. Memory: the samples. Latency: one call if the first wave
    agrees, up to n // 2 + 1 sequential calls if the vote is open until the end.

    Failure modes: an error that most samples share wins the vote. If no sample has the right answer, no vote can find
    it. Answers that are texts rather than values rarely agree. A sample that fails or ends without an answer casts no
    vote and counts as disagreement; a warning has their number. Below min_agreement the run gives no answer:
    MAX_ITERATIONS, `is_abstained`, and the counts in a warning. If the budget is exhausted early, the samples so far
    decide (BUDGET_EXHAUSTED).

    Source: Wang et al. 2022, arXiv 2203.11171.
    """

    name: ClassVar[str] = "self_consistency"
    description: ClassVar[str] = (
        "Takes several independent samples and lets their final answers vote: for questions with one short answer."
    )
    config_type: ClassVar[type[SelfConsistencyConfig]] = SelfConsistencyConfig
    cost_class: ClassVar[CostClass | None] = CostClass.SAMPLED
    cost_formula: ClassVar[str] = (
        "calls <= samples, and >= (samples + 1) // 2 unless min_agreement is out of reach, or confidence reached, "
        "before; each of at most prompt + max_tokens tokens"
    )
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: SelfConsistencyConfig, model: ChatModel) -> None:  # noqa: ARG002 - the port's
        """Refuse a temperature at which all samples would be equal, and a bound that does not hold for weights.

        Raises:
            InvalidConfigError: temperature is 0 with more than one sample, or votes are weighed with a confidence.
        """
        refuse_equal_samples(config.temperature, config.samples)
        if config.weigh_votes and config.confidence < 1:
            description = f"must be 1 where weigh_votes is true, got {config.confidence:g}: its bound counts votes"
            raise InvalidConfigError.at("confidence", description)

    async def run(self, task: Task, context: RunContext[SelfConsistencyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Take samples in waves, then count the votes; see the base class.

        The steps of a wave are yielded in sample order, each when its sample and those before it have ended. No text is
        streamed (no Wrote), because samples are written in parallel.

        Raises:
            ContextExhaustedError: the prompt leaves no room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: every sample failed; this is the error of the first one.
        """
        poll = await prepare_poll(task, context)
        while not poll.is_over:
            async with aclosing(poll.take_wave(context.monotonic)) as steps:
                async for step in steps:
                    yield step
        yield poll.build_outcome()


@value
class _TakenSample:
    """A sample with its temperature, and what its vote counts; None: 1."""

    read: SampledAnswer
    temperature: float
    weight: float | None = None

    @property
    def detail(self) -> Sample:
        """The sample as a step."""
        return Sample(
            text=self.read.text,
            answer=self.read.answer,
            normalized_answer=self.read.normalized_answer,
            temperature=self.temperature,
            weight=self.weight,
        )


@dataclass(slots=True, kw_only=True)
class Poll:
    """The state of one run: its samples so far, in sample order."""

    config: SelfConsistencyConfig
    calls: SampleCalls
    worst: Cost
    allowance: Allowance
    shares: OutputShares
    temperatures: Sequence[float]
    warnings: Sequence[str]
    samples: list[_TakenSample] = field(default_factory=list)
    errors: list[ReasondError] = field(default_factory=list)
    taken: int = 0
    is_out_of_budget: bool = False

    @property
    def tally(self) -> Tally:
        """The votes so far; a failed sample counts as one without an answer."""
        cast = [each.read.normalized_answer for each in self.samples]
        failed = self.taken - len(cast)
        weights = [each.weight or 1.0 for each in self.samples] if self.config.weigh_votes else []
        return Tally(cast=[*cast, *[""] * failed], weights=[*weights, *[1.0] * failed] if weights else ())

    @property
    def left(self) -> int:
        """Number of samples that may still be taken."""
        return self.config.samples - self.taken

    @property
    def is_decided(self) -> bool:
        """Whether the remaining samples cannot change the outcome, or do so too seldom to be taken."""
        config = self.config
        return self.tally.is_decided(self.left, min_agreement=config.min_agreement, confidence=config.confidence)

    @property
    def is_over(self) -> bool:
        """Whether sampling has ended, also because all samples of the first wave failed."""
        is_down = bool(self.errors) and not self.samples
        return not self.left or self.is_out_of_budget or is_down or self.is_decided

    async def take_wave(self, monotonic: Callable[[], float]) -> AsyncGenerator[Step, None]:
        """Take the samples of one wave and yield their steps."""
        config = self.config
        most = self.tally.count_fewest(self.left, min_agreement=config.min_agreement, confidence=config.confidence)
        most = self.shares.divide(min(most, SAMPLES_AT_ONCE), outstanding=self.left)
        # The meter refuses or shortens the very first call: a small budget may still suffice for one answer.
        covered = [place for place in range(most) if self._reserve(is_first=not (self.taken or place))]
        if not covered:
            self.is_out_of_budget = True
            return
        temperatures = iter(self.temperatures[self.taken : self.taken + len(covered)])
        calls = self.calls.prepare_wave(self.taken, len(covered))
        failures = (ModelError, TokenBudgetExhaustedError)
        wave = follow_wave(calls, at_once=len(calls), failures=failures, monotonic=monotonic)
        async with aclosing(wave) as results:
            async for result, elapsed_s in results:
                temperature = next(temperatures)
                self.taken += 1
                if isinstance(result, ReasondError):
                    self._note_failure(result)
                    continue
                spent = result.spent
                self.shares.settle(spent.output_tokens)
                self.allowance.settle(self.worst, Cost(model_calls=spent.model_calls, tokens=spent.total_tokens))
                read = read_sample(result, is_program=self.calls.is_program)
                weight = read.mean_probability if self.config.weigh_votes else None
                fresh = _TakenSample(read=read, temperature=temperature, weight=weight)
                self.samples.append(fresh)
                yield Step(
                    detail=fresh.detail,
                    answer_found=bool(fresh.read.normalized_answer),
                    metrics=self.build_metrics(),
                    usage=spent,
                    elapsed_s=elapsed_s,
                )

    def _note_failure(self, error: ReasondError) -> None:
        if isinstance(error, TokenBudgetExhaustedError):
            self.is_out_of_budget = True
            self.taken -= 1
        self.errors.append(error)
        self.shares.settle_failure(error)
        self.allowance.settle(self.worst, Cost() if isinstance(error, UNSPENT) else self.worst)

    def _reserve(self, *, is_first: bool) -> bool:
        return self.allowance.reserve(self.worst, is_forced=is_first)

    def build_metrics(self, *, is_abstained: bool = False) -> SelfConsistencyMetrics:
        """Return the metrics so far."""
        tally, left = self.tally, self.left
        is_stopped_early = bool(left) and not self.is_out_of_budget and self.is_decided
        return SelfConsistencyMetrics(
            samples=len(self.samples),
            votes=tuple(AnswerVotes(answer=answer, votes=tally.cast.count(answer)) for answer, _ in tally.votes),
            margin=tally.margin,
            is_stopped_early=is_stopped_early,
            is_abstained=is_abstained,
            saved_samples=left if is_stopped_early else 0,
            error_bound=tally.bound_error(left),
        )

    def build_outcome(self) -> Outcome:
        """Count the votes and return the outcome.

        Raises:
            ReasondError: there is no sample; this is the error of the first call.
        """
        if not self.samples:
            raise self.errors[0]
        tally, reads = self.tally, [each.read for each in self.samples]
        gaps = describe_gaps(reads, self.errors, taken=self.taken, consequence=" and cast no vote")
        warnings = [*self.warnings, *gaps]
        winner = next((each for each in self.samples if each.read.normalized_answer == tally.winner), None)
        if not tally.winner or winner is None:
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else explain_silence(reads)
            return Outcome(answer="", finish_reason=reason, metrics=self.build_metrics(), warnings=tuple(warnings))
        if not tally.has_agreement(self.config.min_agreement):
            warnings.append(self._describe_disagreement(tally))
            reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else FinishReason.MAX_ITERATIONS
            metrics = self.build_metrics(is_abstained=True)
            return Outcome(answer="", finish_reason=reason, metrics=metrics, warnings=tuple(warnings))
        answer = restore(winner.read.answer)
        return Outcome(
            answer=answer,
            finish_reason=self._find_reason(tally),
            metrics=self.build_metrics(),
            warnings=tuple(warnings),
        )

    def _find_reason(self, tally: Tally) -> FinishReason:
        if self.is_out_of_budget:
            return FinishReason.BUDGET_EXHAUSTED
        voters = [each for each in self.samples if each.read.normalized_answer == tally.winner]
        is_tagged = any(each.read.is_tagged for each in voters)
        return FinishReason.ANSWERED if is_tagged else FinishReason.ANSWERED_UNTAGGED

    def _describe_disagreement(self, tally: Tally) -> str:
        votes, cast = tally.votes[0][1], sum(votes for _, votes in tally.votes)
        taken = "" if cast == tally.total else f" in {tally.total:.3g} samples"
        return (
            f"No answer was given: the best has {votes:.3g} of {cast:.3g} votes{taken}, and min_agreement "
            f"{self.config.min_agreement:g} asks for more."
        )


async def prepare_poll(task: Task, context: RunContext[SelfConsistencyConfig]) -> Poll:
    """Build the prompt that all samples share and find how much each may write."""
    config, budget = context.config, task.budget
    stages = await prepare_stages(
        task, model=context.model, nonce=context.new_nonce(), instructions=(STEPS_FIRST,), shown=0
    )
    prompt = stages.fit(STEPS_FIRST, max_tokens=config.max_tokens)
    worst = Cost(model_calls=1)
    if budget.max_total_tokens is not None:
        worst += Cost(tokens=await stages.bound_tokens(STEPS_FIRST, more_tokens=prompt.max_tokens))
    is_ladder = config.confidence == 1
    temperatures = (
        build_ladder(config.temperature, config.samples) if is_ladder else [config.temperature] * config.samples
    )
    shares = OutputShares(budget.max_output_tokens)
    asked = 0 if config.weigh_votes and find_most_logprobs(context.model) else None
    return Poll(
        config=config,
        calls=SampleCalls(
            stages=stages,
            prompt=prompt,
            shares=shares,
            temperatures=temperatures,
            prompt_tokens=await stages.count_tokens(prompt),
            top_logprobs=asked,
        ),
        worst=worst,
        allowance=Allowance(max_calls=budget.max_model_calls, max_tokens=budget.max_total_tokens),
        shares=shares,
        temperatures=temperatures,
        warnings=(*stages.warnings, *([NO_LOGPROBS] if config.weigh_votes and asked is None else [])),
    )

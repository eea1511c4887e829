"""Self-aggregation: chains of one prompt, which the model aggregates in small groups, round after round."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from reasond_server.context.calls import LEAST_TOKENS, ModelReply, take_reply
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
from reasond_server.context.sections import FENCE_TOKENS
from reasond_server.context.stages import Shown, StageCalls, StagePrompt, prepare_stages
from reasond_server.context.tags import restore
from reasond_server.context.votes import Tally
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.waves import follow_wave
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig
from reasond_server.types import CostClass, CustomMetrics, FinishReason, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent

CHAIN: Final = "chain"
"""The stage of a chain of the first round."""
AGGREGATE: Final = "aggregate"
"""The stage of a chain of a later round."""
_AGGREGATE: Final = (
    "The passages hold candidate solutions of this, which may be right or wrong, in part or as a whole. Compare them "
    "step by step, take what is right from each and mend what is wrong; where all of them are wrong, go another way. "
    f"Write the whole solution anew. {STEPS_FIRST}"
)


class SelfAggregationConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    chains: Annotated[int, Field(ge=2, le=40, description="Chains of each round.")] = 8
    group: Annotated[int, Field(ge=1, le=8, description="Chains of the round before that a call is shown.")] = 4
    rounds: Annotated[int, Field(ge=1, le=10, description="Most rounds; fewer if all chains of one agree.")] = 3
    temperature: Annotated[
        float,
        Field(ge=0.05, le=2.0, allow_inf_nan=False, description="Middle of the temperatures of a round."),
    ] = 0.7
    max_tokens: Annotated[
        int, Field(ge=LEAST_TOKENS, le=32768, description="Most tokens the model may write per chain.")
    ] = 4096

    @property
    def most_steps(self) -> int:
        """Most steps of a run."""
        return self.chains * self.rounds


class SelfAggregation(ReasoningStrategy[SelfAggregationConfig]):
    """Take N = chains of one prompt; then, T = rounds in all, aggregate groups of K = group chains into N new ones.

    The chains of a round are put into an order that depends on its number alone, in a circle; call i is shown the K
    chains from i on. So each chain is shown K times, and after a few rounds each call has heard of all. A round ends
    the run if all its chains give one answer, as does the last; the answer is the one with most votes in it.

    Cost: at most N T calls; N if the first chains agree. A chain of the first round has P + G tokens, a later one at
    most P + (K + 1) G: P for the prompt, cached from the second call on if the provider caches, G <= max_tokens.
    Memory: the chains of two rounds. Latency: T rounds, each of one call for each 8 chains.

    Failure modes: an error that most chains share is handed on, as one that the model finds more convincing is. A
    window too small for K chains shows only their ends, with a warning. Chains without a whole answer are shown to the
    next round and cast no vote; failed ones are left out; a warning has their number. If a round writes nothing at all,
    it is the last, and the one before counts. A budget is shared out by rounds: where it does not cover N chains in
    each, every round has fewer, where it covers only one, there are fewer rounds (BUDGET_EXHAUSTED, with a warning).

    Source: Venkatraman et al. 2025, arXiv 2509.26626; there groups are drawn at random, and no round ends the run.
    """

    name: ClassVar[str] = "self_aggregation"
    description: ClassVar[str] = (
        "Takes several chains and lets the model aggregate small groups of them, for a few rounds: for hard questions "
        "of which single chains solve parts."
    )
    config_type: ClassVar[type[SelfAggregationConfig]] = SelfAggregationConfig
    cost_class: ClassVar[CostClass | None] = CostClass.SAMPLED
    cost_formula: ClassVar[str] = (
        "calls <= chains * rounds, = chains if those of the first round agree; one of the first round has at most "
        "prompt + max_tokens tokens, a later one prompt + (group + 1) * max_tokens"
    )
    is_replayable: ClassVar[bool] = True

    async def run(self, task: Task, context: RunContext[SelfAggregationConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Take the rounds, then count the votes of the last one; see the base class.

        The steps of a round are yielded in order, each when its chain and those before it have ended. No text is
        streamed (no Wrote), because chains are written in parallel.

        Raises:
            ContextExhaustedError: question and material leave too little room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: every chain of the first round failed; this is the error of the first one.
        """
        population = await prepare_population(task, context)
        while not population.is_over:
            async with aclosing(population.take_round(context.monotonic)) as steps:
                async for step in steps:
                    yield step
        yield population.build_outcome()


@dataclass(slots=True, kw_only=True)
class Population:
    """The state of one run.

    `first` and `later` are the worst costs of a chain of the first round and of one after it.

    Attributes:
        chains: those of the last round that gave any.
        reads: all chains so far.
        rounds: rounds that were begun.
        taken: calls that have ended.
        is_short: whether the budget covered fewer chains than there should be.
        is_stopped: whether no round follows, because the budget covers no more or a round gave no chain.
    """

    config: SelfAggregationConfig
    stages: StageCalls
    sampling: SampleCalls
    first: Cost
    later: Cost
    allowance: Allowance
    shares: OutputShares
    chains: Sequence[SampledAnswer] = ()
    reads: list[SampledAnswer] = field(default_factory=list)
    errors: list[ReasondError] = field(default_factory=list)
    rounds: int = 0
    taken: int = 0
    is_short: bool = False
    is_stopped: bool = False

    @property
    def tally(self) -> Tally:
        """The votes of the last round."""
        return Tally(cast=[each.normalized_answer for each in self.chains])

    @property
    def is_over(self) -> bool:
        """Whether no round follows: there were all, one agreed, or none can follow."""
        is_agreed = bool(self.chains) and self.tally.has_agreement(1.0)
        return self.rounds == self.config.rounds or self.is_stopped or is_agreed

    async def take_round(self, monotonic: Callable[[], float]) -> AsyncGenerator[Step, None]:
        """Take the chains of one round and yield their steps."""
        worst = self.later if self.rounds else self.first
        if not (count := self._reserve(worst)):
            self.is_stopped = True
            return
        calls, stage = (self._aggregate(count), AGGREGATE) if self.rounds else (self._sample(count), CHAIN)
        self.rounds += 1
        fresh: list[SampledAnswer] = []
        failures = (ModelError, TokenBudgetExhaustedError)
        async with aclosing(
            follow_wave(calls, at_once=SAMPLES_AT_ONCE, failures=failures, monotonic=monotonic)
        ) as results:
            async for result, elapsed_s in results:
                self.taken += 1
                if isinstance(result, ReasondError):
                    self._note_failure(result, worst)
                    continue
                spent = result.spent
                self.shares.settle(spent.output_tokens)
                self.allowance.settle(worst, Cost(model_calls=spent.model_calls, tokens=spent.total_tokens))
                fresh.append(read := read_sample(result, is_program=self.stages.is_program))
                yield Step(
                    detail=StageStep(stage=stage, text=read.text, answer=read.answer),
                    answer_found=bool(read.normalized_answer),
                    metrics=self.metrics,
                    usage=spent,
                    elapsed_s=elapsed_s,
                )
        self.reads += fresh
        # Of nothing nothing can be aggregated.
        has_text = any(each.solution.strip() for each in fresh)
        self.chains = fresh if has_text else self.chains or fresh
        self.is_stopped = self.is_stopped or not has_text

    def _reserve(self, worst: Cost) -> int:
        """Reserve the chains of a round, as many as the budget covers in this and all others; return their number.

        A chain alone can be compared with no other: where the budget covers no second one, rounds are given up for it.
        """
        further = self.config.rounds - self.rounds - 1
        wanted = self.shares.divide(self.config.chains, outstanding=self.config.chains * (further + 1))
        whole = [worst]
        for _ in range(further):
            whole.append(whole[-1] + self.later)
        while (count := self._count_covered(whole[-1], wanted)) < min(2, wanted) and len(whole) > 1:
            whole.pop()
        for _ in range(count):
            self.allowance.reserve(worst)
        # The meter refuses or shortens the very first call: a small budget may still suffice for one answer.
        if not count and wanted and self.allowance.reserve(worst, is_forced=not self.taken):
            count = 1
        self.is_short = self.is_short or count < self.config.chains
        return count

    def _count_covered(self, cost: Cost, wanted: int) -> int:
        """Return how many times `cost` is left, at most `wanted`."""
        count, total = 0, cost
        while count < wanted and self.allowance.can_cover(total):
            count, total = count + 1, total + cost
        return count

    def _sample(self, count: int) -> Sequence[Callable[[], Awaitable[ModelReply]]]:
        return self.sampling.prepare_wave(0, count)

    def _aggregate(self, count: int) -> Sequence[Callable[[], Awaitable[ModelReply]]]:
        """Return the calls that are shown groups of the last round; the order depends on the round's number alone."""
        order = [each for each in self.chains if each.solution.strip()]
        Random(self.rounds).shuffle(order)  # noqa: S311 - an order that a replay repeats, no secret
        size = min(self.config.group, len(order))
        temperatures = build_ladder(self.config.temperature, self.config.chains)
        calls = []
        for place in range(count):
            group = [order[(place + near) % len(order)] for near in range(size)]
            shown = [Shown(name="candidate", text=each.solution) for each in group]
            prompt = self.shares.limit(self.stages.fit(_AGGREGATE, *shown, max_tokens=self.config.max_tokens))
            calls.append(partial(self._ask, prompt, temperatures[place], f"round {self.rounds} chain {place}"))
        return calls

    async def _ask(self, prompt: StagePrompt, temperature: float, label: str) -> ModelReply:
        return await take_reply(self.stages.stream(prompt, temperature=temperature, label=label))

    def _note_failure(self, error: ReasondError, worst: Cost) -> None:
        if isinstance(error, TokenBudgetExhaustedError):
            self.is_short = self.is_stopped = True
        self.errors.append(error)
        self.shares.settle_failure(error)
        self.allowance.settle(worst, Cost() if isinstance(error, UNSPENT) else worst)

    @property
    def metrics(self) -> CustomMetrics:
        """The metrics so far; `agreement` is the share of the last whole round that gave its winner."""
        tally = self.tally
        votes = tally.votes[0][1] if tally.votes else 0
        figures = {"rounds": self.rounds, "chains": self.taken, "agreement": votes / max(1, tally.total)}
        return CustomMetrics(data=figures)

    def build_outcome(self) -> Outcome:
        """Count the votes of the last round and return the outcome.

        Raises:
            ReasondError: there is no chain; this is the error of the first call.
        """
        if not self.chains:
            raise self.errors[0]
        warnings = [*self.stages.warnings, *describe_gaps(self.reads, self.errors, taken=self.taken)]
        if self.is_short:
            most = self.config.chains * self.config.rounds
            warnings.append(
                f"The budget did not cover {self.config.chains} chains in each round: {self.taken} of at most {most} "
                f"calls were made, in {self.rounds} of {self.config.rounds} rounds."
            )
        voters = [each for each in self.chains if each.normalized_answer == self.tally.winner != ""]
        reason = FinishReason.ANSWERED if any(each.is_tagged for each in voters) else FinishReason.ANSWERED_UNTAGGED
        reason = reason if voters else explain_silence(self.chains)
        return Outcome(
            answer=restore(voters[0].answer) if voters else "",
            finish_reason=FinishReason.BUDGET_EXHAUSTED if self.is_short else reason,
            metrics=self.metrics,
            warnings=warnings,
        )


async def prepare_population(task: Task, context: RunContext[SelfAggregationConfig]) -> Population:
    """Build the prompt of the first round and find the largest cost of each call."""
    config, budget = context.config, task.budget
    stages = await prepare_stages(
        task,
        model=context.model,
        nonce=context.new_nonce(),
        instructions=(STEPS_FIRST, _AGGREGATE),
        shown=config.group if config.rounds > 1 else 0,
    )
    prompt = stages.fit(STEPS_FIRST, max_tokens=config.max_tokens)
    first = later = Cost(model_calls=1)
    if budget.max_total_tokens is not None:
        shown = config.group * (prompt.max_tokens + FENCE_TOKENS)
        first += Cost(tokens=await stages.bound_tokens(STEPS_FIRST, more_tokens=prompt.max_tokens))
        later += Cost(tokens=await stages.bound_tokens(_AGGREGATE, more_tokens=shown + prompt.max_tokens))
    shares = OutputShares(budget.max_output_tokens)
    return Population(
        config=config,
        stages=stages,
        sampling=SampleCalls(
            stages=stages,
            prompt=prompt,
            shares=shares,
            temperatures=build_ladder(config.temperature, config.chains),
            prompt_tokens=await stages.count_tokens(prompt),
        ),
        first=first,
        later=later,
        allowance=Allowance(max_calls=budget.max_model_calls, max_tokens=budget.max_total_tokens),
        shares=shares,
    )

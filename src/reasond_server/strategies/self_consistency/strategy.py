"""The strategy: what it is, what it refuses, and the run from wave to wave."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors import InvalidConfigError, Violation
from reasond_server.strategies.self_consistency.config import SelfConsistencyConfig
from reasond_server.strategies.self_consistency.poll import prepared
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.types import CostClass

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import RunContext, StrategyEvent
    from reasond_server.types import Task


class SelfConsistency(ReasoningStrategy[SelfConsistencyConfig]):
    """Sample the same prompt n = samples times, at slightly different temperatures, and let the answers vote.

    Votes are counted on normalised answers (`context.answers`); of equals the answer that was given first wins.
    Samples are taken in waves of as many as can decide the vote at the earliest, (n + 1) // 2 in the first, at most 8
    at once, and none any more once nothing can change the outcome. The very first sample begins alone, the others of
    its wave when it has begun to write, or after a second: then a server with a prefix cache has read the prompt
    once.

    Cost: between (n + 1) // 2 and n calls, fewer where min_agreement is out of reach before, of P + G tokens, P for the
    prompt, cached from the second call on where the provider does, and G <= max_tokens written. Memory: the samples.
    Latency: one call if the first wave agrees, up to n // 2 + 1 calls one after the other if the vote stays open to the
    end.

    Failure modes: errors that most samples share win the vote. Without a right answer among the samples no vote finds
    it. Answers that are texts rather than values seldom agree. A sample that fails, or ends without an answer, casts
    no vote; a warning counts them. Below min_agreement nothing is answered: MAX_ITERATIONS, `is_abstained`, and the
    counts in a warning. A budget that ends early leaves the vote to what there is (BUDGET_EXHAUSTED).

    Source: Wang et al. 2022, arXiv 2203.11171.
    """

    name: ClassVar[str] = "self_consistency"
    description: ClassVar[str] = (
        "Takes several independent samples and lets their final answers vote: for questions with one short answer."
    )
    config_type: ClassVar[type[SelfConsistencyConfig]] = SelfConsistencyConfig
    cost_class: ClassVar[CostClass | None] = CostClass.SAMPLED
    cost_formula: ClassVar[str] = (
        "calls <= samples, and >= (samples + 1) // 2 unless min_agreement is out of reach before; each of at most "
        "prompt + max_tokens tokens"
    )
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: SelfConsistencyConfig, model: ChatModel) -> None:  # noqa: ARG002 - the port's
        """Refuse a temperature at which all samples would be the same.

        Raises:
            InvalidConfigError: temperature is 0 with more than one sample.
        """
        if config.temperature == 0 and config.samples > 1:
            raise InvalidConfigError.of(
                Violation(
                    field="temperature",
                    description=f"must be above 0 with {config.samples} samples, which would all say the same at 0.0; "
                    "with samples 1 it may be 0",
                )
            )

    async def run(self, task: Task, context: RunContext[SelfConsistencyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Sample in waves, then count; see the base class. Steps come in sample order, at the end of each wave.

        Nothing is streamed in between (no Wrote): samples are written side by side.

        Raises:
            ContextExhaustedError: the prompt leaves no room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: every sample failed; the first one's error.
        """
        poll = await prepared(task, context)
        while not poll.is_over:
            for step in await poll.wave():
                yield step
        yield poll.outcome()

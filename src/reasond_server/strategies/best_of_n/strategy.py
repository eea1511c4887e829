"""Best of n: several independent samples of one prompt, of which a verifier chooses the best."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from reasond_server.context.samples import refuse_equal_samples
from reasond_server.errors.request import InvalidConfigError
from reasond_server.strategies.best_of_n.contest import prepare_contest
from reasond_server.strategies.best_of_n.parameters import AnswerJudge, AnswerVerifier, BestOfNConfig
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.types import CostClass, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import RunContext, StrategyEvent


class BestOfN(ReasoningStrategy[BestOfNConfig]):
    """Take n = samples of one prompt, score each solution, and give the answer with the largest sum of scores.

    Samples are taken 8 at a time, at slightly different temperatures (`context.samples`). Then each different solution
    is judged in a call of its own, 8 at a time, at temperature 0. The judge sees the question, the material and one
    solution. The scores of all samples with one answer are added; of equal sums the votes decide, then the order. If
    all answers are equal (`context.answers`), nothing is judged, unless `min_score` asks for a score. With the
    verifiers SCHEMA and PROGRAM no model judges: samples are taken one after the other, until an answer satisfies the
    task's `answer_schema`, or `check_program`, which is run in the sandbox of the server for each different answer,
    exits with 0.

    Cost: at most 2 n calls; n if all answers are equal. Without a judge at most n. A sample has P + G tokens: P for the
    prompt, cached from the second call on if the provider caches, and G <= max_tokens. A judgement has at most P + G +
    J tokens, J <= max_judge_tokens. Memory: the samples. Latency: one call for each 8 samples and one for each 8
    judgements.

    Failure modes: a judge that cannot tell right from wrong gains nothing over a vote; a model is often a poor judge of
    its own mistakes. A judgement that failed or cannot be read counts as 0.5, with a warning. If no solution could be
    judged, or all got the same score, the votes decide, with a warning. If no answer has a solution with a score of
    `min_score`, the run gives none: MAX_ITERATIONS, `is_abstained`, and a warning. The budget of each sample is
    reserved together with that of its judgement; if it ends early, what there is decides (BUDGET_EXHAUSTED). If no
    answer passes its check, the votes decide, with a warning. Without a sandbox a check is refused before a token is
    spent.

    In a tournament each different answer, by its best solution, then meets the two best of them, in both orders; the
    share that it wins (`context.scores.weigh_matches`) is the score of its samples. The whole tournament is reserved
    before it begins: where the budget does not cover it, the judgements decide.

    Source: Cobbe et al. 2021, arXiv 2110.14168, with the model itself in place of a trained verifier; the sums after
    Li et al. 2022, arXiv 2206.02336; the tournament after LLM-as-a-Verifier (Kwok et al. 2026).
    """

    name: ClassVar[str] = "best_of_n"
    description: ClassVar[str] = (
        "Takes several independent samples, lets the model judge each and gives the best: for questions whose solution "
        "is easier to check than to find."
    )
    config_type: ClassVar[type[BestOfNConfig]] = BestOfNConfig
    cost_class: ClassVar[CostClass | None] = CostClass.SAMPLED
    cost_formula: ClassVar[str] = (
        "samples <= calls <= 2 * samples, = samples if all answers are equal and min_score is 0; with the judge "
        "tournament 4 * answers - 6 more; with the verifiers "
        "schema and program calls <= samples, until an answer satisfies it; a sample has at most prompt + max_tokens "
        "tokens, a judgement prompt + max_tokens + max_judge_tokens"
    )
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: BestOfNConfig, model: ChatModel) -> None:  # noqa: ARG002 - the port's
        """Refuse a temperature at which all samples would be equal, and a verifier that the task has not.

        Raises:
            InvalidConfigError: temperature is 0 with more than one sample, or there is no schema or program to verify
                with, or a program that would not be run, or a tournament has a min_score.
        """
        if config.verifier is AnswerVerifier.SCHEMA and task.answer_schema is None:
            description = "'schema' verifies with the answer_schema of the task, which has none"
            raise InvalidConfigError.at("verifier", description)
        if config.runs_programs and not config.check_program.strip():
            description = "must hold a Python program where the verifier is 'program'"
            raise InvalidConfigError.at("check_program", description)
        if config.check_program and not config.runs_programs:
            description = f"is run by the verifier 'program' alone, and the verifier is {str(config.verifier)!r}"
            raise InvalidConfigError.at("check_program", description)
        if config.judge is AnswerJudge.TOURNAMENT and config.min_score > 0:
            description = "must be 0 with the judge 'tournament', whose scores only compare answers with each other"
            raise InvalidConfigError.at("min_score", description)
        refuse_equal_samples(config.temperature, config.samples)

    async def run(self, task: Task, context: RunContext[BestOfNConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Take samples, judge them, choose; see the base class.

        The steps of a wave are yielded in order, each when its call and those before it have ended. No text is streamed
        (no Wrote), because the calls of a wave are in progress at the same time.

        Raises:
            SandboxUnavailableError: a check is asked for, and there is no sandbox, or it could not run the check.
            ContextExhaustedError: question and material leave too little room in the model's context window.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: every sample failed; this is the error of the first one.
        """
        contest = await prepare_contest(task, context)
        while contest.may_sample:
            async with aclosing(contest.take_wave()) as steps:
                async for step in steps:
                    yield step
        if not contest.samples:
            raise contest.errors[0]
        while contest.may_judge:
            async with aclosing(contest.judge_wave()) as steps:
                async for step in steps:
                    yield step
        contest.begin_tournament()
        while contest.may_compare:
            async with aclosing(contest.compare_wave()) as steps:
                async for step in steps:
                    yield step
        yield contest.build_outcome()

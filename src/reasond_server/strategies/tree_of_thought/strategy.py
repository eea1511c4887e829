"""The strategy: what it is, what it refuses, and the run from node to node."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from reasond_server.clock import new_nonce
from reasond_server.context.tags import restore
from reasond_server.errors import ContentFilteredError, InvalidConfigError, Violation
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.strategies.tree_of_thought.config import LEAST_CALLS, TreeOfThoughtConfig
from reasond_server.strategies.tree_of_thought.preparing import prepared, prompts_of, shape_of
from reasond_server.types import CostClass, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import RunContext, StrategyEvent
    from reasond_server.types import Task


class TreeOfThought(ReasoningStrategy[TreeOfThoughtConfig]):
    """Search over partial solutions: propose k = branching thoughts, judge them, go on from the best.

    One call proposes all thoughts of an expansion; VALUE then judges each in a call of its own, VOTE all in one. BEAM
    keeps the b = beam_width best of each of d = max_depth levels; BEST_FIRST expands the b most promising nodes of the
    whole tree at once (UCT), until 8 expansions bring no better answer. A thought that marks an answer is a leaf. The
    search ends at a leaf that scores 0.9 or more. The best leaf answers; without one a call, kept back from the
    beginning, writes the answer from the best thought.

    Cost: at most min(max_model_calls, (1 + (d - 1) * b) * (1 + k) + 1) calls with BEAM and VALUE; with VOTE 2 in the
    place of 1 + k; with BEST_FIRST max_model_calls. Each reads the prompt (question, material, thoughts so far) and
    writes at most max_tokens_per_thought, a proposal k times that. Memory: the tree, at most k thoughts for each
    expansion. Latency: two calls for each level or round, whose calls run in parallel, 8 at a time.

    Failure modes: a judge that cannot tell good thoughts from bad makes the search worth no more than one sample, at
    many times its price (arXiv 2402.10890 finds that 90 % accuracy is needed). A judgement that cannot be read counts
    as 0.5, with a warning. Calls that fail cost their node only; three in a row end the run with the last one's error.

    Source: Yao et al. 2023, arXiv 2305.10601; `search.policies` names those of UCT.
    """

    name: ClassVar[str] = "tree_of_thought"
    description: ClassVar[str] = (
        "Proposes several thoughts at each step, judges them and searches for the best: for puzzles and plans where "
        "a wrong first step is costly and a judge can tell."
    )
    config_type: ClassVar[type[TreeOfThoughtConfig]] = TreeOfThoughtConfig
    cost_class: ClassVar[CostClass | None] = CostClass.SEARCH
    cost_formula: ClassVar[str] = (
        "calls <= min(max_model_calls, (1 + (max_depth - 1) * beam_width) * (1 + branching) + 1) with beam and value; "
        "2 in place of (1 + branching) with vote; max_model_calls with best_first"
    )
    is_replayable: ClassVar[bool] = True

    def check(self, task: Task, config: TreeOfThoughtConfig, model: ChatModel) -> None:
        """Refuse what cannot work; linear in the task's texts.

        Raises:
            InvalidConfigError: max_model_calls is too small to answer, or max_tokens_per_thought too large for the
                model's window.
            ContextExhaustedError: question and material leave no room in the model's window.
        """
        if config.max_model_calls < LEAST_CALLS:
            raise InvalidConfigError.of(
                Violation(
                    field="max_model_calls",
                    description=f"must be at least {LEAST_CALLS}, got {config.max_model_calls}: one call proposes, "
                    "one judges, and one is kept for the answer",
                )
            )
        # By an estimate alone nothing is refused here: the server's own count decides in `run`.
        if model.context_window is not None and model.counter.is_exact:
            prompts = prompts_of(task, new_nonce(), model.counter)
            shape = shape_of(config)
            shape.notes_room(model.counter.count_prompt(shape.bare_prompt(prompts)), window=model.context_window)

    async def run(self, task: Task, context: RunContext[TreeOfThoughtConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Search, then answer; see the base class. Only the text of a last, writing call is streamed (Wrote).

        Raises:
            ContextExhaustedError, InvalidConfigError: as `check`, by the server's count.
            TokenBudgetExhaustedError: the budget does not cover the first call.
            ModelError: calls failed as the class says.
        """
        run = await prepared(task, context)
        try:
            async with aclosing(run.search.run()) as found:
                async for judged in found:
                    yield run.step(judged)
        except ContentFilteredError:
            leaf = run.best_leaf()
            answer = restore(leaf.payload.answer) if leaf else ""
            yield run.outcome(answer, FinishReason.CONTENT_FILTERED)
            return
        leaf = run.best_leaf()
        if leaf is not None:
            reason = FinishReason.BUDGET_EXHAUSTED if run.is_out_of_budget else FinishReason.ANSWERED
            yield run.outcome(restore(leaf.payload.answer), reason)
            return
        async with aclosing(run.close()) as closing:
            async for event in closing:
                yield event

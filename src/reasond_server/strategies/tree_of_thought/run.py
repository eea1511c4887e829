"""One run of tree of thought: its steps, its answer, and the call that writes one where the search found none."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import normalize_answer
from reasond_server.context.calls import Reply, hear
from reasond_server.context.endings import is_eaten, reasoning_tokens
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.llm.model import ModelFinish
from reasond_server.search.controller import SearchEnding
from reasond_server.search.policies import rank
from reasond_server.search.tree import ROOT_ID
from reasond_server.strategies.strategy import Outcome, Step, Wrote
from reasond_server.strategies.tree_of_thought.config import LEAST_CALLS
from reasond_server.strategies.tree_of_thought.thinking import path_of
from reasond_server.types import FinishReason, TreeOfThoughtMetrics, TreeStep

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.search.allowance import Allowance
    from reasond_server.search.controller import JudgedNode, TreeSearch
    from reasond_server.search.tree import Node
    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.strategies.tree_of_thought.config import TreeOfThoughtConfig
    from reasond_server.strategies.tree_of_thought.thinking import Thought, ThoughtCalls
    from reasond_server.types import Task

UNKNOWN_SCORE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run at work."""

    config: TreeOfThoughtConfig
    task: Task
    calls: ThoughtCalls
    search: TreeSearch[Thought]
    allowance: Allowance

    @property
    def is_out_of_budget(self) -> bool:
        """Whether the task's budget ended the search, rather than the configuration's own bound on calls."""
        if self.search.ending is not SearchEnding.BUDGET:
            return False
        most = self.task.budget.max_model_calls
        is_own_bound = most is None or self.config.max_model_calls <= most
        are_calls_gone = self.allowance.taken.model_calls + LEAST_CALLS > self.config.max_model_calls
        return not (is_own_bound and are_calls_gone)

    def best_leaf(self) -> Node[Thought] | None:
        """Return the answered leaf with the best score; of equals, one whose answer most leaves give."""
        leaves = self.search.solutions
        answers = {leaf.node_id: normalize_answer(leaf.payload.answer) for leaf in leaves}
        times = Counter(answers.values())
        return min(
            leaves,
            key=lambda leaf: (-leaf.score, -times[answers[leaf.node_id]], rank(leaf, seed=self.config.seed)),
            default=None,
        )

    def step(self, judged: JudgedNode[Thought]) -> Step:
        """Return the step of one node."""
        node = judged.node
        detail = TreeStep(
            node_id=node.node_id,
            parent_id=ROOT_ID if node.parent is None else node.parent.node_id,
            depth=node.depth,
            thought=node.payload.text,
            score=node.score,
            is_pruned=judged.is_pruned,
            answer=node.payload.answer,
        )
        return Step(detail=detail, answer_found=node.is_solution, metrics=self.metrics())

    def metrics(self) -> TreeOfThoughtMetrics:
        """Return the metrics so far."""
        tally, best = self.search.tally, self.search.best_solution or self.search.best_open
        return TreeOfThoughtMetrics(
            nodes_expanded=tally.expanded,
            nodes_evaluated=tally.evaluated,
            nodes_pruned=tally.pruned,
            nodes_duplicate=tally.duplicate,
            depth_reached=tally.depth_reached,
            best_score=best.score if best else 0.0,
        )

    async def close(self) -> AsyncGenerator[StrategyEvent, None]:
        """Let the model answer from the best thought, in the call that was kept for it."""
        best = self.search.best_open
        messages = self.calls.prompts.answer(path_of(best) if best else ())
        call = hear(
            model=self.calls.model,
            messages=messages,
            max_tokens=self.config.max_tokens_per_thought,
            temperature=self.config.temperature,
            kinds=(TagKind.ANSWER,),
        )
        try:
            async with aclosing(call) as heard:
                async for piece in heard:
                    if isinstance(piece, Reply):
                        reply = piece
                    else:
                        yield Wrote(text=piece.text)
        except TokenBudgetExhaustedError:
            if not self.search.tally.evaluated:
                raise
            yield self.outcome("", FinishReason.BUDGET_EXHAUSTED)
            return
        answer, reason = self._closing(reply)
        parent_id, depth = (best.node_id, best.depth) if best else (ROOT_ID, 0)
        detail = TreeStep(
            node_id=f"{parent_id}.answer",
            parent_id=parent_id,
            depth=depth + 1,
            thought=reply.parsed.text.strip(),
            score=best.score if best else 0.0,
            is_pruned=False,
            answer=answer,
        )
        yield Step(detail=detail, answer_found=bool(answer), metrics=self.metrics())
        yield self.outcome(restore(answer), reason, *([] if answer else [_silence(reply)]))

    def _closing(self, reply: Reply) -> tuple[str, FinishReason]:
        """Return the answer of the last call and what that makes of the run."""
        content, text = reply.parsed.content.strip(), reply.parsed.text.strip()
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return content, FinishReason.CONTENT_FILTERED
        is_whole = reply.parsed.is_closed if content else reply.finish is ModelFinish.STOP and bool(text)
        if not is_whole:
            return content, FinishReason.TRUNCATED
        reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else FinishReason.MAX_ITERATIONS
        return content or text, reason

    def outcome(self, answer: str, reason: FinishReason, *more: str) -> Outcome:
        """Return the end of the run; `more` are warnings beside those of the search."""
        tally = self.search.tally
        warnings = [*more]
        if tally.unjudged:
            warnings.append(
                f"{tally.unjudged} of {tally.evaluated} thoughts were not scored, because the judgement failed or "
                f"could not be read; they count as {UNKNOWN_SCORE:g}."
            )
        if tally.failed_calls:
            warnings.append(f"{tally.failed_calls} model calls of the search failed; it went on without them.")
        return Outcome(answer=answer, finish_reason=reason, metrics=self.metrics(), warnings=tuple(warnings))


def _silence(reply: Reply) -> str:
    """Return why the call that had to answer gave none."""
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return "The provider withheld the answer."
    if is_eaten(reply):
        return (
            f"Hidden reasoning took {reasoning_tokens(reply)} of the {reply.usage.output_tokens} tokens of the last "
            "call and left none for the answer: raise max_tokens_per_thought, or lower the model's reasoning effort."
        )
    flaw = "was cut off before its answer" if reply.parsed.text.strip() else "had to answer and wrote nothing"
    return f"The last call {flaw}."

"""The tree-of-thought strategy: its description, its checks, and its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import ClassVar, Final

from reasond_server.base.clock import new_nonce
from reasond_server.context.calls import ModelReply, count_prompt, run_by_size, stream_reply
from reasond_server.context.final_replies import split_untagged
from reasond_server.context.sections import FENCE_TOKENS
from reasond_server.context.tags import TagKind, restore
from reasond_server.context.vote_forms import normalize_answer
from reasond_server.errors.base import Violation
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContentFilteredError, ContextExhaustedError, ModelError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.counting import make_fork
from reasond_server.llm.model import ChatModel, Message, ModelFinish, TokenCounter
from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.controller import JudgedNode, SearchEnding, TreeSearch
from reasond_server.search.policies import BeamSelection, SearchPlan, SelectionPolicy, UctSelection, rank
from reasond_server.search.tree import ROOT_ID, Node, build_root
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyEvent, Wrote
from reasond_server.strategies.tree_of_thought.prompts import (
    LEAST_CALLS,
    ThoughtJudge,
    ThoughtShape,
    TreeOfThoughtConfig,
    TreePrompts,
    TreeSearchOrder,
)
from reasond_server.strategies.tree_of_thought.thoughts import (
    ThoughtCalls,
    ThoughtEvaluator,
    ThoughtProposer,
    TreeThought,
    list_path,
)
from reasond_server.types import CostClass, FinishReason, Task, TreeOfThoughtMetrics, TreeStep
from reasond_server.types.values import value

UNKNOWN_SCORE: Final = 0.5
_SOLVED_SCORE: Final = 0.9
_LEAST_SCORE: Final = 0.05
_PATIENCE: Final = 8
_CALLS_AT_ONCE: Final = 8
_STEP_MARK_TOKENS: Final = 16


class TreeOfThought(ReasoningStrategy[TreeOfThoughtConfig]):
    """Search over partial solutions: propose k = branching thoughts, judge them, continue from the best.

    One call proposes all thoughts of an expansion. VALUE then judges each thought in a separate call, VOTE all in one
    call. BEAM keeps the b = beam_width best thoughts of each of d = max_depth levels. BEST_FIRST expands the b most
    promising nodes of the whole tree at once (UCT), until 8 expansions find no better answer. A thought with an answer
    is a leaf. The search ends at a leaf with a score of 0.9 or more. The answer is that of the leaf with the
    best path, where the score of a path is the score of its weakest thought. Without a leaf, one reserved call writes
    the answer from the deepest thought whose path has no score below 0.5.

    Cost: at most min(max_model_calls, (1 + (d - 1) * b) * (1 + k) + 1) calls with BEAM and VALUE; with VOTE, 2 replaces
    1 + k; with BEST_FIRST, max_model_calls. Each call reads the prompt (question, material, thoughts so far) and writes
    at most max_tokens_per_thought; a proposal writes at most k times that. Memory: the tree, at most k thoughts per
    expansion. Latency: two calls per level or round; the calls of a level or round run in parallel, 8 at a time.

    Failure modes: if the judge cannot distinguish good thoughts from bad ones, the search is no better than one sample
    and costs many times as much (arXiv 2402.10890 finds that 90 % accuracy is needed). A judgement that cannot be read
    counts as 0.5, with a warning. A failed call affects only its node; three failures in a row end the run with the
    last error.

    Source: Yao et al. 2023, arXiv 2305.10601; `search.policies` has the sources of UCT.
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
        """Refuse tasks that cannot work. Takes time linear in the task's texts.

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
        # An estimate is no reason for a refusal: the server's count decides in `run`.
        if model.context_window is not None and model.counter.is_exact:
            prompts = build_prompts(task, new_nonce(), model.counter)
            shape = build_shape(config)
            shape.measure_notes(
                model.counter.count_prompt(shape.build_bare_prompt(prompts)), window=model.context_window
            )

    async def run(self, task: Task, context: RunContext[TreeOfThoughtConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Search, then answer; see the base class. Only the text of the reserved answering call is streamed (Wrote).

        Raises:
            ContextExhaustedError, InvalidConfigError: as `check`, by the server's count.
            TokenBudgetExhaustedError: the budget does not cover a call, and there is no answer.
            ModelError: three calls in a row failed.
        """
        run = await prepare_run(task, context)
        try:
            async with aclosing(run.search.run()) as found:
                async for judged in found:
                    yield run.build_step(judged)
        except (ContentFilteredError, ContextExhaustedError) as error:
            leaf, is_filtered = run.find_best_leaf(), isinstance(error, ContentFilteredError)
            if leaf is None and not is_filtered:
                raise
            reason = FinishReason.CONTENT_FILTERED if is_filtered else FinishReason.TRUNCATED
            answer = restore(leaf.payload.answer) if leaf else ""
            yield run.build_outcome(answer, reason, *([] if is_filtered else [error.full_message]))
            return
        leaf = run.find_best_leaf()
        if leaf is not None:
            reason = FinishReason.BUDGET_EXHAUSTED if run.is_out_of_budget else FinishReason.ANSWERED
            yield run.build_outcome(restore(leaf.payload.answer), reason)
            return
        async with aclosing(run.write_answer()) as closing:
            async for event in closing:
                yield event


@value
class TreeRun:
    """The state of one run."""

    config: TreeOfThoughtConfig
    task: Task
    calls: ThoughtCalls
    search: TreeSearch[TreeThought]
    allowance: Allowance

    @property
    def is_out_of_budget(self) -> bool:
        """Whether the task's budget ended the search, not the configuration's limit of calls."""
        if self.search.ending is not SearchEnding.BUDGET:
            return False
        most = self.task.budget.max_model_calls
        is_own_bound = most is None or self.config.max_model_calls <= most
        are_calls_gone = self.allowance.taken.model_calls + LEAST_CALLS > self.config.max_model_calls
        return not (is_own_bound and are_calls_gone)

    def find_best_leaf(self) -> Node[TreeThought] | None:
        """Return the answered leaf with the best path; in a tie, one with the most frequent answer among the best.

        Paths are compared by the score of their weakest thought, then by the score of their leaf. With the leaf's score
        alone, a longer search would be worse: the more leaves there are below thoughts with low scores, the more likely
        one of them is overrated.
        """
        leaves = self.search.solutions
        worth = {leaf.node_id: (min(node.score for node in leaf.path), leaf.score) for leaf in leaves}
        most = max(worth.values(), default=None)
        best = [leaf for leaf in leaves if worth[leaf.node_id] == most]
        answers = {leaf.node_id: normalize_answer(leaf.payload.answer) for leaf in best}
        times = Counter(answers.values())
        return min(
            best,
            key=lambda leaf: (-times[answers[leaf.node_id]], rank(leaf, seed=self.config.seed)),
            default=None,
        )

    def build_step(self, judged: JudgedNode[TreeThought]) -> Step:
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
        return Step(detail=detail, answer_found=node.is_solution, metrics=self.build_metrics())

    def build_metrics(self) -> TreeOfThoughtMetrics:
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

    async def write_answer(self) -> AsyncGenerator[StrategyEvent, None]:
        """Let the model answer from the best thought, in the reserved call."""
        best = self.search.best_open
        messages = self.calls.prompts.answer(list_path(best) if best else ())
        call = stream_reply(
            model=self.calls.model,
            messages=messages,
            max_tokens=self.config.max_tokens_per_thought,
            temperature=self.config.temperature,
            kinds=(TagKind.ANSWER,),
        )
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    yield Wrote(text=piece.text)
        answer, reason = self._judge_last(reply)
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
        yield Step(detail=detail, answer_found=bool(answer), metrics=self.build_metrics())
        yield self.build_outcome(restore(answer), reason, *([] if answer else [_describe_silence(reply)]))

    def _judge_last(self, reply: ModelReply) -> tuple[str, FinishReason]:
        """Return the answer of the last call and the finish reason."""
        content, text = reply.parsed.content.strip(), reply.parsed.text.strip()
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return content, FinishReason.CONTENT_FILTERED
        is_whole = reply.parsed.is_closed if content else reply.finish is ModelFinish.STOP and bool(text)
        if not is_whole:
            return content, FinishReason.TRUNCATED
        reason = FinishReason.BUDGET_EXHAUSTED if self.is_out_of_budget else FinishReason.MAX_ITERATIONS
        return content or split_untagged(text, is_program=self.calls.prompts.is_program)[1], reason

    def build_outcome(self, answer: str, reason: FinishReason, *more: str) -> Outcome:
        """Return the outcome of the run; `more` are warnings in addition to those of the search."""
        tally = self.search.tally
        warnings = [*more]
        if tally.unjudged:
            warnings.append(
                f"{tally.unjudged} of {tally.evaluated} thoughts were not scored, because the judgement failed or "
                f"could not be read; they count as {UNKNOWN_SCORE:g}."
            )
        if tally.failed_calls:
            warnings.append(f"{tally.failed_calls} model calls of the search failed; it went on without them.")
        return Outcome(answer=answer, finish_reason=reason, metrics=self.build_metrics(), warnings=tuple(warnings))


def _describe_silence(reply: ModelReply) -> str:
    """Return why the answering call gave no answer."""
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return "The provider withheld the answer."
    if reply.is_only_hidden_reasoning:
        return (
            f"Hidden reasoning took {reply.reasoning_tokens} of the {reply.usage.output_tokens} tokens of the last "
            "call and left none for the answer: raise max_tokens_per_thought, or lower the model's reasoning effort."
        )
    flaw = "was cut off before its answer" if reply.parsed.text.strip() else "had to answer and wrote nothing"
    return f"The last call {flaw}."


async def prepare_run(task: Task, context: RunContext[TreeOfThoughtConfig]) -> TreeRun:
    """Fit the prompts into the model's window and set up the search."""
    config, model, counter = context.config, context.model, make_fork(context.model.counter)
    nonce = context.new_nonce()
    prompts = await run_by_size(task.text_characters, partial(build_prompts, task, nonce, counter))
    if model.context_window is not None:
        shape = build_shape(config)
        bare = await _count_prompt(shape.build_bare_prompt(prompts), model, counter)
        prompts.notes_tokens = shape.measure_notes(bare, window=model.context_window)
    calls = ThoughtCalls(
        model=model,
        prompts=prompts,
        counter=counter,
        thought_tokens=config.max_tokens_per_thought,
        temperature=config.temperature,
        are_tokens_bounded=task.budget.max_total_tokens is not None,
    )
    plan = _build_plan(config)
    allowance = Allowance(
        max_calls=min(config.max_model_calls, task.budget.max_model_calls or config.max_model_calls),
        max_tokens=task.budget.max_total_tokens,
        margin=_bound_answer(calls, config),
    )
    search = TreeSearch(
        proposer=ThoughtProposer(calls=calls, max_depth=config.max_depth),
        evaluator=ThoughtEvaluator(calls=calls, is_comparing=config.evaluator is ThoughtJudge.VOTE),
        plan=plan,
        selection=_build_selection(config, plan),
        allowance=allowance,
        failures=(ModelError,),
        exhaustions=(TokenBudgetExhaustedError,),
    )
    return TreeRun(config=config, task=task, calls=calls, search=search, allowance=allowance)


def _build_plan(config: TreeOfThoughtConfig) -> SearchPlan:
    return SearchPlan(
        max_depth=config.max_depth,
        branching=config.branching,
        width=config.beam_width,
        at_once=_CALLS_AT_ONCE,
        solved_score=_SOLVED_SCORE,
        min_score=_LEAST_SCORE,
        unknown_score=UNKNOWN_SCORE,
        patience=_PATIENCE if config.search is TreeSearchOrder.BEST_FIRST else None,
        seed=config.seed,
    )


def _build_selection(config: TreeOfThoughtConfig, plan: SearchPlan) -> SelectionPolicy[TreeThought]:
    root = build_root(TreeThought(text=""))
    return UctSelection(root, plan) if config.search is TreeSearchOrder.BEST_FIRST else BeamSelection(root, plan)


def build_prompts(task: Task, nonce: str, counter: TokenCounter) -> TreePrompts:
    """Return the prompts of a run. Takes time linear in the task's texts."""
    return TreePrompts(question=task.query, material=task.material, nonce=nonce, counter=counter)


def build_shape(config: TreeOfThoughtConfig) -> ThoughtShape:
    """Return the sizes of the calls of a run."""
    return ThoughtShape(
        branching=config.branching,
        thought_tokens=config.max_tokens_per_thought,
        is_comparing=config.evaluator is ThoughtJudge.VOTE,
    )


async def _count_prompt(messages: Sequence[Message], model: ChatModel, counter: TokenCounter) -> int:
    """Return the tokens of `messages`: the server's count if it reports one, else our own."""
    exact = None if counter.is_exact else await model.count_exactly(messages)
    return await count_prompt(messages, counter) if exact is None else exact


def _bound_answer(calls: ThoughtCalls, config: TreeOfThoughtConfig) -> Cost:
    """Return the largest cost of the call that answers from the best thought."""
    notes = config.max_depth * (config.max_tokens_per_thought + _STEP_MARK_TOKENS) + FENCE_TOKENS
    if calls.prompts.notes_tokens is not None:
        notes = min(notes, calls.prompts.notes_tokens + FENCE_TOKENS)
    return calls.cost_of(calls.prompts.answer(()), more_tokens=notes + config.max_tokens_per_thought)

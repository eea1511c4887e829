"""A run of tree of thought before its first call: prompts that fit the window, the search, what it may spend."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import count_prompt
from reasond_server.errors import ModelError, TokenBudgetExhaustedError
from reasond_server.llm.counting import fork_of
from reasond_server.llm.model import LONG_TEXT_CHARACTERS
from reasond_server.search.allowance import Allowance
from reasond_server.search.controller import TreeSearch
from reasond_server.search.policies import BeamSelection, SearchPlan, UctSelection
from reasond_server.search.tree import build_root
from reasond_server.strategies.tree_of_thought.config import ThoughtJudge, TreeSearchOrder
from reasond_server.strategies.tree_of_thought.prompts import TreePrompts
from reasond_server.strategies.tree_of_thought.room import FENCE_TOKENS, ThoughtShape
from reasond_server.strategies.tree_of_thought.run import UNKNOWN_SCORE, Run
from reasond_server.strategies.tree_of_thought.thinking import Thought, ThoughtCalls, ThoughtEvaluator, ThoughtProposer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, Message, TokenCounter
    from reasond_server.search.allowance import Cost
    from reasond_server.search.policies import Selection
    from reasond_server.strategies.strategy import RunContext
    from reasond_server.strategies.tree_of_thought.config import TreeOfThoughtConfig
    from reasond_server.types import Task

_SOLVED_SCORE: Final = 0.9
_LEAST_SCORE: Final = 0.05
_PATIENCE: Final = 8
_CALLS_AT_ONCE: Final = 8
_STEP_MARK_TOKENS: Final = 16


async def prepared(task: Task, context: RunContext[TreeOfThoughtConfig]) -> Run:
    """Fit the prompts into the model's window and set the search up."""
    config, model, counter = context.config, context.model, fork_of(context.model.counter)
    nonce = context.new_nonce()
    if len(task.query) + len(task.material) > LONG_TEXT_CHARACTERS:
        prompts = await asyncio.to_thread(prompts_of, task, nonce, counter)
    else:
        prompts = prompts_of(task, nonce, counter)
    if model.context_window is not None:
        shape = shape_of(config)
        bare = await _prompt_tokens(shape.bare_prompt(prompts), model, counter)
        prompts.notes_tokens = shape.notes_room(bare, window=model.context_window)
    calls = ThoughtCalls(
        model=model,
        prompts=prompts,
        counter=counter,
        thought_tokens=config.max_tokens_per_thought,
        temperature=config.temperature,
        are_tokens_bounded=task.budget.max_total_tokens is not None,
    )
    plan = _plan(config)
    allowance = Allowance(
        max_calls=min(config.max_model_calls, task.budget.max_model_calls or config.max_model_calls),
        max_tokens=task.budget.max_total_tokens,
        margin=_kept(calls, config),
    )
    search = TreeSearch(
        proposer=ThoughtProposer(calls=calls, max_depth=config.max_depth),
        evaluator=ThoughtEvaluator(calls=calls, is_comparing=config.evaluator is ThoughtJudge.VOTE),
        plan=plan,
        selection=_selection(config, plan),
        allowance=allowance,
        failures=(ModelError,),
        exhaustions=(TokenBudgetExhaustedError,),
    )
    return Run(config=config, task=task, calls=calls, search=search, allowance=allowance)


def _plan(config: TreeOfThoughtConfig) -> SearchPlan:
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


def _selection(config: TreeOfThoughtConfig, plan: SearchPlan) -> Selection[Thought]:
    root = build_root(Thought(text=""))
    return UctSelection(root, plan) if config.search is TreeSearchOrder.BEST_FIRST else BeamSelection(root, plan)


def prompts_of(task: Task, nonce: str, counter: TokenCounter) -> TreePrompts:
    """Return the prompts of a run; linear in the task's texts."""
    return TreePrompts(question=task.query, material=task.material, nonce=nonce, counter=counter)


def shape_of(config: TreeOfThoughtConfig) -> ThoughtShape:
    """Return what the calls of a run look like."""
    return ThoughtShape(
        branching=config.branching,
        thought_tokens=config.max_tokens_per_thought,
        is_comparing=config.evaluator is ThoughtJudge.VOTE,
    )


async def _prompt_tokens(messages: Sequence[Message], model: ChatModel, counter: TokenCounter) -> int:
    """Return the tokens of `messages`: the server's count if it gives one, else our own."""
    told = None if counter.is_exact else await model.count_exactly(messages)
    return await count_prompt(messages, counter) if told is None else told


def _kept(calls: ThoughtCalls, config: TreeOfThoughtConfig) -> Cost:
    """Return the worst case of the call that answers from the best thought."""
    notes = config.max_depth * (config.max_tokens_per_thought + _STEP_MARK_TOKENS) + FENCE_TOKENS
    if calls.prompts.notes_tokens is not None:
        notes = min(notes, calls.prompts.notes_tokens + FENCE_TOKENS)
    return calls.bound(calls.prompts.answer(()), more_tokens=notes + config.max_tokens_per_thought)

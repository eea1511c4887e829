"""Prompts of a search over thoughts: propose, judge, compare, and write the answer.

All prompts of one run have the same beginning (`context.sections`). So a model server that caches prompts reads it
once. The path of thoughts follows in `<notes>` and the candidates in `<passage>`. The
instruction of the call is trusted, and is last, behind all fences.

`ThoughtShape` computes the tokens that these calls need in the window, and the room for the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from reasond_server.context.final_replies import EXAMPLE, EXAMPLE_PROGRAM
from reasond_server.context.program_requests import requests_program
from reasond_server.context.sections import FENCE_TOKENS, SYSTEM, fence, fence_task
from reasond_server.context.tags import neutralize
from reasond_server.errors.base import Violation
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import Message, Role, TokenCounter
from reasond_server.strategies.strategy import StrategyConfig, Temperature
from reasond_server.types.values import value

# One call proposes, one judges, and one is reserved for the answer.
LEAST_CALLS: Final = 3
LEAST_THOUGHT_TOKENS: Final = 64
_MOST_THOUGHT_TOKENS: Final = 4096


class TreeSearchOrder(StrEnum):
    """Which node is expanded next."""

    BEAM = "beam"
    BEST_FIRST = "best_first"


class ThoughtJudge(StrEnum):
    """How nodes are judged: each alone, or those of one expansion against each other."""

    VALUE = "value"
    VOTE = "vote"


class TreeOfThoughtConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_depth: Annotated[int, Field(ge=1, le=10, description="Deepest level of the tree.")] = 4
    branching: Annotated[int, Field(ge=1, le=10, description="Thoughts proposed from each node.")] = 3
    beam_width: Annotated[
        int, Field(ge=1, le=10, description="Nodes kept of each level (beam), or expanded at once (best_first).")
    ] = 2
    # Not strict, because JSON has no enums, and strict Pydantic refuses strings for them.
    search: Annotated[TreeSearchOrder, Field(strict=False, description="Order of the search.")] = TreeSearchOrder.BEAM
    evaluator: Annotated[ThoughtJudge, Field(strict=False, description="How thoughts are judged.")] = ThoughtJudge.VALUE
    max_tokens_per_thought: Annotated[
        int,
        Field(
            ge=LEAST_THOUGHT_TOKENS,
            le=_MOST_THOUGHT_TOKENS,
            description="Most tokens of a thought, of a judgement, and of the answer.",
        ),
    ] = 512
    temperature: Temperature = 0.8
    max_model_calls: Annotated[int, Field(ge=1, le=1000, description="Most model calls of the whole search.")] = 60
    seed: Annotated[int | None, Field(description="Breaks ties between thoughts of equal score.")] = None


_FIRST: Final = "Work on the task"
_NEXT: Final = "Go on from the notes"
_PROPOSE = (
    "{start} in {count} different ways, each independent of the others and as far as you are sure of it. Begin each on "
    "a line of its own with its mark: {marks}. "
)
_TAG: Final = f"between tags, {EXAMPLE}"
_END_EACH: Final = f"End each that gets to the answer with it {_TAG}"
_END_ONE: Final = f"Once you get to the answer, end with it {_TAG}"
_END_LAST: Final = f"No step can follow: get to the answer{{each}}, and end with it {_TAG}"
_JUDGE = (
    "Judge the thought in <passage>: how likely is it right, and on a way to the right answer? Check it in a few "
    "sentences first. Only then end with a score between tags, from 0 (impossible) to 10 (certain), for example: "
    "<answer>7</answer>"
)
_COMPARE = (
    "Compare the {count} thoughts in the <passage> sections: how likely is each right, and on a way to the right "
    "answer? Check each in a sentence or two first. Only then give each points between tags, from 0 (impossible) to "
    "10 (certain), in this form: <answer>{form}</answer>"
)
_ANSWER = (
    "Using the notes, work out what is left to do, step by step. Only then end with the final answer to the question "
    f"alone between tags, {EXAMPLE}"
)
_CLIPPED = "…"

_MARGIN_TOKENS: Final = 64


class TreePrompts:
    """The prompts of one run.

    Args:
        question: the question; untrusted, like the material.
        material: text that the question is about; empty for none.
        nonce: the run's mark for fences.
        counter: counts and cuts the notes.
        notes_tokens: most tokens of the path; the beginning of a longer path is left out. None for no limit.
    """

    def __init__(
        self, *, question: str, material: str, nonce: str, counter: TokenCounter, notes_tokens: int | None = None
    ) -> None:
        self._nonce = nonce
        self._counter = counter
        self._system = Message(role=Role.SYSTEM, content=SYSTEM)
        self._beginning = fence_task(question=question, material=material, nonce=nonce)
        self.is_program = requests_program(question)
        self._example = EXAMPLE_PROGRAM if self.is_program else EXAMPLE
        self.notes_tokens = notes_tokens

    def propose(self, path: Sequence[str], *, count: int, is_last: bool) -> Sequence[Message]:
        """Return the prompt for `count` thoughts that follow `path`."""
        start = _NEXT if path else _FIRST
        if count == 1:
            return self._build_messages(path, f"{start}. {_END_LAST.format(each='') if is_last else _END_ONE}")
        marks = ", ".join(f"`Thought {number}:`" for number in range(1, count + 1))
        rule = _PROPOSE.format(start=start, count=count, marks=marks)
        return self._build_messages(path, rule + (_END_LAST.format(each=" in each") if is_last else _END_EACH))

    def judge(self, path: Sequence[str], candidates: Sequence[str]) -> Sequence[Message]:
        """Return the prompt that scores one candidate, or compares several."""
        if len(candidates) == 1:
            return self._build_messages(path, _JUDGE, candidates)
        form = ", ".join(f"{number}: N" for number in range(1, len(candidates) + 1))
        return self._build_messages(path, _COMPARE.format(count=len(candidates), form=form), candidates)

    def answer(self, path: Sequence[str]) -> Sequence[Message]:
        """Return the prompt that asks for an answer from `path`."""
        return self._build_messages(path, _ANSWER)

    def _build_messages(self, path: Sequence[str], rule: str, candidates: Sequence[str] = ()) -> Sequence[Message]:
        sections = [self._beginning]
        if notes := self._write_notes(path):
            sections.append(fence("notes", notes, nonce=self._nonce))
        for number, candidate in enumerate(candidates, start=1):
            sections.append(fence("passage", candidate, nonce=self._nonce, attributes=f' number="{number}"'))
        sections.append(rule.replace(EXAMPLE, self._example))
        return (self._system, Message(role=Role.USER, content="\n".join(sections)))

    def _write_notes(self, path: Sequence[str]) -> str:
        """Return the path as notes; only its end if it is too long."""
        notes = neutralize("\n".join(f"Step {number}: {text}" for number, text in enumerate(path, start=1)))
        if self.notes_tokens is None or self._counter.count_text(notes) <= self.notes_tokens:
            return notes
        room = self.notes_tokens - self._counter.count_text(_CLIPPED)
        return _CLIPPED + self._counter.tail(notes, room)


@value
class ThoughtShape:
    """The sizes of a search's calls: thoughts per proposal, tokens per thought, and whether one call judges all."""

    branching: int
    thought_tokens: int
    is_comparing: bool

    @property
    def shown(self) -> int:
        """Number of candidates in one judging prompt."""
        return self.branching if self.is_comparing else 1

    @property
    def needed_tokens(self) -> int:
        """Tokens that a call needs in addition to its bare prompt: its last thought, the candidates, its output."""
        judging = self.shown * (self.thought_tokens + FENCE_TOKENS) + self.thought_tokens
        writing = max(self.branching * self.thought_tokens, judging)
        return writing + self.thought_tokens + FENCE_TOKENS + _MARGIN_TOKENS

    def build_bare_prompt(self, prompts: TreePrompts) -> Sequence[Message]:
        """Return the largest prompt of the run without thoughts."""
        proposing = prompts.propose((), count=self.branching, is_last=True)
        judging = prompts.judge((), [""] * self.shown)
        return max(proposing, judging, key=lambda messages: len(messages[-1].content))

    def measure_notes(self, bare_tokens: int, *, window: int) -> int:
        """Return the most tokens of the path in a window of `window` tokens, with a bare prompt of `bare_tokens`.

        Raises:
            InvalidConfigError: a smaller max_tokens_per_thought would fit; the error has the largest such value.
            ContextExhaustedError: no max_tokens_per_thought fits.
        """
        room = window - bare_tokens - self.needed_tokens
        if room >= 0:
            return room + self.thought_tokens
        smaller = [replace(self, thought_tokens=size) for size in range(LEAST_THOUGHT_TOKENS, self.thought_tokens)]
        fitting = [shape.thought_tokens for shape in smaller if bare_tokens + shape.needed_tokens <= window]
        if fitting:
            raise InvalidConfigError.of(
                Violation(
                    field="max_tokens_per_thought",
                    description=f"must be at most {fitting[-1]} for this task with branching {self.branching} in the "
                    f"model's context window of {window} tokens, got {self.thought_tokens}",
                )
            )
        least = replace(self, thought_tokens=LEAST_THOUGHT_TOKENS).needed_tokens
        raise ContextExhaustedError(
            f"question and material have {bare_tokens} tokens, which leaves {max(window - bare_tokens, 0)} of the "
            f"model's context window of {window}; a search with branching {self.branching} needs at least {least}",
            remedy="Shorten query or material, or use the strategy 'bounded_context', which reads long material in "
            "segments.",
            metadata={"prompt_tokens": str(bare_tokens), "context_window": str(window)},
        )

"""Stages of the demo model that lead to an answer, such as a plan, by rule.

The last line of a prompt, behind all its sections, says which stage it asks for. Other prompts ask for an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.demo.acting import write_expressions
from reasond_server.demo.computation import compute
from reasond_server.demo.extraction import find_content_words, split_question
from reasond_server.demo.prompt import is_question
from reasond_server.demo.writing import WRONG, judge, write_reply
from reasond_server.llm.model import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.demo.prompt import Prompt
    from reasond_server.llm.model import Message, TokenCounter

_PLAN: Final = "devise a plan"
_ASK: Final = "short questions that check"
_PROGRAM: Final = "Write one Python program"
_CRITICISE: Final = "Write a critique"
_MAX_QUESTION_CHARACTERS: Final = 300
_MAX_SHOWN_WORDS: Final = 8


def write_stage(messages: Sequence[Message], prompt: Prompt, *, counter: TokenCounter, max_tokens: int) -> str:
    """Return the reply to a prompt that asks for a stage before the answer; empty for any other prompt."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.USER or not is_question(last.content):
        return ""
    instruction = last.content.rpartition("\n")[2]
    if _PLAN in instruction:
        return _write_plan(prompt)
    if _ASK in instruction:
        return _write_question(prompt)
    if _PROGRAM in instruction:
        return _write_program(prompt, counter=counter, max_tokens=max_tokens)
    if _CRITICISE in instruction:
        return _write_critique(prompt)
    return ""


def _write_plan(prompt: Prompt) -> str:
    asked, _ = split_question(prompt.question)
    if worked := compute(asked):
        steps = [
            "Take the numbers from the question.",
            *["Calculate."] * min(len(worked.steps), 1),
            "State the result.",
        ]
    else:
        words = ", ".join(find_content_words(asked)[:_MAX_SHOWN_WORDS])
        steps = [f"Find the sentences that speak of: {words}.", "Choose the best of them.", "Answer with it."]
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))


def _write_question(prompt: Prompt) -> str:
    """Return the question of the prompt again, as the only one to be checked."""
    asked = " ".join(split_question(prompt.question)[0].split())[:_MAX_QUESTION_CHARACTERS].rstrip(" ?.!")
    return f"Question 1: {asked}?"


def _write_program(prompt: Prompt, *, counter: TokenCounter, max_tokens: int) -> str:
    """Return a program that works out a computation, or prints the answer to another question."""
    worked = compute(split_question(prompt.question)[0])
    expressions = [] if worked is None else write_expressions(worked)
    if expressions:
        root = "from math import sqrt\n\n" if "sqrt" in expressions[-1] else ""
        code = f'{root}print(f"{{{expressions[-1]}:.10g}}")'
    else:
        reply = write_reply(prompt, counter=counter, max_tokens=max_tokens)
        code = f"print({reply.partition('<answer>')[2].partition('</answer>')[0]!r})"
    return f"```python\n{code}\n```"


def _write_critique(prompt: Prompt) -> str:
    """Return a critique of the draft, which finds a fault only where a computation shows one."""
    ((points, reason),) = judge(prompt.question, [prompt.draft])
    if points == WRONG and compute(split_question(prompt.question)[0]):
        return f"A fault: {reason}.\n<answer>REVISE</answer>"
    return "No fault was found.\n<answer>PASS</answer>"

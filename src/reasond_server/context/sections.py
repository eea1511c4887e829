"""Prompts built from sections: instructions in the system message, all untrusted texts in one user message.

The user message is a sequence of fenced sections (`context.fences`; NONCE stands for the run's random mark):

    <question NONCE>
    How long is the wall?
    </question NONCE>
    <notes NONCE>
    Seen so far: the wall has four gates.
    </notes NONCE>
    <passage NONCE segment="2" of="7">
    The text that is being read.
    </passage NONCE>

A text that is shown whole is in `<material>` instead of `<passage>`. Exactly one line break is added before and after
the content of a section. Empty sections are left out, except the question. The rule of the fences is at the end of the
system message, which has no nonce, so that a provider's prefix cache can reuse it in other runs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.context.fences import FENCE_RULE, fence
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, Message, Role
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import Task


@value
class Passage:
    """Segment `segment` (from 1) of `segment_count` of a long text."""

    text: str
    segment: int
    segment_count: int


def build_prompt(
    *,
    instructions: str,
    question: str,
    nonce: str,
    notes: str = "",
    material: str = "",
    passage: Passage | None = None,
) -> Sequence[Message]:
    """Return the messages of one call. All texts except `instructions` are neutralised and fenced with `nonce`.

    Raises:
        ValueError: `nonce` is not 16 to 64 small letters; a strategy gets it from `RunContext.new_nonce`.
    """
    sections = [fence("question", question, nonce=nonce)]
    if notes:
        sections.append(fence("notes", notes, nonce=nonce))
    if material:
        sections.append(fence("material", material, nonce=nonce))
    if passage is not None:
        attributes = f' segment="{passage.segment}" of="{passage.segment_count}"'
        sections.append(fence("passage", passage.text, nonce=nonce, attributes=attributes))
    return (
        Message(role=Role.SYSTEM, content=instructions + FENCE_RULE),
        Message(role=Role.USER, content="\n".join(sections)),
    )


async def build_task_prompt(task: Task, *, instructions: str, nonce: str) -> Sequence[Message]:
    """Return the prompt with the whole question and material; a long prompt is built in a thread."""
    if task.text_characters > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(_build_for_task, task, instructions, nonce)
    return _build_for_task(task, instructions, nonce)


def _build_for_task(task: Task, instructions: str, nonce: str) -> Sequence[Message]:
    return build_prompt(instructions=instructions, question=task.query, nonce=nonce, material=task.material)

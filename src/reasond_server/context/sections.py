"""Prompts built from sections: instructions in the system message, everything untrusted in one user message.

The user message is a row of sections, each tag on a line of its own:

    <question>
    How long is the wall?
    </question>
    <notes>
    Seen so far: the wall has four gates.
    </notes>
    <passage segment="2" of="7">
    The text that is being read.
    </passage>

`<material>` instead of `<passage>` holds a text that is shown whole. Exactly one line break is added before
and after what a section holds. Sections that hold nothing are left out, except the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.context.tags import neutralize
from reasond_server.llm.model import Message, Role

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Segment `segment` (from 1) of `segment_count` of a long text."""

    text: str
    segment: int
    segment_count: int


def build_prompt(
    *, instructions: str, question: str, notes: str = "", material: str = "", passage: Passage | None = None
) -> Sequence[Message]:
    """Return the messages of one call; all but `instructions` is untrusted and neutralised."""
    sections = [_section("question", question)]
    if notes:
        sections.append(_section("notes", notes))
    if material:
        sections.append(_section("material", material))
    if passage is not None:
        attributes = f' segment="{passage.segment}" of="{passage.segment_count}"'
        sections.append(_section("passage", passage.text, attributes=attributes))
    return (
        Message(role=Role.SYSTEM, content=instructions),
        Message(role=Role.USER, content="\n".join(sections)),
    )


def _section(tag: str, text: str, *, attributes: str = "") -> str:
    return f"<{tag}{attributes}>\n{neutralize(text)}\n</{tag}>"

"""Parsing of the demo model's prompt: tagged sections of the last user message, or a bare question.

Each tag is alone on its line: `<question>`, `<notes>`, `<material>`, `<passage segment="2" of="7">`, and their closing
tags. Each `<passage number="1">` or `<passage name="candidate">` is a candidate to be judged, and `<passage
name="draft">` is a draft of the answer; a passage with another name is ignored. A tag may have a mark of small letters
after its name; then only the closing tag with the same mark ends the section. Text outside the sections has
instructions for other models and is ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reasond_server.llm.model import Role
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message

_OPENING = re.compile(
    r"<(question|notes|material|passage)( [a-z]{1,64})?"
    r'(?: segment="(\d{1,9})" of="(\d{1,9})"| number="(\d{1,4})"| name="([a-z_]{1,32})")?>'
)

_CANDIDATE = "candidate"
_DRAFT = "draft"
_HAS_QUESTION = re.compile(r"\s*<(?:question|material)(?: [a-z]{1,64})?>[^\S\n]*\n")


@value
class Prompt:
    """The sections; a missing section is empty. `segment` and `segment_count` belong to the passage, 0 without one.

    `candidates` are the texts to be judged, in order, and `draft` is a draft of the answer; they are not in `passage`.
    """

    question: str = ""
    notes: str = ""
    material: str = ""
    passage: str = ""
    segment: int = 0
    segment_count: int = 0
    is_reading: bool = False
    candidates: tuple[str, ...] = ()
    draft: str = ""


def is_question(content: str) -> bool:
    """Return whether a message begins with a question section."""
    return _HAS_QUESTION.match(content) is not None


def read_prompt(messages: Sequence[Message]) -> Prompt:
    """Return the sections of the last user message with a question section, else the last one as the question."""
    said = [message.content for message in messages if message.role is Role.USER]
    # Messages between two calls of one question, such as a demand for the answer, have no sections.
    content = next((one for one in reversed(said) if is_question(one)), said[-1] if said else "")
    sections: dict[str, list[str]] = {}
    segment = segment_count = 0
    closing = ""
    current: list[str] = []
    candidates: list[list[str]] = []
    draft: list[str] = []
    for line in content.splitlines():
        mark = line.strip()
        if closing:
            if mark == closing:
                closing = ""
            else:
                current.append(line)
        elif opening := _OPENING.fullmatch(mark):
            closing = f"</{opening[1]}{opening[2] or ''}>"
            if opening[6] and opening[6] != _CANDIDATE:
                current = draft if opening[6] == _DRAFT else []
                continue
            if opening[5] or opening[6]:
                candidates.append(current := [])
                continue
            current = sections.setdefault(opening[1], [])
            if opening[1] == "passage":
                segment, segment_count = int(opening[3] or 1), int(opening[4] or 1)
    if not sections:
        return Prompt(question=content)
    texts = {name: "\n".join(lines) for name, lines in sections.items()}
    return Prompt(
        **texts,
        segment=segment,
        segment_count=segment_count,
        is_reading="passage" in sections,
        candidates=tuple("\n".join(lines) for lines in candidates),
        draft="\n".join(draft),
    )

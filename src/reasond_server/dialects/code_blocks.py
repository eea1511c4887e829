"""Fenced blocks of Markdown as models write them: in a list, of tildes, closed behind the last line, or not closed.

Sources: CommonMark 0.31 on fenced code; langgenius/dify#42451, laravel/ai#879, vectorize-io/hindsight#2542.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import dedent
from typing import Final

from reasond_server.types.values import value

_OPENING: Final = re.compile(r"^[ \t>]{0,12}(?:[-*+] |\d{1,2}[.)] )?(`{3,}|~{3,})[ \t]{0,3}([^\n`]{0,80})$")
_LANGUAGE: Final = re.compile(r"[{.]{0,2}([\w+#-]{0,20})")
_MOST_BLOCKS: Final = 100
_FENCE: Final = re.compile(r"^[ \t]{0,12}(?:```|~~~).*", re.MULTILINE)
_CODE_BLOCK: Final = re.compile(
    r"^[ \t]{0,12}(`{3,}+|~{3,}+)[^\n]*+\n((?:.*+\n)*?)(?:[ \t]{0,12}\1|.*\Z)", re.MULTILINE
)
_CODE_LINE: Final = re.compile(
    r"^[ \t]*+(?:def \w+\(|class \w+[^\n]*[:{]$|import \w|from [\w.]+ import|(?:for|while|if)\b[^\n]*:$|return\b"
    r"|function\b|(?:const|let|var) \w+ =|(?:public|private|static) \w|#include|(?:print|console\.log|printf)\()"
    r"|[;{][ \t]*$",
    re.MULTILINE,
)
_BARE_CODE: Final = re.compile(
    r"^(?:def|async def|class) \w+[^\n]*:[ \t]*+(?:#[^\n]*)?\n(?:[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n)+"
    r"|^(?:export |async |public |private |static )*(?:function|class|const|int|void)\b[^\n]*\{[ \t]*\n(?:.*\n)*?\}",
    re.MULTILINE,
)
_PYTHON: Final = frozenset({"python", "python3", "py", "py3", "ipython", "python-repl", "pycon"})


@value
class Block:
    """A fenced block: its language in small letters, and its text without a common indentation."""

    language: str
    text: str
    is_closed: bool


def read_blocks(text: str) -> Sequence[Block]:
    """Return the fenced blocks of a text in their order, 100 at most."""
    blocks: list[Block] = []
    mark, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        bare = line.strip()
        if not mark:
            opened = _OPENING.match(line.rstrip())
            if opened is not None and len(blocks) < _MOST_BLOCKS:
                found = _LANGUAGE.match(opened[2])
                mark, language, lines = opened[1], found[1].lower() if found else "", []
        elif bare.endswith(mark):
            # Some close a block behind its last line.
            lines.append(line.rstrip().rstrip(mark[0]))
            blocks.append(_build(language, lines, is_closed=True))
            mark = ""
        else:
            lines.append(line.rstrip("\r"))
    if mark:
        blocks.append(_build(language, lines, is_closed=False))
    return blocks


def choose_python(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the blocks that are marked as Python; all where none is."""
    return [block for block in blocks if block.language in _PYTHON] or blocks


def has_code_line(text: str) -> bool:
    """Return whether a line of a text is one of a program, in Python or a language of braces."""
    return _CODE_LINE.search(text) is not None


def find_code(text: str) -> Sequence[tuple[int, int]]:
    """Return from where to where programs stand in a text: fenced blocks of code, and functions without a fence."""
    blocks = [block.span(2) for block in _CODE_BLOCK.finditer(text) if has_code_line(block[2])]
    return [*blocks, *(block.span() for block in _BARE_CODE.finditer(text))]


def find_program(text: str) -> str:
    """Return what stands from the first fence to the last, or from the first function to the last; empty without."""
    if fences := list(_FENCE.finditer(text)):
        # Some leave the last fence open.
        end = fences[-1].end() if len(fences) % 2 == 0 else None
        return text[fences[0].start() : end].strip()
    bare = list(_BARE_CODE.finditer(text))
    return text[bare[0].start() : bare[-1].end()].strip() if bare else ""


def _build(language: str, lines: Sequence[str], *, is_closed: bool) -> Block:
    return Block(language=language, text=dedent("\n".join(lines)).strip("\n").rstrip(), is_closed=is_closed)

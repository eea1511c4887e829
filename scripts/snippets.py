"""Find the fenced code blocks of the documentation, so that a test can run them.

After the language a fence may say how its block is treated:
`skip="reason"` leaves it out; `parse` only parses a toml block that is no server configuration; `continues` puts all
blocks of the same language that stand before it in the file in front of it.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LANGUAGES = ("bash", "console", "python", "toml", "json")
FLAGS = ("parse", "continues")
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A block: where it stands, its language, its text, why it is skipped ("" if it is not), and its flags."""

    path: Path
    line: int
    language: str
    text: str
    skip: str = ""
    flags: frozenset[str] = frozenset()


def treatment(info: str) -> tuple[str, str, frozenset[str]]:
    """Return language, reason to skip and flags of a fence's info string.

    Raises:
        ValueError: it holds a word that means nothing here, or skips without a reason.
    """
    language, *words = shlex.split(info) or [""]
    skip = ""
    for word in words if language in LANGUAGES else []:
        name, _, value = word.partition("=")
        if name == "skip" and value.strip():
            skip = value
        elif word not in FLAGS:
            raise ValueError(f'{word!r} is no flag of a snippet; these are: skip="reason", {", ".join(FLAGS)}')
    return language, skip, frozenset(words).intersection(FLAGS)


def commands(text: str) -> str:
    """Return what a console block has typed: lines after `$ `, and the lines that continue them."""
    typed: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
        elif typed and typed[-1].endswith("\\"):
            typed.append(line.removeprefix("> "))
    return "\n".join(typed)


def snippets(path: Path) -> Iterator[Snippet]:
    """Yield the blocks of the Markdown file `path` that a test can treat."""
    before: dict[str, str] = {}
    markdown = path.read_text(encoding="utf-8")
    for match in FENCE.finditer(markdown):
        line = markdown.count("\n", 0, match.start()) + 1
        try:
            language, skip, flags = treatment(match["info"])
        except ValueError as error:
            raise ValueError(f"{path}:{line}: {error}") from error
        if language not in LANGUAGES:
            continue
        text = textwrap.dedent(match["body"])
        if language == "console":
            language, text = "bash", commands(text)
        if "continues" in flags:
            text = before.get(language, "") + text
        before[language] = text
        yield Snippet(path=path, line=line, language=language, text=text, skip=skip, flags=flags)

"""Find the fenced code blocks of the documentation, so that a test can run them.

The info string after the language controls the treatment of a block: `skip="reason"` skips it; `parse` only parses a
toml block that is no server configuration; `continues` puts all earlier blocks of the same language in the file before
it; `output` says that the next block shows what this one prints, where `...` stands for any text.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LANGUAGES = ("bash", "console", "python", "toml", "json")
FLAGS = ("parse", "continues", "output")
FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^[ \t]*(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A block: its place, language and text, the reason for skipping it ("" if it is not skipped), flags, output."""

    path: Path
    line: int
    language: str
    text: str
    skip: str = ""
    flags: frozenset[str] = frozenset()
    output: str = ""


def treatment(info: str) -> tuple[str, str, frozenset[str]]:
    """Return language, reason for skipping and flags of a fence's info string.

    Raises:
      ValueError: it contains an unknown word, or a skip without a reason.
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
    """Return the commands of a console block: lines after `$ `, and their continuation lines."""
    typed: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
        elif typed and typed[-1].endswith("\\"):
            typed.append(line.removeprefix("> "))
    return "\n".join(typed)


def pattern_of(output: str) -> re.Pattern[str]:
    """Return the pattern of an output in which `...` stands for any text."""
    return re.compile(".*?".join(re.escape(part) for part in output.strip().split("...")), re.DOTALL)


def snippets(path: Path) -> Iterator[Snippet]:
    """Yield the blocks of the Markdown file `path` that a test can run or parse."""
    before: dict[str, str] = {}
    markdown = path.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(markdown))
    for match, following in zip_longest(blocks, blocks[1:]):
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
        output = textwrap.dedent(following["body"]) if "output" in flags and following else ""
        yield Snippet(path=path, line=line, language=language, text=text, skip=skip, flags=flags, output=output)

"""JSON with something around it, as models write it: every value that a text can be read as, the plainest first.

Sources: langgenius/dify#42451, laravel/ai#879, vectorize-io/hindsight#2542. What is found here is not trusted: a schema
decides. Nothing is completed or invented; what is cut off stays unread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from reasond_server.dialects.code_blocks import read_blocks
from reasond_server.tools.json_parser import read_strict_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WRAPPERS: Final = frozenset(
    ("answer", "final_answer", "result", "output", "response", "json", "data", "value", "properties")
)
_MOST_CHARACTERS: Final = 50_000
_MOST_VALUES: Final = 5
# A string is kept as it is; around strings, comments and commas before a bracket are dropped and Python's words read.
_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|(?P<comment>//[^\n]*|/\*.{0,2000}?\*/|(?<![\w\]}"])#[^\n]*)|'
    r"(?P<comma>,(?=(?:\s++|//[^\n]*+|/\*[^*]{0,200}+\*/)*+[}\]]))"
    r"|(?P<word>\b(?:True|False|None|NaN|undefined)\b)|'(?P<single>(?:[^'\\\n]|\\.)*)'",
    re.DOTALL,
)
_REFERENCE: Final = re.compile(r"\[\d{1,3}\]")
_WORDS: Final = {"True": "true", "False": "false", "None": "null", "NaN": "null", "undefined": "null"}


def read_dressed(text: str) -> Iterator[Sequence[object]]:
    """Yield the values that `text` may be, in groups: the values of one group are equally likely."""
    text = text.strip().strip("\ufeff").strip()
    is_long = len(text) > _MOST_CHARACTERS
    parts = [[text], [block.text for block in read_blocks(text)], [] if is_long else list(_cut_out(text))]
    for group in parts:
        yield [value for part in group for value in _read(part)]
    for group in [] if is_long else parts:
        yield [value for part in group for value in _read(_TOKEN.sub(_write_token, part))]


def unwrap(value: object) -> object:
    """Return what stands in a member such as "answer", in a list of one, or in a string; else `value` itself."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)).casefold() in _WRAPPERS:
        return next(iter(value.values()))
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    if isinstance(value, str):
        return next(iter(_read(value)), value)
    return value


def _read(text: str) -> Sequence[object]:
    """Return the value of a text that is JSON, in a list; an empty list for any other text."""
    try:
        return [read_strict_json(text.strip())]
    except ValueError:
        return []


def _write_token(found: re.Match[str]) -> str:
    if found["comment"] is not None or found["comma"] is not None:
        return ""
    if (word := found["word"]) is not None:
        return _WORDS[word]
    if (single := found["single"]) is not None:
        return '"' + single.replace("\\'", "'").replace('"', '\\"') + '"'
    return found[0]


def _cut_out(text: str) -> Iterator[str]:
    """Yield the outermost objects and lists of a text, 5 at most."""
    depth, start, count, is_string, is_escaped = 0, 0, 0, False, False
    for place, char in enumerate(text):
        if is_string:
            is_string = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"' and depth:
            is_string = True
        elif char in "{[":
            start = start if depth else place
            depth += 1
        elif char in "}]" and depth:
            depth -= 1
            if not depth and not _REFERENCE.fullmatch(text, start, place + 1):
                yield text[start : place + 1]
                count += 1
                if count == _MOST_VALUES:
                    return

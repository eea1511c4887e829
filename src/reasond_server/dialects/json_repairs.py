"""JSON as models write it: in fences, with trailing commas, as a Python literal, encoded twice."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, Final

_TRAILING_COMMA: Final = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')
_BARE_NAME: Final = re.compile(r'("(?:[^"\\]|\\.)*")|(?<=[{,\s])([A-Za-z_]\w{0,63})(?=\s*:)')
_FENCED: Final = re.compile(r"\s*(?:```|~~~)[a-z_]*\s*\n?(.*?)\s*(?:```|~~~)?\s*", re.DOTALL | re.IGNORECASE)
# What templates leave behind an object: marks, closing brackets, the beginning of such a mark.
_LEFT_BEHIND: Final = re.compile(r"[\s}\]]*(?:</?[\w|:/]{0,40}>?|<\|[^<>]{0,40}\|?>?|\[/?[A-Z_]{0,20}\]?)*\s*")
_MAX_CHARACTERS: Final = 200_000
_DECODER: Final = json.JSONDecoder(strict=False)


def read_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that `text` means; None if it is none, or too long to be looked at.

    Encoded twice: FoundationAgents/OpenManus#989; trailing commas: MoonshotAI/kimi-cli#2165.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    found = _read_value(text)
    if isinstance(found, str):
        found = _read_value(found)
    if found is None and (scanned := scan_value(text, len(text) - len(text.lstrip()))):
        # Sent twice, or with the end of a template behind it: vllm-project/vllm#51697, #51701.
        found, end = scanned
        rest = text[end:]
        if found == {} and rest.lstrip().startswith("{"):
            # Some servers begin the arguments with an empty object.
            return read_object(rest)
        if not _LEFT_BEHIND.fullmatch(rest) and _read_value(rest) != found:
            return None
    return found if isinstance(found, dict) else None


def scan_value(text: str, start: int) -> tuple[Any, int] | None:
    """Return the JSON object or array that begins at `start`, and its end; None if there is no whole one."""
    end = _find_end(text, start)
    if end is None:
        return None
    found = _read_value(text[start:end])
    return (found, end) if isinstance(found, dict | list) else None


def _read_value(text: str) -> Any:  # noqa: ANN401 - any JSON
    fenced = _FENCED.fullmatch(text) if text.lstrip()[:3] in {"```", "~~~"} else None
    text = (fenced[1] if fenced else text).strip().removeprefix("\ufeff")
    mended = _TRAILING_COMMA.sub(lambda found: found[1] or "", text)
    for candidate in (text, mended, _BARE_NAME.sub(lambda found: found[1] or f'"{found[2]}"', mended)):
        try:
            return _DECODER.decode(candidate)
        except (ValueError, RecursionError):
            continue
    try:
        found = ast.literal_eval(text)
        json.dumps(found)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return found


def _find_end(text: str, start: int) -> int | None:
    """Return the end of the object or array at `start`: behind the bracket that closes it, outside of strings."""
    depth, quote, is_escaped = 0, "", False
    for place in range(start, min(len(text), start + _MAX_CHARACTERS)):
        char = text[place]
        if quote:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and text[place - 1 : place] in set("[{(,: \n")):
            quote = char
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if not depth:
                return place + 1
    return None

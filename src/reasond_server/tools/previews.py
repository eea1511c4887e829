"""Previews of results: what a model needs to decide on its next step, by the shape of the result, in bounded tokens.

| result | shown first | shown while there is room |
| --- | --- | --- |
| list of objects | counts, columns, statuses, rows with failures or words of the query | identifiers, then texts |
| object | small fields | large fields, each by its own shape |
| text, log, other list | first and last lines, failures, words of the query | lines around them, then others |

A preview says what it leaves out and how to read it. Time is linear in the result. Rendering is pure and holds the
interpreter for no long piece: run it in a thread (`context.calls.run_by_size`) for results of more than
LONG_TEXT_CHARACTERS, and the event loop goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.tools.json_reading import measure_json, read_json
from reasond_server.tools.preview_lines import MAX_ENTRY_CHARACTERS, write_entries, write_text
from reasond_server.tools.preview_room import PreviewRoom, clip
from reasond_server.tools.preview_tables import write_table
from reasond_server.tools.preview_words import pick_query_words
from reasond_server.tools.results import write_start
from reasond_server.types.turns import Rendering
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SMALL_CHARACTERS: Final = 200
_MAX_DEPTH: Final = 8
_MAX_NAME: Final = 60
_LEAST_ROWS: Final = 2
_HALF: Final = 2
# For the line break between two parts.
_JOINT: Final = 2


@value
class Preview:
    """The text of a result as it is shown; FULL if it is the whole result, else PREVIEW."""

    text: str
    rendering: Rendering


def render_preview(
    result_json: str, *, tokens: int, count: Callable[[str], int], query: str, handle: str = ""
) -> Preview:
    """Return the result in at most `tokens` tokens by `count`: whole if that fits, else by its shape.

    Rows and lines with words of `query` are kept before others. `handle` is what `read_tool_result` reads the rest by.
    """
    room = PreviewRoom(tokens=tokens, count=count)
    if len(result_json) <= room.most_characters and count(result_json) <= tokens:
        return Preview(text=result_json, rendering=Rendering.FULL)
    told = f"[preview of {len(result_json)} characters"
    told += f"; read_tool_result with handle {handle} reads the rest]" if handle else "]"
    left = room.share(tokens - count(told) - _JOINT)
    text = told if left.tokens <= 0 else f"{told}\n{_write_json(result_json, left, pick_query_words(query))}"
    return Preview(text=room.take(text) or room.cut(text), rendering=Rendering.PREVIEW)


def _write_json(result_json: str, room: PreviewRoom, words: Sequence[str]) -> str:
    try:
        # A number such as 1e999 is read and cannot be written again.
        read = read_json(result_json)
        return _write_value(read, "", room, words, depth=0)
    except ValueError:
        return write_text(result_json, name="no whole JSON", room=room, words=words)


def _write_value(read: object, pointer: str, room: PreviewRoom, words: Sequence[str], *, depth: int) -> str:
    at = f"at {pointer}, " if pointer else ""
    if isinstance(read, str):
        inner = _read_inner(read)
        if inner is None or depth >= _MAX_DEPTH:
            return write_text(read, name=f"{at}text", room=room, words=words)
        return _write_value(inner, f"{pointer} (JSON in a string)", room, words, depth=depth + 1)
    if isinstance(read, list):
        rows = [one for one in read if isinstance(one, dict) and one]
        if len(rows) == len(read) >= _LEAST_ROWS:
            return write_table(rows, name=f"{at}list", room=room, words=words)
        entries = [write_start(one, MAX_ENTRY_CHARACTERS) for one in read]
        told = f"{at}list of {len(read)} values"
        return write_entries(entries, numbers=range(len(read)), told=told, room=room, words=words)
    if isinstance(read, dict) and depth < _MAX_DEPTH:
        return _write_object(read, pointer, room, words, depth=depth)
    return write_text(write_start(read, room.most_characters), name=f"{at}value", room=room, words=words)


def _read_inner(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or list that `text` is the JSON of, as some tools answer; else None."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        inner = read_json(text)
    except ValueError:
        return None
    return inner if isinstance(inner, dict | list) else None


def _write_object(read: Mapping[str, Any], pointer: str, room: PreviewRoom, words: Sequence[str], *, depth: int) -> str:
    """Return the small fields whole, then the large ones, the smallest first; each gets an equal share of the rest."""
    texts = {key: write_start(each, _SMALL_CHARACTERS) for key, each in read.items()}
    small = [f"{clip(key, _MAX_NAME)}: {text}" for key, text in texts.items() if len(text) <= _SMALL_CHARACTERS]
    large = [key for key, text in texts.items() if len(text) > _SMALL_CHARACTERS]
    large.sort(key=lambda key: measure_json(read[key]))
    told = f"{f'at {pointer}, ' if pointer else ''}object of {len(read)} fields"
    if large:
        told += f", {len(large)} of them large"
    parts = [told]
    if small:
        share = room.share(room.tokens // _HALF if large else room.tokens)
        whole = "\n".join([told, *small])
        taken = share.take(whole)
        parts = [taken or write_entries(small, numbers=range(len(small)), told=told, room=share, words=words)]
    for number, key in enumerate(large):
        left = room.tokens - room.count("\n".join(parts)) - _JOINT
        share = room.share(left // (len(large) - number) - _JOINT)
        path = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
        if share.tokens > 0:
            parts.append(_write_value(read[key], path, share, words, depth=depth + 1))
        else:
            parts.append(f"[left out: {len(large) - number} large fields]")
            break
    return "\n".join(parts)

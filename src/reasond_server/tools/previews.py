"""Previews of results: what a model needs to decide on its next step, by the shape of the result, in bounded tokens.

| result | shown first | shown while there is room |
| --- | --- | --- |
| list of objects | counts, columns, statuses, rows with failures or words of the query | identifiers, then texts |
| object | small fields | large fields, each by its own shape |
| text, log, other list | first and last lines, failures, words of the query | warnings, odd lines, links, then others |

A preview says what it leaves out and how to read it. Time is linear in the result. Rendering is pure and holds the
interpreter for no long piece: run it in a thread (`context.calls.run_by_size`) for results of more than
LONG_TEXT_CHARACTERS, and the event loop goes on.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Final, TypeGuard

from reasond_server.tools.json_parser import measure_json, read_json
from reasond_server.tools.preview_words import (
    find_hits,
    find_links,
    find_rare,
    is_failure_field,
    is_failure_line,
    is_heading,
    is_status,
    is_warning_line,
    pick_query_words,
    rank_identifier,
    read_page,
)
from reasond_server.tools.results import escape_unseen, write_start
from reasond_server.types.turns import Rendering
from reasond_server.types.values import value

CLIPPED: Final = "…"
"""Ends a value that is cut."""

# Tables and logs have 2 to 5 characters in a token. A longer text is too large and is not even counted.
_MAX_CHARACTERS_PER_TOKEN: Final = 12
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f]")


class PreviewRoom:
    """At most `tokens` tokens by `count`."""

    def __init__(self, *, tokens: int, count: Callable[[str], int]) -> None:
        self.tokens = tokens
        self.most_characters = max(0, tokens) * _MAX_CHARACTERS_PER_TOKEN
        self.count = count

    def take(self, text: str) -> str | None:
        """Return `text` with invisible characters as escapes; None if that does not fit."""
        if len(text) > self.most_characters:
            return None
        shown = _clean(text)
        return shown if self.count(shown) <= self.tokens else None

    def cut(self, text: str) -> str:
        """Return `text`, without its end where it does not fit."""
        shown = _clean(text[: self.most_characters])
        while shown and self.count(shown) > self.tokens:
            shown = shown[: len(shown) * 9 // 10]
        return shown

    def find_most(self, write: Callable[[int], str], most: int) -> tuple[int, str]:
        """Return the greatest number from 0 to `most` whose text fits, with the text; if none fits, (-1, "").

        `write` must give longer texts for greater numbers.
        """
        best, shown, low, high = -1, "", 0, most
        while low <= high:
            middle = (low + high + 1) // 2 if best >= 0 else low
            text = self.take(write(middle))
            if text is None:
                high = middle - 1
            else:
                best, shown, low = middle, text, middle + 1
        return best, shown

    def share(self, tokens: int) -> PreviewRoom:
        """Return a room of `tokens`, counted alike."""
        return PreviewRoom(tokens=tokens, count=self.count)


def clip(text: str, most: int | None) -> str:
    """Return `text`; if it is longer than `most`, its beginning and the mark CLIPPED."""
    return text if most is None or len(text) <= most else text[:most] + CLIPPED


def list_names(names: Sequence[str], most: int = 40) -> str:
    """Return the names in one line, each clipped, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(clip(" ".join(name.split()), 60) for name in names[:most]) + more


def _clean(text: str) -> str:
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], escape_unseen(text))


MAX_ENTRY_CHARACTERS: Final = 2_000
"""Of a value in a list; failures and words are looked for in so many, and fewer are shown."""

_LINE_CLIPS: Final = (1_000, 300, 120)
_AT_ENDS: Final = 3
_FEW_SHARE: Final = 5
_COMPARED_LINKS: Final = 2_000
# For the line break between two parts.
_JOINT: Final = 2
_PIECE_CHARACTERS: Final = 200
_LONG_LINE_CHARACTERS: Final = 2_000
# Of an entry with its number.
_LEAST_CHARACTERS: Final = 4


def write_text(text: str, *, name: str, room: PreviewRoom, words: Sequence[str]) -> str:
    """Return lines of `text` with their numbers, from 1; `name` says what the text is.

    A text of very long lines is shown in pieces with their offsets.
    """
    if (page := read_page(text)) is not None:
        text, name = page, f"{name}, a page without its tags"
    lines = text.splitlines()
    if len(text) > _LONG_LINE_CHARACTERS * max(1, len(lines)):
        starts = range(0, len(text), _PIECE_CHARACTERS)
        pieces = [text[at : at + _PIECE_CHARACTERS].replace("\n", " ") for at in starts]
        title = f"{name}: {len(text)} characters; pieces of {_PIECE_CHARACTERS} with their offsets"
        return write_entries(pieces, numbers=starts, title=title, room=room, words=words)
    title = f"{name}: {len(lines)} lines, {len(text)} characters"
    return write_entries(lines, numbers=range(1, len(lines) + 1), title=title, room=room, words=words)


def write_entries(
    entries: Sequence[str], *, numbers: Sequence[int], title: str, room: PreviewRoom, words: Sequence[str]
) -> str:
    """Return `title` and as many of `entries` as fit, in their order, each with its number.

    The first and the last ones, failures and those with one of `words` go before their neighbours, and those before
    all others. Long entries are clipped where that shows more of the first kind.
    """
    most_entries = room.most_characters // _LEAST_CHARACTERS
    order, urgent = _order_entries(entries, words, most_entries)
    text = ""
    for most in _LINE_CLIPS:

        def write(count: int, most: int = most) -> str:
            return _write_chosen(entries, numbers, sorted(order[:count]), title=title, most=most)

        shown, text = room.find_most(write, len(order))
        if shown >= urgent:
            break
    links = list(dict.fromkeys(chain.from_iterable(find_links(entry) for entry in entries)))
    if _count_links(text, links) < len(links[:_COMPARED_LINKS]):
        text = max(text, _write_links(entries, links, title=title, room=room), key=lambda one: _count_links(one, links))
    return text or room.cut(title)


def _write_links(entries: Sequence[str], links: Sequence[str], *, title: str, room: PreviewRoom) -> str:
    """Return the failures among `entries`, the first addresses in them that fit, and the text before and between."""
    failures = [clip(entry, _LINE_CLIPS[-1]) for entry in entries if is_failure_line(entry)][:_AT_ENDS]
    heading = "\n".join([title, *failures])

    def write(count: int) -> str:
        return f"{heading}\n{count} of {len(links)} addresses in it: {' '.join(links[:count])}"

    shown, text = room.find_most(write, len(links))
    if shown < len(links):
        return text
    left = room.share(room.tokens - room.count(text) - _JOINT)
    rest = [entry for entry in entries if entry.strip()]
    return f"{text}\n{left.cut(chr(10).join(rest))}" if left.tokens > 0 else text


def _count_links(text: str, links: Sequence[str]) -> int:
    return sum(link in text for link in links[:_COMPARED_LINKS])


def _order_entries(entries: Sequence[str], words: Sequence[str], most: int) -> tuple[Sequence[int], int]:
    """Return the numbers of at most `most` entries, the most useful first, and how many of them are urgent."""
    last = len(entries)
    ends = [*range(min(_AT_ENDS, last)), *range(max(0, last - _AT_ENDS), last)]
    hits = find_hits(entries, words)
    found = sorted(hits | {at for at, entry in enumerate(entries) if is_failure_line(entry)})
    marked = [at for at, entry in enumerate(entries) if is_heading(entry) or find_links(entry)]
    urgent = dict.fromkeys([*ends, *found])
    around = [near for at in found for near in (at - 1, at + 1) if 0 <= near < last]
    order = list(dict.fromkeys([*urgent, *_find_odd(entries), *marked, *around, *range(min(last, most))]))[:most]
    return order, min(len(urgent), len(order))


def _find_odd(entries: Sequence[str]) -> Sequence[int]:
    """Return the numbers of warnings, if they are few, and of entries that are unlike all others."""
    warnings = {at for at, entry in enumerate(entries) if is_warning_line(entry)}
    return sorted(find_rare(entries) | (warnings if len(warnings) <= len(entries) // _FEW_SHARE else set()))


def _write_chosen(
    entries: Sequence[str], numbers: Sequence[int], chosen: Sequence[int], *, title: str, most: int
) -> str:
    lines, expected = [f"{title}; {len(entries) - len(chosen)} left out" if len(chosen) < len(entries) else title], 0
    for at in chosen:
        if at > expected:
            lines.append(f"[… {at - expected} left out]")
        lines.append(f"{numbers[at]}: {clip(entries[at], most)}")
        expected = at + 1
    if expected < len(entries):
        lines.append(f"[… {len(entries) - expected} left out]")
    return "\n".join(lines)


_CLIPS: Final = (2_000, 1_000, 500, 250, 120, 60, 30, 15)
# Of rows that the question asks for, and of rows with a failure. 0 shows identifiers alone.
_URGENT_CLIPS: Final = (
    *((None, None), (500, 500), (250, 250), (120, 120), (60, 60)),
    *((500, 0), (250, 0), (120, 0), (60, 0), (0, 0)),
)
_MAX_IDENTIFIER: Final = 200
_MAX_STATUSES: Final = 16
_MAX_STATUS_COLUMNS: Final = 6
_MAX_COLUMNS: Final = 256
_MAX_CONSTANT: Final = 200
_MAX_NAME: Final = 60
_SPECIAL: Final = ("|", "\n", "\r", "\t", '"')


@dataclass(slots=True, kw_only=True)
class _Column:
    """A column: its cells as text, one for each row, and whether they identify the row and are never clipped."""

    name: str
    cells: Sequence[str]
    rank: int | None
    is_identifier: bool = False
    is_distinct: bool = False


@dataclass(slots=True, kw_only=True)
class _Plan:
    """What a table shows: characters of a text, by kind of row, and the columns of the other rows.

    `asked_most` is for rows with words of the question, `failed_most` for other rows with a failure; 0 shows
    identifiers alone. `columns` None packs the best identifier of the other rows into one line.
    """

    asked_most: int | None = None
    failed_most: int | None = None
    most: int | None = None
    columns: Sequence[_Column] | None = None


@dataclass(slots=True, kw_only=True)
class _Table:
    """A list of objects, with the numbers of the rows that the question asks for, that failed, and of the others."""

    title: str
    count: int
    columns: Sequence[_Column]
    asked: Sequence[int]
    failed: Sequence[int]
    others: Sequence[int]
    heading: Sequence[str] = ()
    identifiers: Sequence[_Column] = field(default_factory=tuple)


def write_table(rows: Sequence[Mapping[str, Any]], *, name: str, room: PreviewRoom, words: Sequence[str]) -> str:
    """Return a table of `rows`, which fits; `name` says what the list is.

    The heading has the number of rows, the columns, what is the same in every row, and how often each status occurs.
    Then, as far as there is room: rows with a failure or one of `words` whole, the identifiers of all rows, other
    columns clipped alike. If not even the first fit, they are clipped, and then left out from the end.
    """
    table = _read_table(rows, name=name, words=words, most=room.most_characters)
    for plan in _list_plans(table):
        text = _write_plan(table, plan, room.most_characters)
        if text is not None and (shown := room.take(text)) is not None:
            return shown
    return _write_part(table, room)


def _write_part(table: _Table, room: PreviewRoom) -> str:
    """Return what fits of a table whose rows do not all fit, not even by their best identifier."""
    for asked_most, failed_most in _URGENT_CLIPS:
        plan = _Plan(asked_most=asked_most, failed_most=failed_most)
        shown, text = room.find_most(partial(_write_others, table, plan), len(table.others))
        if shown >= 0:
            return text
    shown, text = room.find_most(partial(_write_urgent, table), len(table.asked) + len(table.failed))
    if shown < 0:
        shown, text = room.find_most(lambda count: "\n".join(table.heading[:count]), len(table.heading))
    return text or room.cut(table.heading[0])


def _list_plans(table: _Table) -> Iterator[_Plan]:
    """Yield plans that show something of every row, from the largest to the smallest."""
    for most in (None, *_CLIPS):
        yield _Plan(most=most, columns=table.columns)
    for count in range(len(table.identifiers), 0, -1):
        yield _Plan(columns=table.identifiers[:count])
    if table.identifiers:
        for asked_most, failed_most in _URGENT_CLIPS:
            yield _Plan(asked_most=asked_most, failed_most=failed_most)


def _read_table(rows: Sequence[Mapping[str, Any]], *, name: str, words: Sequence[str], most: int) -> _Table:
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    columns = [_read_column(rows, each, most) for each in names[:_MAX_COLUMNS]]
    constants = [one for one in columns if _is_constant(one)] if len(rows) > 1 else []
    varying = [one for one in columns if one not in constants]
    order = sorted(varying, key=lambda one: (not one.is_identifier, one.rank or 0, not one.is_distinct))
    failed = {at for at, row in enumerate(rows) if any(is_failure_field(key, value) for key, value in row.items())}
    texts = ["\n".join(cells) for cells in zip(*(one.cells for one in varying), strict=True)]
    asked = find_hits(texts, words)
    others = [at for at in range(len(rows)) if at not in failed and at not in asked]
    table = _Table(
        title=f"{name}: {len(rows)} rows of {len(names)} columns",
        count=len(rows),
        columns=order,
        asked=sorted(asked),
        failed=sorted(failed - asked),
        others=others,
        identifiers=_order_identifiers(order),
    )
    title = f"columns: {list_names(names)}"
    same = [f"{one.name}={one.cells[0]}" for one in constants]
    hoisted = [f"in every row: {', '.join(same)}"] if same else []
    failures = [f"rows with a failure: {len(failed)}"] if failed else []
    table.heading = (table.title, title, *_count_statuses(columns), *failures, *hoisted)
    return table


def _read_column(rows: Sequence[Mapping[str, Any]], name: str, most: int) -> _Column:
    cells = [_write_cell(row[name], most) if name in row else "" for row in rows]
    rank = rank_identifier(name)
    is_identifier = rank is not None and max(map(len, cells)) <= _MAX_IDENTIFIER
    is_distinct = is_identifier and len(set(cells)) == len(cells)
    return _Column(name=name, cells=cells, rank=rank, is_identifier=is_identifier, is_distinct=is_distinct)


def _is_constant(column: _Column) -> bool:
    first = column.cells[0]
    return len(first) <= _MAX_CONSTANT and all(cell == first for cell in column.cells)


def _order_identifiers(columns: Sequence[_Column]) -> Sequence[_Column]:
    """Return the columns that identify rows, first one that is different in every row."""
    found = [one for one in columns if one.is_identifier]
    return tuple(sorted(found, key=lambda one: (not one.is_distinct, one.rank or 0)))


def _count_statuses(columns: Sequence[_Column]) -> Iterator[str]:
    """Yield a line for each column that tells one of few states: how many rows have each."""
    for column in [one for one in columns if is_status(one.name)][:_MAX_STATUS_COLUMNS]:
        counts = Counter(column.cells)
        if len(counts) <= _MAX_STATUSES and max(map(len, counts)) <= _MAX_IDENTIFIER:
            yield f"{column.name}: " + ", ".join(f"{cell or '(none)'} {count}" for cell, count in counts.most_common())


def _write_cell(value: object, most: int) -> str:
    """Return a value as the text of a cell: at most `most` characters, and one more if it is longer.

    Strings are without quotes if they cannot be mistaken.
    """
    if isinstance(value, str) and value and not any(mark in value for mark in _SPECIAL):
        return value[: most + 1]
    return write_start(value, most)


def _write_plan(table: _Table, plan: _Plan, most_characters: int) -> str | None:
    """Return the text of `plan`; None if it has more than `most_characters`."""
    room, lines = most_characters, []
    for line in _write_lines(table, plan, table.asked, table.failed, table.others):
        room -= len(line) + 1
        if room < -1:
            return None
        lines.append(line)
    return "\n".join(lines)


def _write_others(table: _Table, plan: _Plan, count: int) -> str:
    """Return `plan` with the first `count` of the other rows."""
    return "\n".join(_write_lines(table, plan, table.asked, table.failed, table.others[:count]))


def _write_urgent(table: _Table, count: int) -> str:
    """Return identifiers of `count` rows: those that the question asks for go before those with a failure."""
    plan, asked = _Plan(asked_most=0, failed_most=0), table.asked[:count]
    return "\n".join(_write_lines(table, plan, asked, table.failed[: count - len(asked)], ()))


def _write_lines(
    table: _Table, plan: _Plan, asked: Sequence[int], failed: Sequence[int], others: Sequence[int]
) -> Iterator[str]:
    yield from table.heading
    if plan.columns is table.columns and plan.most is None:
        yield from _write_block(table.columns, range(table.count), None, "all rows, whole")
        return
    if plan.asked_most == plan.failed_most:
        both = sorted([*asked, *failed])
        count = len(table.asked) + len(table.failed)
        yield from _write_kind(table, "rows with a failure or a word of the question", both, count, plan.asked_most)
    else:
        yield from _write_kind(table, "rows with a word of the question", asked, len(table.asked), plan.asked_most)
        yield from _write_kind(table, "rows with a failure", failed, len(table.failed), plan.failed_most)
    if plan.columns is not None and others:
        title = f"the other {len(others)} rows, {_tell_columns(table, plan.columns, plan.most)}"
        yield from _write_block(plan.columns, others, plan.most, title)
    elif others and table.identifiers:
        best = table.identifiers[0]
        share = "" if len(others) == len(table.others) else f"the first {len(others)} of "
        cells = " ".join(best.cells[at] for at in others)
        yield f"{best.name} of {share}the other {len(table.others)} rows, everything else left out: {cells}"
    elif table.others:
        yield f"left out: the other {len(table.others)} rows"


def _write_kind(table: _Table, title: str, rows: Sequence[int], count: int, most: int | None) -> Iterator[str]:
    """Yield a table of `rows`, of which there are `count`; nothing if there are none."""
    columns = table.columns if most != 0 else table.identifiers or table.columns[:1]
    share = "" if len(rows) == count else f", the first {len(rows)} of {count}"
    if rows:
        yield from _write_block(columns, rows, most, f"{title}{share}, {_tell_columns(table, columns, most)}")
    elif count:
        yield f"left out: all {count} {title}"


def _tell_columns(table: _Table, columns: Sequence[_Column], most: int | None) -> str:
    """Return what is left out of rows that show `columns` with texts of `most` characters."""
    missing = [one.name for one in table.columns if one not in columns]
    if missing:
        return f"without {list_names(missing, most=8)}"
    return "whole" if most is None else f"texts clipped at {most} characters"


def _write_block(columns: Sequence[_Column], rows: Sequence[int], most: int | None, title: str) -> Iterator[str]:
    yield f"{title}:"
    yield "|".join(["#", *(clip(" ".join(one.name.split()), _MAX_NAME) for one in columns)])
    limits = [None if one.is_identifier else most for one in columns]
    shown = [(one.cells, limit) for one, limit in zip(columns, limits, strict=True)]
    for at in rows:
        yield f"{at}|" + "|".join([clip(cells[at], limit) for cells, limit in shown])


_SMALL_CHARACTERS: Final = 200
_MAX_DEPTH: Final = 8
_LEAST_ROWS: Final = 2
_HALF: Final = 2
_FEW_LARGE: Final = 8
_LARGE_CHARACTERS: Final = 2_000


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
    title = f"[preview of {len(result_json)} characters"
    title += f"; read_tool_result with handle {handle} reads the rest]" if handle else "]"
    left = room.share(tokens - count(title) - _JOINT)
    text = title if left.tokens <= 0 else f"{title}\n{_write_json(result_json, left, pick_query_words(query))}"
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
        return _write_list(read, pointer, room, words, depth=depth)
    if isinstance(read, dict) and depth < _MAX_DEPTH:
        return _write_object(read, pointer, room, words, depth=depth)
    return write_text(write_start(read, room.most_characters), name=f"{at}value", room=room, words=words)


def _write_list(read: list[Any], pointer: str, room: PreviewRoom, words: Sequence[str], *, depth: int) -> str:
    at, may_descend = f"at {pointer}, " if pointer else "", depth < _MAX_DEPTH
    parts = _read_parts(read) if may_descend else ()
    if parts:
        return _write_parts(parts, pointer, room, words, depth=depth)
    if may_descend and len(read) == 1:
        return _write_value(read[0], f"{pointer}/0", room, words, depth=depth + 1)
    if may_descend and len(read) <= _FEW_LARGE and any(_is_large(one) for one in read):
        fields = {str(place): one for place, one in enumerate(read)}
        return _write_object(fields, pointer, room, words, depth=depth, kind="list")
    rows = [one for one in read if isinstance(one, dict) and one]
    if len(rows) == len(read) >= _LEAST_ROWS:
        return write_table(rows, name=f"{at}list", room=room, words=words)
    entries = [write_start(one, MAX_ENTRY_CHARACTERS) for one in read]
    title = f"{at}list of {len(read)} values"
    return write_entries(entries, numbers=range(len(read)), title=title, room=room, words=words)


def _is_large(value: object) -> bool:
    """Return whether a cell would show next to nothing of a value that holds lists or objects."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(one, dict | list) for one in inner) and measure_json(value) > _LARGE_CHARACTERS


def _read_parts(read: Sequence[object]) -> Sequence[str]:
    """Return the texts of a list of parts of text, which is what MCP tools answer; empty if it is none."""
    texts = [one.get("text") for one in read if isinstance(one, dict) and one.get("type") == "text"]
    found = [one for one in texts if isinstance(one, str)]
    return found if len(found) == len(read) else ()


def _write_parts(texts: Sequence[str], pointer: str, room: PreviewRoom, words: Sequence[str], *, depth: int) -> str:
    if len(texts) == 1:
        return _write_value(texts[0], f"{pointer}/0/text", room, words, depth=depth + 1)
    rows = [_read_inner(one) for one in texts]
    at = f"at {pointer}, " if pointer else ""
    objects = [*filter(_is_object, rows)]
    if len(objects) == len(texts):
        return write_table(objects, name=f"{at}{len(texts)} parts", room=room, words=words)
    return write_text("\n".join(texts), name=f"{at}{len(texts)} parts of text", room=room, words=words)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and bool(value)


def _read_inner(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the object or list that `text` is the JSON of, as some tools answer; else None."""
    if text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        inner = read_json(text)
    except ValueError:
        return None
    return inner if isinstance(inner, dict | list) else None


def _write_object(
    read: Mapping[str, Any],
    pointer: str,
    room: PreviewRoom,
    words: Sequence[str],
    *,
    depth: int,
    kind: str = "object",
) -> str:
    """Return the small fields whole, then the large ones, the smallest first; each gets an equal share of the rest."""
    texts = {key: write_start(each, _SMALL_CHARACTERS) for key, each in read.items()}
    small = [f"{clip(key, _MAX_NAME)}: {text}" for key, text in texts.items() if len(text) <= _SMALL_CHARACTERS]
    large = [key for key, text in texts.items() if len(text) > _SMALL_CHARACTERS]
    large.sort(key=lambda key: measure_json(read[key]))
    title = f"{f'at {pointer}, ' if pointer else ''}{kind} of {len(read)} {'fields' if kind == 'object' else 'values'}"
    if large:
        title += f", {len(large)} of them large"
    parts = [title]
    if small:
        share = room.share(room.tokens // _HALF if large else room.tokens)
        whole = "\n".join([title, *small])
        taken = share.take(whole)
        parts = [taken or write_entries(small, numbers=range(len(small)), title=title, room=share, words=words)]
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

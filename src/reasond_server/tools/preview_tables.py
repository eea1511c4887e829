"""Previews of lists of objects: a table whose rows lose their longest texts first and their identifiers last."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from reasond_server.tools.preview_room import clip, list_names
from reasond_server.tools.preview_words import find_hits, is_status, rank_identifier, tells_failure
from reasond_server.tools.results import write_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.tools.preview_room import PreviewRoom

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

    told: str
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
    failed = {at for at, row in enumerate(rows) if any(tells_failure(key, value) for key, value in row.items())}
    texts = ["\n".join(cells) for cells in zip(*(one.cells for one in varying), strict=True)]
    asked = find_hits(texts, words)
    others = [at for at in range(len(rows)) if at not in failed and at not in asked]
    table = _Table(
        told=f"{name}: {len(rows)} rows of {len(names)} columns",
        count=len(rows),
        columns=order,
        asked=sorted(asked),
        failed=sorted(failed - asked),
        others=others,
        identifiers=_order_identifiers(order),
    )
    told = f"columns: {list_names(names)}"
    same = [f"{one.name}={one.cells[0]}" for one in constants]
    hoisted = [f"in every row: {', '.join(same)}"] if same else []
    failures = [f"rows with a failure: {len(failed)}"] if failed else []
    table.heading = (table.told, told, *_count_statuses(columns), *failures, *hoisted)
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
    """Return a value as the text of a cell, more than `most` characters of it only as far as that shows it is longer.

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
        told = f"the other {len(others)} rows, {_tell_columns(table, plan.columns, plan.most)}"
        yield from _write_block(plan.columns, others, plan.most, told)
    elif others and table.identifiers:
        best = table.identifiers[0]
        share = "" if len(others) == len(table.others) else f"the first {len(others)} of "
        cells = " ".join(best.cells[at] for at in others)
        yield f"{best.name} of {share}the other {len(table.others)} rows, everything else left out: {cells}"
    elif table.others:
        yield f"left out: the other {len(table.others)} rows"


def _write_kind(table: _Table, told: str, rows: Sequence[int], count: int, most: int | None) -> Iterator[str]:
    """Yield a table of `rows`, of which there are `count`; nothing if there are none."""
    columns = table.columns if most != 0 else table.identifiers or table.columns[:1]
    share = "" if len(rows) == count else f", the first {len(rows)} of {count}"
    if rows:
        yield from _write_block(columns, rows, most, f"{told}{share}, {_tell_columns(table, columns, most)}")
    elif count:
        yield f"left out: all {count} {told}"


def _tell_columns(table: _Table, columns: Sequence[_Column], most: int | None) -> str:
    """Return what is left out of rows that show `columns` with texts of `most` characters."""
    missing = [one.name for one in table.columns if one not in columns]
    if missing:
        return f"without {list_names(missing, most=8)}"
    return "whole" if most is None else f"texts clipped at {most} characters"


def _write_block(columns: Sequence[_Column], rows: Sequence[int], most: int | None, told: str) -> Iterator[str]:
    yield f"{told}:"
    yield "|".join(["#", *(clip(" ".join(one.name.split()), _MAX_NAME) for one in columns)])
    limits = [None if one.is_identifier else most for one in columns]
    shown = [(one.cells, limit) for one, limit in zip(columns, limits, strict=True)]
    for at in rows:
        yield f"{at}|" + "|".join([clip(cells[at], limit) for cells, limit in shown])

"""What an entry takes in memory, roughly: enough to bound what is held, not to account for it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from reasond_server.executions.store import Record
from reasond_server.types import Iteration, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.executions.store import Entry

# What an entry takes beside its texts: a few nested dataclasses with their fields.
_BYTES_PER_ENTRY = 512
_NUMBERS = frozenset({int, float, bool})


def size_of(entry: Entry) -> int:
    """Return the approximate size of an entry in memory, in bytes."""
    if isinstance(entry, Record):
        return _BYTES_PER_ENTRY + (len(entry.key) + len(entry.body)) * 4
    event = entry.event
    if isinstance(event, Iteration):
        return _BYTES_PER_ENTRY + _texts(event.detail)
    return _BYTES_PER_ENTRY + (len(event.answer) * 4 if isinstance(event, Result) else 0)


def _texts(value: object) -> int:
    """Return an upper bound of the bytes of all texts below `value`."""
    kind: type = type(value)
    names = _names(kind)
    if not names:
        return _texts_in_plain(value)
    size = 0
    for name in names:
        found = getattr(value, name)
        # Most fields are texts: not called for again, that takes half as long.
        if type(found) is str:
            size += len(found) * 4
        elif found is not None and type(found) not in _NUMBERS:
            size += _texts(found)
    return size


def _texts_in_plain(value: object) -> int:
    if isinstance(value, str):
        return len(value) * 4
    if isinstance(value, dict):
        return sum(_texts(key) + _texts(each) for key, each in value.items())
    return sum(map(_texts, value)) if isinstance(value, list | tuple) else 0


@cache
def _names(kind: type) -> Sequence[str]:
    """Return the names of a dataclass's fields; of other classes none."""
    return tuple(getattr(kind, "__dataclass_fields__", ()))

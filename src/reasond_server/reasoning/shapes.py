"""Whether a value of `types` is what it declares: nothing else makes a third party's strategy keep to it.

What is let through here is what every transport can carry: texts in valid Unicode, finite numbers, whole numbers
within the sizes of the proto, and sequences that the strategy cannot change any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import zip_longest
from operator import is_
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from reasond_server.types import WindowLines, WindowMetrics

ValueT = TypeVar("ValueT")

_INT32_MAX: Final = 2**31 - 1
_INT64_EXACT: Final = 2**53 - 1
_MAX_SECONDS: Final = 10**9
_NOTHING: Final = object()


class ShapeError(Exception):
    """A value is not what its field declares; the text names the field and says why, for the strategy's author."""


def check_shape(value: ValueT, *, before: object = None) -> ValueT:
    """Return a dataclass whose fields were checked at all levels, its sequences as tuples.

    What `before`, an earlier result, holds already at the same place is not checked again: metrics that grow by
    a line with every step would cost ever more otherwise.

    Raises:
        ShapeError: a field holds what it does not declare, or what no transport can carry.
    """
    kind: type = type(value)
    known = before if type(before) is kind else None
    changed = {}
    for name, hint, items in _fields(kind):
        given = getattr(value, name)
        # Most fields are like this: nothing can be wrong with them.
        if type(given) is hint and (
            (hint is str and given.isascii())
            or (hint is int and -_INT32_MAX <= given <= _INT32_MAX)
            or (hint is float and 0.0 <= given <= _MAX_SECONDS)
            or hint is bool
        ):
            continue
        kept = _check_field(given, hint, items, name, None if known is None else getattr(known, name))
        if kept is not given:
            changed[name] = kept
    return replace(value, **changed) if changed else value  # type: ignore[type-var]  # likewise


def is_unicode(text: object) -> bool:
    """Return whether `text` is one that can be encoded: a lone surrogate cannot."""
    if type(text) is str and text.isascii():
        return True
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


@cache
def _fields(kind: type) -> Sequence[tuple[str, Any, Any]]:
    """Return the name and annotation of each field, and that of the items of a sequence; None for other fields."""
    hints = get_type_hints(kind)
    return [(field.name, hints[field.name], _items_of(hints[field.name])) for field in fields(kind)]


@cache
def _items_of(hint: Any) -> Any:  # noqa: ANN401 - an annotation
    return get_args(hint)[0] if get_origin(hint) is Sequence else None


def _check_field(value: Any, hint: Any, items: Any, name: str, before: Any) -> Any:  # noqa: ANN401 - any value, any annotation
    if type(value) is hint and is_dataclass(hint):
        return check_shape(value, before=before)
    if items is WindowMetrics and type(value) is WindowLines:
        # Checked line by line as it grew, and nobody can change it.
        return value
    if items is not None:
        return _settled_items(value, items, name, before if isinstance(before, tuple) else ())
    if isinstance(hint, UnionType):
        if value is None:
            return None
        chosen = _choose_alternative(value, hint, name)
        return _check_field(value, chosen, _items_of(chosen), name, before)
    complaint = _complaint(value, hint, name)
    if complaint:
        raise ShapeError(f"{name} {complaint}")
    return check_shape(value, before=before) if is_dataclass(value) else value


def _settled_items(value: object, kind: Any, name: str, before: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation
    # A tuple is known at once; whether anything else is a sequence takes far longer to tell.
    if type(value) is tuple:
        if not value:
            return value
    elif isinstance(value, str) or not isinstance(value, Sequence):
        raise ShapeError(f"{name} is no sequence")
    pairs = zip_longest(value, before[: len(value)], fillvalue=_NOTHING)
    items = _items_of(kind)
    kept = [each if each is known else _check_field(each, kind, items, name, known) for each, known in pairs]
    if isinstance(value, tuple) and all(map(is_, kept, value)):
        return value
    return tuple(kept)


def _choose_alternative(value: object, hint: UnionType, name: str) -> Any:  # noqa: ANN401 - an annotation
    """Return the alternative of an optional field that `value`, which is not None, is meant to be."""
    (kind,) = (each for each in get_args(hint) if each is not NoneType)
    if isinstance(value, kind):
        return kind
    raise ShapeError(f"{name} is a {type(value).__name__}")


def _complaint(value: Any, kind: type, name: str) -> str:  # noqa: ANN401 - any value
    """Return why `value` cannot stand in a field of `kind`, nothing if it can."""
    is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    is_of_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not (is_of_kind or is_number):
        return f"is a {type(value).__name__}"
    if kind is str and not is_unicode(value):
        return "is not valid Unicode"
    if kind is float and not _is_finite(value):
        return "is no finite number"
    if name.endswith("_s") and kind is float and not 0 <= value <= _MAX_SECONDS:
        return "is no length of time"
    if kind is int and not issubclass(kind, Enum) and not _fits(value, name):
        return "is too large a number"
    return ""


def _is_finite(value: Any) -> bool:  # noqa: ANN401 - a number, which may be larger than any float
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _fits(value: Any, name: str) -> bool:  # noqa: ANN401 - a whole number
    is_large = name.endswith("tokens") and not name.startswith("max_")
    most = _INT64_EXACT if is_large else _INT32_MAX
    return bool(-most <= value <= most)

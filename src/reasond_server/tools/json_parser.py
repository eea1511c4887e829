"""Reading long JSON without holding the interpreter: other threads run between its elements."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Callable

    Scan = Callable[[str, int], tuple[Any, int]]

# A parser holds the interpreter for up to 400 ns per element: 40 ms.
_AT_ONCE_ELEMENTS: Final = 100_000
# Lists and objects below this level are read at once: mostly the values in the rows of a list.
_LEVELS: Final = 3
# Characters of a number, or of the quotes and marks of a field.
_AROUND: Final = 4
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_SURROGATE: Final = re.compile(r"\\u[dD]")


def read_json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of the JSON `text`; one of many elements is read in pieces, so call this in a thread.

    Raises:
        ValueError: `text` is not JSON, or is nested too deeply.
    """
    if not _is_long(text):
        return from_json(text)
    return _read_in_pieces(text, json.JSONDecoder(parse_constant=_refuse))


def read_strict_json(text: str) -> object:
    """Return the value of the JSON `text`, if every transport can carry it: finite numbers and valid Unicode.

    One of many elements is read in pieces, as by `read_json`.

    Raises:
        ValueError: it is not such JSON, or is nested too deeply.
    """
    text.encode()
    value = _read_in_pieces(text, json.JSONDecoder(parse_constant=_refuse, parse_float=_read_finite))
    if _SURROGATE.search(text):
        # An escaped lone surrogate passes the parser.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def measure_json(value: object) -> int:
    """Return about how many characters the JSON of `value` has, without writing it."""
    size, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            size += sum(map(len, one)) + _AROUND * len(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            size += len(one)
            waiting.extend(one)
        else:
            size += len(one) if isinstance(one, str) else _AROUND
    return size


def _is_long(text: str) -> bool:
    """Return whether `text` may have so many elements that it must not be read at once."""
    return len(text) > _AT_ONCE_ELEMENTS and text.count(",") + text.count("[") + text.count("{") > _AT_ONCE_ELEMENTS


def _read_in_pieces(text: str, decoder: json.JSONDecoder) -> Any:  # noqa: ANN401 - any JSON value
    scan: Scan = decoder.scan_once  # type: ignore[attr-defined]  # not in typeshed
    levels = _LEVELS if _is_long(text) else 0
    try:
        value, end = _read(text, _skip(text, 0), scan, levels)
    except (StopIteration, IndexError, RecursionError):
        raise ValueError("the text is no JSON") from None
    if end != len(text):
        raise ValueError("something follows the JSON")
    return value


def _read(text: str, at: int, scan: Scan, levels: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and where the next thing after it begins."""
    if levels == 0 or text[at] not in "[{":
        value, end = scan(text, at)
        return value, _skip(text, end)
    is_object, closing = text[at] == "{", "}" if text[at] == "{" else "]"
    names: list[str] = []
    values: list[Any] = []
    at = _skip(text, at + 1)
    if text[at] != closing:
        at -= 1
        while not values or text[at] == ",":
            at = _skip(text, at + 1)
            if is_object:
                name, at = scan(text, at)
                at = _skip(text, at)
                if not isinstance(name, str) or text[at] != ":":
                    raise ValueError("an object has something else than a name before a value")
                names.append(name)
                at = _skip(text, at + 1)
            value, at = _read(text, at, scan, levels - 1)
            values.append(value)
    if text[at] != closing:
        raise ValueError("a list or object does not end")
    return (dict(zip(names, values, strict=True)) if is_object else values), _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at


def _read_finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")

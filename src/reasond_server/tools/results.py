"""Results of tools as JSON text: converted, shortened to a preview, kept whole, and read in parts.

Invisible characters and those that change the direction of text are written as JSON escapes: the value stays the same,
and a reader sees every character.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from reasond_server.errors.base import show
from reasond_server.tools.json_parser import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.types import Json

_HEAD_SHARE = 0.75
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_MAX_DEPTH: Final = 64
# Controls, invisible and direction-changing characters, line separators, tags, private use.
_UNSEEN = re.compile(
    "[\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)


class NotJsonError(ValueError):
    """The result of a tool cannot be written as JSON."""


def to_json_text(value: object) -> str:
    """Return `value` as compact JSON in valid Unicode.

    Raises:
        NotJsonError: `value` holds something that JSON cannot represent, such as NaN, a set, or itself.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise NotJsonError from None
    return escape_unseen(text.encode("utf-8", "replace").decode("utf-8"))


def write_start(value: object, most: int) -> str:
    """Return the first `most` characters of `value` as compact JSON at least; the work is bounded by `most`.

    Raises:
        NotJsonError: what is written of `value` is something that JSON cannot represent.
    """
    try:
        text = "".join(_encode_start(value, most)) if isinstance(value, dict | list) else _encode_value(value, most)
    except (TypeError, ValueError, RecursionError):
        raise NotJsonError from None
    return escape_unseen(text.encode("utf-8", "replace").decode("utf-8"))


def _encode_value(value: object, most: int) -> str:
    return _ENCODER.encode(value[: most + 1] if isinstance(value, str) else value)


def _encode_start(value: object, most: int) -> Iterator[str]:
    """Yield the JSON of `value` until it has more than `most` characters."""
    size = 0
    for part in _ENCODER.iterencode(value):
        yield part
        size += len(part)
        if size > most:
            return


def escape_unseen(text: str) -> str:
    """Return JSON `text` with invisible characters as escapes."""
    # The search takes 18 ms for 2 MB and nothing else runs meanwhile; in ASCII only DEL is invisible.
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN.sub(_escape, text)


def to_error_text(kind: str, message: str, **details: object) -> str:
    """Return the JSON of a failed call: `kind` for programs, `message` for the model."""
    return to_json_text({"error": kind, "message": message, **details})


def to_preview(text: str, *, handle: str, most_bytes: int, is_cut: bool = False) -> str:
    """Return `text` if it has at most `most_bytes` bytes, else JSON with its beginning, its end and a hint on the rest.

    `is_cut` says that `text` is only the beginning of a result.
    """
    size = len(text.encode())
    if size <= most_bytes and not is_cut:
        return text
    # A character has up to 4 bytes, and escaping quotes a second time can double them.
    room = min(most_bytes, size) // 2
    head, tail = int(room * _HEAD_SHARE), room - int(room * _HEAD_SHARE)
    return to_json_text(
        {
            "handle": handle,
            "total_characters": len(text),
            "begins": cut_to_bytes(text, head)[0],
            "ends": _take_tail(text, tail),
            "more": f"read_tool_result reads the rest by this handle, {show(handle)}"
            + ("; the result was longer than is kept, and its end is lost" if is_cut else ""),
        }
    )


def cut_to_bytes(text: str, most_bytes: int) -> tuple[str, bool]:
    """Return the first `most_bytes` bytes of `text` at most, and whether something was cut off."""
    data = text.encode()
    if len(data) <= most_bytes:
        return text, False
    return data[:most_bytes].decode("utf-8", "ignore"), True


class ResultMemory:
    """The whole results of one run; when they exceed `most_bytes`, the oldest are dropped first."""

    def __init__(self, *, most_bytes: int) -> None:
        self._room = most_bytes
        self._texts: dict[str, str] = {}
        self._forgotten: set[str] = set()

    def keep(self, handle: str, text: str) -> None:
        """Keep `text` under `handle`; a text larger than `most_bytes` is dropped at once."""
        self._texts[handle] = text
        self._room -= len(text.encode())
        while self._room < 0:
            oldest = next(iter(self._texts))
            self._room += len(self._texts.pop(oldest).encode())
            self._forgotten.add(oldest)

    def find(self, handle: str) -> str | None:
        """Return the text; None if it was dropped or never kept."""
        return self._texts.get(handle)

    @property
    def handles(self) -> tuple[str, ...]:
        """The handles that can be read, oldest first."""
        return tuple(self._texts)

    def is_forgotten(self, handle: str) -> bool:
        """Return whether the result was kept once and is dropped now."""
        return handle in self._forgotten


def resolve_pointer(text: str, pointer: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value at the JSON Pointer (RFC 6901) `pointer` in the JSON `text`.

    Raises:
        ValueError: `text` is not JSON, or the pointer leads to no value; the message names the missing part.
    """
    try:
        value = read_json(text)
    except ValueError:
        raise ValueError("the result is no whole JSON; read it by offset") from None
    if pointer and not pointer.startswith("/"):
        raise ValueError("a JSON pointer begins with '/'")
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < _MAX_DEPTH:
            index = int(key)
            if index >= len(value):
                raise ValueError(f"the array before {show(key)} has {len(value)} entries, counted from 0")
            value = value[index]
        else:
            raise ValueError(f"there is no {show(key)}; {_describe_siblings(value)}")
    return value


def parse_arguments(text: str) -> Json:
    """Return the arguments in the JSON `text`, which must be an object.

    Raises:
        ValueError: `text` is not a JSON object; the message says what it is.
    """
    try:
        value = from_json(text.strip() or "{}", allow_inf_nan=False)
    except ValueError as error:
        raise ValueError(f"the arguments are no valid JSON: {_shorten(error)}") from None
    if not isinstance(value, dict):
        raise ValueError(  # noqa: TRY004 - the value of `text` is wrong, not its type
            f"the arguments must be a JSON object, and are {_name_kind(value)}"
        )
    return value


def _take_tail(text: str, most_bytes: int) -> str:
    return text.encode()[-most_bytes:].decode("utf-8", "ignore") if most_bytes else ""


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _describe_siblings(value: object) -> str:
    if isinstance(value, dict):
        return "there are " + (", ".join(show(key) for key in list(value)[:20]) or "no keys")
    if isinstance(value, list):
        return f"there is an array of {len(value)} entries"
    return f"there is only {_name_kind(value)}"


def _name_kind(value: object) -> str:
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shorten(error: ValueError) -> str:
    """Return the first line of pydantic-core's message, which does not quote the text."""
    return str(error).splitlines()[0][:120]

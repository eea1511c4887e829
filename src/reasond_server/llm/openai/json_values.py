"""Parsing of JSON from servers: strict about syntax, lenient about lone surrogates."""

from __future__ import annotations

import json
from types import NoneType
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

from reasond_server.errors.model import ModelProtocolError

if TYPE_CHECKING:
    from reasond_server.llm.model import ImagePart

_NO_JSON = "that is not JSON in UTF-8"
_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}
_ESCAPED_SURROGATE = (b"\\ud", b"\\uD")


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON is any of its values
    r"""Return the JSON value in `data`.

    Some servers split a text between the surrogates of one character and escape each of them (`\ud83d`). A lone
    surrogate becomes U+FFFD.

    Raises:
        ModelProtocolError: `data` is not JSON, or not UTF-8.
    """
    try:
        return from_json(data)
    except ValueError:
        if any(mark in data for mark in _ESCAPED_SURROGATE):
            return _parse_with_halves(data)
        raise _build_error(_find_fault(data)) from None


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        ModelProtocolError: `data` is not a JSON object.
    """
    try:
        value = from_json(data)
    except ValueError:
        value = parse_json(data)
    if type(value) is not dict:
        raise _build_error(f"that is {_KINDS[type(value)]} where an object belongs")
    return value


def write_data_url(image: ImagePart) -> str:
    """Return an image as a URL that holds it."""
    return f"data:{image.media_type};base64,{image.base64}"


def write_texts(value: dict[str, Any]) -> bytes:
    """Return an object of strings as JSON in UTF-8, with "?" for lone surrogates."""
    try:
        return to_json(value)
    except ValueError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def is_object(text: str) -> bool:
    """Return whether `text` is a complete JSON object."""
    try:
        return isinstance(parse_json(text.encode("utf-8", "replace")), dict)
    except ModelProtocolError:
        return False


def _parse_with_halves(data: bytes) -> Any:  # noqa: ANN401 - as above
    try:
        return _replace_halves(json.loads(data))
    except (ValueError, RecursionError):
        raise _build_error(_find_fault(data)) from None


def _find_fault(data: bytes) -> str:
    """Return the reason why `data` could not be parsed."""
    try:
        json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return _NO_JSON
    except RecursionError:
        return f"{_NO_JSON}, or nests values too deep"
    except ValueError:
        return "with a whole number of more than 4,300 digits"
    # The data begins with a byte order mark, or is UTF-16.
    return _NO_JSON


def _replace_halves(value: Any) -> Any:  # noqa: ANN401 - as above
    """Return `value` with U+FFFD for every lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_replace_halves(one) for one in value]
    if isinstance(value, dict):
        return {_replace_halves(name): _replace_halves(one) for name, one in value.items()}
    return value


def _build_error(what: str) -> ModelProtocolError:
    return ModelProtocolError(
        f"The model server sent an event {what}",
        remedy="Check that base_url is the address of an OpenAI-compatible API, with no proxy that alters it.",
    )

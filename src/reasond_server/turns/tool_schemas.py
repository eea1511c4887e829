"""Checks the JSON Schemas of client tools: their size and depth, and the form of each keyword.

The server only passes a schema on to the model, so it needs no package that evaluates one. The keywords are those of
JSON Schema 2020-12; unknown keywords are accepted, as the standard says.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import show
from reasond_server.requests.payloads import MAX_DEPTH, measure_depth
from reasond_server.tools.json_parser import read_strict_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_SCHEMA_BYTES: Final = 65_536
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The schema of a tool without arguments."""

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SCHEMAS_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {
        *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)


def read_schema(text: str) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments; empty text is one of an object without members.

    Raises:
        ValueError: it cannot be used; the text says what is wrong.
    """
    if not text:
        return NO_ARGUMENTS
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_SCHEMA_BYTES:
        message = f"must be at most {MAX_SCHEMA_BYTES} bytes of UTF-8, got {size}; shorten its descriptions"
        raise ValueError(message)
    schema = _parse(text)
    if not isinstance(schema, dict):
        message = f"must be the JSON Schema of an object, got {show(schema)}"
        raise ValueError(message)  # noqa: TRY004 - callers turn each problem of a schema into the same violation
    if measure_depth(schema) > MAX_DEPTH:
        message = f"must be nested at most {MAX_DEPTH} levels deep; put deep parts under $defs"
        raise ValueError(message)
    if schema.get("type", "object") != "object":
        message = f'must have "type": "object", because arguments are an object, got {show(schema["type"])}'
        raise ValueError(message)
    problem = next(_find_problems(schema, ""), None)
    if problem is not None:
        raise ValueError(problem)
    return schema


def _parse(text: str) -> object:
    try:
        return read_strict_json(text)
    except ValueError:
        message = "must be valid JSON of finite numbers and valid Unicode"
        raise ValueError(message) from None


def _find_problems(schema: object, path: str) -> Iterator[str]:
    """Yield the keywords with values of the wrong form; the depth of `schema` must be checked before."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"must be a JSON Schema, but {path[1:]} must be an object or a boolean, got {show(schema)}"
        return
    for key, value in schema.items():
        place = f"{path}.{key}"
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            for name, inner in value.items():
                yield from _find_problems(inner, f"{place}.{name}")
        elif key in _SCHEMA_LISTS and isinstance(value, list) and value:
            for index, inner in enumerate(value):
                yield from _find_problems(inner, f"{place}[{index}]")
        elif key in _SCHEMAS:
            yield from _find_problems(value, place)
        elif key in _FORMS and not _FORMS[key][0](value):
            yield f"must be a JSON Schema, but {place[1:]} must be {_FORMS[key][1]}, got {show(value)}"


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or (isinstance(value, float) and math.isfinite(value))


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and (isinstance(value, int) or value.is_integer())


_NUMBER: Final = (_is_number, "a number")
_COUNT: Final = (_is_count, "a whole number of at least 0")
_TEXT: Final = (_is_text, "a string")
_OBJECT: Final = (lambda value: isinstance(value, dict), "an object of schemas")
_LIST: Final = (lambda value: isinstance(value, list) and bool(value), "a list of schemas that is not empty")
_FORMS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), _COUNT),
    **dict.fromkeys(("$ref", "description", "format", "pattern", "title"), _TEXT),
    **dict.fromkeys(sorted(_SCHEMAS_BY_NAME), _OBJECT),
    **dict.fromkeys(sorted(_SCHEMA_LISTS), _LIST),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_is_names, "a list of different strings"),
    "type": (_is_type, f"one of {', '.join(sorted(_TYPES))}, or a list of them"),
}
"""Keywords with the form of their values."""

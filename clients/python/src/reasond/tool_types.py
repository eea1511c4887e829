"""JSON Schemas of Python types, and JSON values read as those types; with the standard library alone."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, Required, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLAIN: Final[Mapping[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ALLOWED: Final = (
    "use str, int, float, bool, list[...], dict[str, ...], Literal, Optional, a dataclass or a TypedDict of those"
)


def schema_of(hint: Any, place: str, *, within: tuple[Any, ...] = ()) -> dict[str, Any]:  # noqa: ANN401 - an annotation is any object
    """Return the JSON Schema of an annotation; `place` names it in errors.

    Raises:
        TypeError: no JSON value is read as such a type.
    """
    bare, text = _without_text(hint)
    schema = _schema_of(bare, place, within)
    return {**schema, "description": text} if text else schema


def read_value(hint: Any, value: Any, path: str, problems: list[str]) -> Any:  # noqa: ANN401 - any type, any JSON value
    """Return a JSON value as the type of an annotation that `schema_of` accepts; add what is wrong to `problems`."""
    hint, _ = _without_text(hint)
    members = _members(hint)
    if len(members) > 1:
        return None if value is None else read_value(_other_than_none(members), value, path, problems)
    if get_origin(hint) is Literal:
        if not any(value == each and type(value) is type(each) for each in get_args(hint)):
            problems.append(f"{path} must be one of {', '.join(map(repr, get_args(hint)))}, got {_show(value)}")
        return value
    if get_origin(hint) in {list, dict}:
        return _read_collection(hint, value, path, problems)
    if _is_record(hint):
        return _read_record(hint, value, path, problems)
    return _read_plain(hint, value, path, problems)


def _schema_of(hint: Any, place: str, within: tuple[Any, ...]) -> dict[str, Any]:  # noqa: ANN401 - an annotation is any object
    members = _members(hint)
    if len(members) > 1:
        if len(members) != 2 or types.NoneType not in members:  # noqa: PLR2004 - a type and None
            raise TypeError(f"{place} is a union of {len(members)} types; {_ALLOWED}")
        return {"anyOf": [schema_of(_other_than_none(members), place, within=within), {"type": "null"}]}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and all(isinstance(each, str | int | bool | None) for each in arguments):
        return {"enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0], f"an item of {place}", within=within)}
    if origin is dict and arguments[0] is str:
        values = schema_of(arguments[1], f"a value of {place}", within=within)
        return {"type": "object", "additionalProperties": values}
    if _is_record(hint):
        return _record_schema(hint, place, within)
    raise TypeError(f"{place} has the type {_name(hint)}, which is not supported; {_ALLOWED}")


def object_schema(properties: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    """Return the JSON Schema of an object with these members and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


def read_members(
    hints: Mapping[str, Any], required: set[str], value: Mapping[str, Any], path: str, problems: list[str]
) -> dict[str, Any]:
    """Return the members of a JSON object as the types in `hints`; unknown and missing ones are problems."""
    prefix = f"{path}." if path else ""
    problems.extend(f"{prefix}{name} is required" for name in hints if name in required and name not in value)
    known = ", ".join(hints) or "none"
    problems.extend(f"{prefix}{str(name)[:80]} is not known; known are {known}" for name in value if name not in hints)
    return {
        name: read_value(hint, value[name], f"{prefix}{name}", problems)
        for name, hint in hints.items()
        if name in value
    }


def _record_schema(kind: type, place: str, within: tuple[Any, ...]) -> dict[str, Any]:
    if kind in within:
        raise TypeError(f"{place} has the type {_name(kind)}, which holds itself; {_ALLOWED}")
    hints, required = _record_members(kind)
    properties = {
        name: schema_of(hint, f"{name} of {_name(kind)}", within=(*within, kind)) for name, hint in hints.items()
    }
    return object_schema(properties, [name for name in hints if name in required])


def _record_members(kind: type) -> tuple[dict[str, Any], set[str]]:
    """Return the members of a dataclass or TypedDict with their types, and the names of those that are required."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        return hints, set(kind.__required_keys__)  # type: ignore[attr-defined]  # every TypedDict has it
    fields = [each for each in dataclasses.fields(kind) if each.init]
    missing = dataclasses.MISSING
    required = {each.name for each in fields if each.default is missing and each.default_factory is missing}
    return {each.name: hints[each.name] for each in fields}, required


def _read_record(kind: type, value: Any, path: str, problems: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    if not isinstance(value, dict):
        problems.append(f"{path} must be an object, got {_show(value)}")
        return None
    before = len(problems)
    hints, required = _record_members(kind)
    members = read_members(hints, required, value, path, problems)
    if typing.is_typeddict(kind) or len(problems) > before:
        return members
    return kind(**members)


def _read_collection(hint: Any, value: Any, path: str, problems: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    arguments = get_args(hint)
    if get_origin(hint) is list:
        if isinstance(value, list):
            return [read_value(arguments[0], each, f"{path}[{n}]", problems) for n, each in enumerate(value)]
        problems.append(f"{path} must be a list, got {_show(value)}")
    else:
        if isinstance(value, dict):
            return {key: read_value(arguments[1], each, f"{path}.{key}", problems) for key, each in value.items()}
        problems.append(f"{path} must be an object, got {_show(value)}")
    return None


def _read_plain(hint: Any, value: Any, path: str, problems: list[str]) -> Any:  # noqa: ANN401 - any JSON value
    # Some models write 3.0 for 3, and JSON does not tell them apart.
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        problems.append(f"{path} must be {_WORDS[hint]}, got {_show(value)}")
    return value


_WORDS: Final[Mapping[Any, str]] = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _is_record(hint: Any) -> bool:  # noqa: ANN401 - an annotation is any object
    is_dataclass: Callable[[Any], bool] = dataclasses.is_dataclass
    return isinstance(hint, type) and (is_dataclass(hint) or typing.is_typeddict(hint))


def _members(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation is any object
    return get_args(hint) if get_origin(hint) in {types.UnionType, typing.Union} else (hint,)


def _other_than_none(members: tuple[Any, ...]) -> Any:  # noqa: ANN401 - an annotation is any object
    return next(each for each in members if each is not types.NoneType)


def _without_text(hint: Any) -> tuple[Any, str]:  # noqa: ANN401 - an annotation is any object
    """Return the annotation within Annotated, Required and NotRequired, and the text of Annotated, if there is one."""
    text = ""
    while get_origin(hint) in {typing.Annotated, Required, NotRequired}:
        hint, *notes = get_args(hint)
        text = text or next((note for note in notes if isinstance(note, str)), "")
    return hint, text


def _name(hint: Any) -> str:  # noqa: ANN401 - an annotation is any object
    return getattr(hint, "__name__", None) or str(hint)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - fits into a line

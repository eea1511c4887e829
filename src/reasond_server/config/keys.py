"""The dotted keys of the configuration, as the models declare them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr

from reasond_server.config.models import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

_TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", SecretStr: "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDoc:
    """What is to be known about one key: `range` is empty where the type says all."""

    key: str
    section: str
    type_name: str
    default: Any
    range: str
    description: str


def key_docs() -> tuple[KeyDoc, ...]:
    """Return all keys in the order of the models."""
    return tuple(
        KeyDoc(
            key=key,
            section=key.rpartition(".")[0],
            type_name=_type_name(field),
            default=field.get_default(call_default_factory=True),
            range=_range(field),
            description=field.description or "",
        )
        for key, field in _fields(Settings, "")
    )


def is_text_key(key: str) -> bool:
    """Return whether the dotted `key` takes a string."""
    key = _template(key)
    return any(doc.key == key and doc.type_name in {"text", "choice"} for doc in key_docs())


def nearest(key: str) -> str:
    """Return a hint that names the known key most like `key`, or what is known where it stands."""
    key = _template(key)
    section, _, name = key.rpartition(".")
    known = [doc.key for doc in key_docs()]
    sections = sorted({part for doc in key_docs() for part in (doc.section, *_parents(doc.section))})
    alike = [*known, *(other for other in sections if other.count(".") == key.count("."))]
    matches = get_close_matches(key, alike, n=1, cutoff=0.75)
    by_name = get_close_matches(name, [other.rpartition(".")[2] for other in known], n=1, cutoff=0.75)
    if matches:
        return f"did you mean {matches[0]}?"
    if by_name:
        return f"did you mean {next(other for other in known if other.rpartition('.')[2] == by_name[0])}?"
    beside = [other for other in [*known, *sections] if other.rpartition(".")[0] == section]
    return f"known are {', '.join(beside)}" if beside else f"known sections are {', '.join(sections)}"


def _template(key: str) -> str:
    """Return `key`, for a named backend the key of [llm] that it repeats."""
    return re.sub(r"^llm\.backends\.[^.]+\.", "llm.", key)


def _parents(section: str) -> Iterator[str]:
    """Yield the sections around `section`."""
    while "." in section:
        section = section.rpartition(".")[0]
        yield section


def _fields(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of `model` that are no sections, with their dotted keys."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _type_name(field: FieldInfo) -> str:
    """Return the type of `field` in plain words."""
    if get_origin(field.annotation) is Literal:
        return "choice"
    if get_origin(field.annotation) is tuple:
        return "list"
    return _TYPE_NAMES.get(field.annotation, "table") if isinstance(field.annotation, type) else "table"


def _range(field: FieldInfo) -> str:
    """Return what `field` takes beyond its type: bounds of a number or the choices."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f'"{choice}"' for choice in get_args(field.annotation))
    lowest = [constraint.ge for constraint in field.metadata if isinstance(constraint, annotated_types.Ge)]
    highest = [constraint.le for constraint in field.metadata if isinstance(constraint, annotated_types.Le)]
    return f"{lowest[0]}-{highest[0]}" if lowest and highest else ""

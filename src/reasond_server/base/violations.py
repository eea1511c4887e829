"""Describes the errors of Pydantic in our own words; input values are shown only shortened."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from reasond_server.errors.base import Violation, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "must be true or false",
    "dict_type": lambda _: "must be an object",
    "enum": lambda ctx: f"must be one of {ctx['expected']}",
    "finite_number": lambda _: "must be a finite number",
    "float_type": lambda _: "must be a number",
    "greater_than": lambda ctx: f"must be greater than {_format_number(ctx['gt'])}",
    "greater_than_equal": lambda ctx: f"must be at least {_format_number(ctx['ge'])}",
    "int_from_float": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "less_than": lambda ctx: f"must be less than {_format_number(ctx['lt'])}",
    "less_than_equal": lambda ctx: f"must be at most {_format_number(ctx['le'])}",
    "list_type": lambda _: "must be a list",
    "literal_error": lambda ctx: f"must be one of {ctx['expected']}",
    "mapping_type": lambda _: "must be an object",
    "missing": lambda _: "is required",
    "model_type": lambda _: "must be an object",
    "string_pattern_mismatch": lambda ctx: f"must match {ctx['pattern']}",
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "string_too_short": lambda ctx: _describe_least(ctx["min_length"]),
    "string_type": lambda _: "must be a string",
    "too_long": lambda ctx: f"must have at most {ctx['max_length']} entries",
    "too_short": lambda ctx: f"must have at least {ctx['min_length']} entry",
    "tuple_type": lambda _: "must be a list",
    "value_error": lambda ctx: str(ctx["error"]),
}
_MAX_NAME = 120
# Pydantic names the branch of a union within the place; a list is no wrong text there, but what is wrong in it is told.
_TEXT_BRANCH = "str"
_BRANCHES = {_TEXT_BRANCH, "list[str]", "list[dict[str,any]]"}
# For these errors the value is missing, too long to show, or already in the text.
_WITHOUT_INPUT = {"missing", "string_too_long", "string_too_short", "too_long", "too_short", "value_error"}


def describe_finding(finding: ErrorDetails) -> str:
    """Return what is wrong, without the wrong value."""
    words = _WORDS.get(finding["type"])
    return words(finding.get("ctx", {})) if words else "is not valid"


def list_violations(
    error: ValidationError, *, model: type[BaseModel] | None = None, most: int = 100
) -> list[Violation]:
    """Return one violation with its value for each of the first `most` findings; a request may have 100,000.

    With `model`, which refused the values, the nearest known name is suggested for an unknown one.
    """
    found = []
    for finding in error.errors(include_url=False)[:most]:
        *owner, last = finding["loc"] or ("",)
        if last == _TEXT_BRANCH and isinstance(finding["input"], list):
            continue
        path = ".".join(str(part)[:_MAX_NAME] for part in finding["loc"] if part not in _BRANCHES)
        found.append(Violation(field=path, description=_describe(finding, _list_names_at(model, owner))))
    return found


def _list_names_at(model: type[BaseModel] | None, owner: Sequence[int | str]) -> list[str]:
    """Return the names of the object at the place `owner` within values of `model`."""
    for part in owner:
        if isinstance(part, str) and model is not None:
            field = model.model_fields.get(part)
            model = None if field is None else _find_model(field.annotation)
    return [] if model is None else sorted(model.model_fields)


def _find_model(annotation: object) -> type[BaseModel] | None:
    """Return the model in an annotation such as `list[Order] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _find_model(each))), None)


def drop_surplus_unknown(values: Mapping[str, Any], known: Iterable[str], *, most: int = 100) -> Mapping[str, Any]:
    """Return `values` with at most `most` unknown names, because Pydantic is slow to describe 100,000 of them."""
    names = frozenset(known)
    surplus = frozenset(islice((name for name in values if name not in names), most, None))
    return {name: value for name, value in values.items() if name not in surplus} if surplus else values


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" with the nearest known name, or the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1) if len(name) <= _MAX_NAME else []
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(map(repr, names))}" if names else ""


def _describe(finding: ErrorDetails, known: list[str]) -> str:
    if finding["type"] == "extra_forbidden":
        return f"is not known{suggest_nearest(str(finding['loc'][-1]), known)}"
    got = "" if finding["type"] in _WITHOUT_INPUT else f", got {show(finding['input'])}"
    return f"{describe_finding(finding)}{got}"


def _describe_least(characters: int) -> str:
    return "must not be empty" if characters == 1 else f"must have at least {characters} characters"


def _format_number(bound: float) -> str:
    """Return a bound as people write it: 2 instead of 2.0."""
    return str(int(bound)) if bound == int(bound) else str(bound)

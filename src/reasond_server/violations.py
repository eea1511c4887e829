"""Turns what Pydantic found wrong into violations in our own words; input never comes back unshortened."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from reasond_server.errors import Violation, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_KINDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "string_type": "must be a string",
    "tuple_type": "must be an array",
}
_BOUNDS = {
    "greater_than": ("must be greater than", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be less than", "lt"),
    "less_than_equal": ("must be at most", "le"),
}


def violations_of(error: ValidationError, *, known: Iterable[str] = ()) -> list[Violation]:
    """Return one violation per finding; `known` are the field names to suggest for an unknown one."""
    names = sorted(known)
    return [
        Violation(field=".".join(str(part) for part in finding["loc"]), description=_description(finding, names))
        for finding in error.errors(include_url=False)
    ]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the nearest known name, or which names there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(map(repr, names))}" if names else ""


def _description(finding: ErrorDetails, known: list[str]) -> str:
    kind, context = finding["type"], finding.get("ctx", {})
    got = f", got {shown(finding['input'])}"
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return f"is not known{nearest(str(finding['loc'][-1]), known)}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = context[key]
        return f"{words} {f'{bound:g}' if isinstance(bound, float) else bound}{got}"
    return _KINDS.get(kind, "") + got if kind in _KINDS else _special(kind, context, got)


def _special(kind: str, context: dict[str, Any], got: str) -> str:
    """Describe findings whose words depend on more than a bound."""
    if kind in {"literal_error", "enum"}:
        return f"must be {context['expected']}{got}"
    if kind == "string_pattern_mismatch":
        return f"must match {context['pattern']}{got}"
    if kind in {"too_long", "string_too_long"}:
        return f"must have at most {context['max_length']} entries or characters"
    if kind in {"too_short", "string_too_short"}:
        return f"must have at least {context['min_length']} entries or characters"
    if kind == "value_error":
        return str(context["error"])
    return f"is not valid{got}"

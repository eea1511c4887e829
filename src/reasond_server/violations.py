"""Says what Pydantic found wrong in our own words; input never comes back unshortened."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from reasond_server.errors import Violation, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_type": lambda _: "must be true or false",
    "dict_type": lambda _: "must be an object",
    "enum": lambda ctx: f"must be one of {ctx['expected']}",
    "finite_number": lambda _: "must be a finite number",
    "float_type": lambda _: "must be a number",
    "greater_than": lambda ctx: f"must be greater than {_number(ctx['gt'])}",
    "greater_than_equal": lambda ctx: f"must be at least {_number(ctx['ge'])}",
    "int_from_float": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "less_than": lambda ctx: f"must be less than {_number(ctx['lt'])}",
    "less_than_equal": lambda ctx: f"must be at most {_number(ctx['le'])}",
    "list_type": lambda _: "must be a list",
    "literal_error": lambda ctx: f"must be one of {ctx['expected']}",
    "mapping_type": lambda _: "must be an object",
    "missing": lambda _: "is required",
    "model_type": lambda _: "must be an object",
    "string_pattern_mismatch": lambda ctx: f"must match {ctx['pattern']}",
    "string_too_long": lambda ctx: f"must have at most {ctx['max_length']} characters",
    "string_too_short": lambda ctx: _least(ctx["min_length"]),
    "string_type": lambda _: "must be a string",
    "too_long": lambda ctx: f"must have at most {ctx['max_length']} entries",
    "too_short": lambda ctx: f"must have at least {ctx['min_length']} entry",
    "tuple_type": lambda _: "must be a list",
    "value_error": lambda ctx: str(ctx["error"]),
}
_WITHOUT_INPUT = {"missing", "string_too_long", "string_too_short", "too_long", "too_short", "value_error"}


def words_of(finding: ErrorDetails) -> str:
    """Return what is wrong, without the value that is."""
    words = _WORDS.get(finding["type"])
    return words(finding.get("ctx", {})) if words else "is not valid"


def violations_of(error: ValidationError, *, known: Iterable[str] = ()) -> list[Violation]:
    """Return one violation per finding, with the value; `known` are the names to suggest for an unknown one."""
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
    if finding["type"] == "extra_forbidden":
        return f"is not known{nearest(str(finding['loc'][-1]), known)}"
    got = "" if finding["type"] in _WITHOUT_INPUT else f", got {shown(finding['input'])}"
    return f"{words_of(finding)}{got}"


def _least(characters: int) -> str:
    return "must not be empty" if characters == 1 else f"must have at least {characters} characters"


def _number(bound: float) -> str:
    """Return a bound as people write it: 2 rather than 2.0."""
    return str(int(bound)) if bound == int(bound) else str(bound)

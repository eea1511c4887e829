"""The parameters of a repair: those of the request over those of the server, within the operator's ceilings."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import InvalidConfigError, Violation, show
from reasond_server.repair.repair_policy import RepairParameters
from reasond_server.types.repairs import RepairSearch
from reasond_server.violations import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.repair.repair_policy import RepairPolicy
    from reasond_server.types import Json

_INTEGERS: Final = {
    "num_candidates": (1, 10),
    "max_reflection_depth": (1, 10),
    "beam_width": (1, 10),
    "patience": (1, 1000),
    "critic_timeout_ms": (100, 300_000),
    "max_candidates": (1, 1000),
    "max_checks": (1, 100_000),
    "max_tokens": (64, 32_768),
    "seed": (-(2**63), 2**63 - 1),
}
_NUMBERS: Final = {
    "critique_threshold": (0.0, 100.0),
    "temperature": (0.0, 2.0),
    "spread_temperature": (0.0, 2.0),
    "top_p": (0.001, 1.0),
    "min_improvement_delta": (0.0, 100.0),
    "max_check_cpu_s": (1.0, 360_000.0),
}
_FLAGS: Final = frozenset({"enable_early_terminate", "allow_tool_use", "allow_unreproduced"})
_SIMILARITY: Final = "deduplication_similarity"
_NO_SIMILARITY: Final = (
    "is refused: a right fix nearly always is more than 95 % similar to the fault, so it would be deleted; equal code "
    "is recognised by its syntax tree"
)
_NAMES: Final = tuple(each.name for each in fields(RepairParameters))


def resolve_parameters(asked: Mapping[str, object], policy: RepairPolicy) -> RepairParameters:
    """Return the parameters of a request that asks for `asked`, by name.

    Raises:
        InvalidConfigError: with one violation for each parameter that is unknown, of the wrong type, out of its bounds
            or over the operator's ceiling.
    """
    found = [each for name, value in asked.items() for each in _find_problems(name, value, policy)]
    if found:
        raise InvalidConfigError.of(*found)
    values: dict[str, Any] = dict(asked)
    if "search" in values:
        values["search"] = RepairSearch(values["search"])
    values = {name: _as_declared(name, value) for name, value in values.items()}
    return replace(policy.defaults, **values)


def describe_parameters(parameters: RepairParameters) -> Json:
    """Return the parameters as JSON; those without a value are left out."""
    return {name: value for name, value in asdict(parameters).items() if value is not None}


def read_parameters(row: Json) -> RepairParameters:
    """Return the parameters that `describe_parameters` described. Raises KeyError, TypeError or ValueError."""
    return RepairParameters(**{**row, "search": RepairSearch(row["search"])})


def _as_declared(name: str, value: Any) -> Any:  # noqa: ANN401 - a parameter of any type
    return float(value) if name in _NUMBERS and isinstance(value, int | float) else value


def _find_problems(name: str, value: object, policy: RepairPolicy) -> Iterator[Violation]:
    field = f"config.{name}"
    if name == _SIMILARITY:
        yield Violation(field=field, description=_NO_SIMILARITY)
    elif name == "search":
        if value not in list(RepairSearch):
            known = ", ".join(RepairSearch)
            yield Violation(field=field, description=f"must be one of {known}, got {show(value)}")
    elif name in _FLAGS:
        if not isinstance(value, bool):
            yield Violation(field=field, description=f"must be true or false, got {show(value)}")
    elif name in _INTEGERS:
        yield from _find_in_number(field, value, _INTEGERS[name], policy.ceilings.get(name), is_integer=True)
    elif name in _NUMBERS:
        yield from _find_in_number(field, value, _NUMBERS[name], policy.ceilings.get(name), is_integer=False)
    else:
        text = f"is no parameter of a repair{suggest_nearest(name, _NAMES)}"
        yield Violation(field=field, description=text)


def _find_in_number(
    field: str, value: object, bounds: tuple[float, float], ceiling: int | None, *, is_integer: bool
) -> Iterator[Violation]:
    least, most = bounds
    is_number = isinstance(value, int if is_integer else int | float) and not isinstance(value, bool)
    if not is_number or not isinstance(value, int | float) or not math.isfinite(value):
        noun = "a whole number" if is_integer else "a number"
        yield Violation(field=field, description=f"must be {noun}, got {show(value)}")
    elif not least <= value <= most:
        yield Violation(field=field, description=f"must be between {least:g} and {most:g}, got {value}")
    elif ceiling is not None and value > ceiling:
        yield Violation(field=field, description=f"must be at most {ceiling}, which the operator allows, got {value}")

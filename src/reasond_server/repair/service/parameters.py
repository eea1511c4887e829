"""The parameters of a repair: those of the request over those of the server, within the operator's ceilings."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from reasond_server.base.violations import list_violations, suggest_nearest
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidConfigError
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.types.repairs import RepairSearch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.repair.search.repair_policy import RepairPolicy
    from reasond_server.types import Json

_SIMILARITY: Final = "deduplication_similarity"
_NO_SIMILARITY: Final = (
    "is refused: a right fix nearly always is more than 95 % similar to the fault, so it would be deleted; equal code "
    "is recognised by its syntax tree"
)
_NAMES: Final = tuple(each.name for each in fields(RepairParameters))
_PARAMETERS: Final = TypeAdapter(RepairParameters)


def resolve_parameters(asked: Mapping[str, object], policy: RepairPolicy) -> RepairParameters:
    """Return the parameters of a request that asks for `asked`, by name.

    Raises:
        InvalidConfigError: with one violation for each parameter that is unknown, of the wrong type, out of its bounds
            or over the operator's ceiling.
    """
    known = {name: value for name, value in asked.items() if name in _NAMES}
    problems = [each for name in asked if name not in known for each in _find_in_name(name)]
    problems += _find_over_ceilings(known, policy)
    try:
        parameters = _PARAMETERS.validate_python(asdict(policy.defaults) | known)
    except ValidationError as error:
        problems += list_violations(error)
        raise _refuse(problems, asked) from None
    if problems:
        raise _refuse(problems, asked)
    return parameters


def describe_parameters(parameters: RepairParameters) -> Json:
    """Return the parameters as JSON; those without a value are left out."""
    return {name: value for name, value in asdict(parameters).items() if value is not None}


def read_parameters(row: Json) -> RepairParameters:
    """Return the parameters that `describe_parameters` described. Raises KeyError, TypeError or ValueError."""
    return RepairParameters(**{**row, "search": RepairSearch(row["search"])})


def _refuse(problems: list[Violation], asked: Mapping[str, object]) -> InvalidConfigError:
    """Return the error that names the last problem of each parameter, in the order of the request."""
    told = {each.field: Violation(field=f"config.{each.field}", description=each.description) for each in problems}
    return InvalidConfigError.of(*(told[name] for name in asked if name in told))


def _find_in_name(name: str) -> Iterator[Violation]:
    if name == _SIMILARITY:
        yield Violation(field=name, description=_NO_SIMILARITY)
    else:
        text = f"is no parameter of a repair{suggest_nearest(name, _NAMES)}"
        yield Violation(field=name, description=text)


def _find_over_ceilings(asked: Mapping[str, object], policy: RepairPolicy) -> Iterator[Violation]:
    for name, ceiling in policy.ceilings.items():
        value = asked.get(name)
        if isinstance(value, int | float) and value > ceiling:
            text = f"must be at most {ceiling:g}, which the operator allows, got {show(value)}"
            yield Violation(field=name, description=text)

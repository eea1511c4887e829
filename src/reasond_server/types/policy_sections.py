"""Policies: what the operator decides for a room, declared there and a section of the configuration as it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, ConfigDict, GetCoreSchemaHandler, PlainValidator, StringConstraints

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

ValueT = TypeVar("ValueT")
SECTION_RULES = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
"""What every section of the configuration holds to: exact types, no unknown keys, immutable."""
ChosenName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
"""A name that the operator gives to a table."""
PluginName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$", max_length=64)]
StrategyName = PluginName
ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$", max_length=128)]
Scalar = bool | int | float | str


class PolicySection:
    """Base of frozen dataclasses whose fields are keys of the configuration.

    A field is `Annotated` with the bounds and the description of its key. They count for the configuration alone:
    nothing is checked when a program makes the policy itself.
    """

    __slots__ = ()
    __pydantic_config__ = SECTION_RULES

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401 - as Pydantic declares it
        """Return the schema of the section; a table makes the policy although the types within it are strict."""
        schema = handler(source)
        declared: Any = handler.resolve_ref_schema(schema)
        declared["strict"] = False
        return schema


def freeze(table: Mapping[str, ValueT]) -> Mapping[str, ValueT]:
    """Return a read-only copy of `table`."""
    return MappingProxyType(dict(table))


def _check_scalar(value: object) -> object:
    """Return `value` if it is a string, a finite number or a boolean."""
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        message = "must be a string, a finite number, true or false"
        raise ValueError(message)
    return value


ScalarValue = Annotated[Scalar, PlainValidator(_check_scalar)]
ParameterTable = Annotated[Mapping[ParameterName, ScalarValue], AfterValidator(freeze)]
"""Parameters of a strategy by name."""

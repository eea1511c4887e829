"""Values: the decorator of classes that hold facts and no state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

Json = Mapping[str, Any]
ClassT = TypeVar("ClassT")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(kind: type[ClassT]) -> type[ClassT]:
    """Return `kind` as a frozen, slotted dataclass with keyword-only fields.

    docs/decisions/0020-values-of-a-call.md says what it costs, and what was refused for it.
    """
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)

"""Values that are made in every call: immutable for mypy; making one takes a third of a frozen dataclass's time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

ClassT = TypeVar("ClassT")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(kind: type[ClassT]) -> type[ClassT]:
    """Return `kind` as a slotted, keyword-only dataclass whose fields only its constructor may set.

    The type checker refuses an assignment, but the interpreter does not, so a value has no hash. A frozen dataclass
    calls `object.__setattr__` for each field, which took a fifth of the time of a run. Values that third-party code
    receives are frozen at run time as well; docs/decisions/0020-values-of-a-call.md has the rule.
    """
    return dataclass(slots=True, kw_only=True)(kind)

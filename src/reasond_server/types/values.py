"""Values that are made with every call: immutable for mypy, and made in a third of the time of a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

ClassT = TypeVar("ClassT")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(kind: type[ClassT]) -> type[ClassT]:
    """Return `kind` as a slotted, keyword-only dataclass whose fields nobody but its constructor may set.

    The type checker refuses an assignment, the interpreter does not, so a value has no hash. A frozen dataclass calls
    `object.__setattr__` for each field, which was a fifth of what a run costs. What is handed to the code of third
    parties is frozen at run time as well; docs/decisions/0020-values-of-a-call.md has the rule.
    """
    return dataclass(slots=True, kw_only=True)(kind)

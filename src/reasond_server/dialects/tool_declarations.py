"""Tools as clients declare them, and as providers accept them: their names and their JSON Schemas."""

from __future__ import annotations

import hashlib
from typing import Any, Final

_SCHEMAS_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_MAY_BE_NULL: Final = frozenset({"const", "default"})


def drop_nulls(schema: Any, *, is_by_name: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Return a JSON Schema without keywords that are null, as some clients write those that are not set.

    coder/coder#23538, MervinPraison/PraisonAI#3111. With `is_by_name`, `schema` is an object of schemas by name, of
    which one that is null accepts everything. `schema` may be nested at most as deep as JSON that was parsed.
    """
    if isinstance(schema, list):
        return [drop_nulls(each) if isinstance(each, dict) else each for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for name, value in schema.items():
        if is_by_name:
            kept[name] = {} if value is None else drop_nulls(value)
        elif name in _MAY_BE_NULL:
            kept[name] = value
        elif value is not None:
            kept[name] = drop_nulls(value, is_by_name=name in _SCHEMAS_BY_NAME)
    return kept


MOST_CHARACTERS: Final = 64
"""What OpenAI's interface accepts, and what some servers hold clients to."""
_DIGEST: Final = 8


def shorten_name(name: str, *, key: str = "") -> str:
    """Return the beginning of `name` with a digest of `key`, or of the whole name, which keeps two names different."""
    digest = hashlib.sha256((key or name).encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1]}_{digest}"

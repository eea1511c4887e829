"""JSON Schemas (draft 2020-12) of strangers, and values checked by them within a bound of work.

Regular expressions are not evaluated, because a hostile one can run without end; references to other documents are not
followed. A schema of 65,536 bytes can still ask for an exponential number of checks, so they are counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import Violation, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reasond_server.types import Json

_MAX_VIOLATIONS: Final = 10
_MAX_PATH_PART: Final = 100
_MAX_CHECKS: Final = 20_000
# About five frames of Python each; a tree of 40 levels by `$ref`, `properties` and `items` fits.
_MAX_DEPTH: Final = 100
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})
_EXPRESSIONS: Final = ("pattern", "patternProperties", "propertyNames")


class SchemaUnusableError(Exception):
    """The schema cannot be used; the text says why, as in "refers to itself without end"."""


@dataclass(slots=True)
class _Effort:
    """The steps that a check has left, and how deep it is.

    The library recurses, and its parts in Rust end the process where Python's recursion limit is met.
    """

    left: int = _MAX_CHECKS
    depth: int = 0

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise SchemaUnusableError(f"needs more than {_MAX_CHECKS} steps to check one value")
        if self.depth > _MAX_DEPTH:
            raise SchemaUnusableError(f"nests more than {_MAX_DEPTH} keywords, or refers to itself without end")


def build_validator(schema: Json) -> Callable[[object], Sequence[Violation]]:
    """Return a function that checks values by `schema` and returns at most 10 violations.

    The function raises SchemaUnusableError if a check takes too long.

    Raises:
        SchemaUnusableError: it is no JSON Schema, or it refers to something that it does not hold; the text names it.
    """
    # Imported here, because most servers never check a schema, and the import takes 100 ms.
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]  # noqa: PLC0415 - no types; see above
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    from referencing import Registry  # noqa: PLC0415 - as above

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = _name_place(error.absolute_path)
        raise SchemaUnusableError(f"is no JSON Schema: {place or 'it'} {_describe_error(error)}") from None
    except RecursionError:
        raise SchemaUnusableError("is nested too deeply") from None
    _require_targets(schema)
    effort = _Effort()
    keywords = {name: _count(check, effort) for name, check in Draft202012Validator.VALIDATORS.items()}
    keywords.update(dict.fromkeys(_EXPRESSIONS, _accept), uniqueItems=_find_equal_items)
    kind = validators.extend(Draft202012Validator, keywords)
    checker = kind(schema, registry=Registry())

    def find_violations(value: object) -> Sequence[Violation]:
        effort.left, effort.depth = _MAX_CHECKS, 0
        found = []
        for error in checker.iter_errors(value):
            found.append(Violation(field=_name_place(error.absolute_path), description=_describe_error(error)))
            if len(found) == _MAX_VIOLATIONS:
                break
        return found

    return find_violations


def _require_targets(schema: Json) -> None:
    """Refuse a schema with a reference whose target it does not hold itself."""
    from referencing import Registry  # noqa: PLC0415 - as above
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    own = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    waiting: list[object] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for keyword in _REFERENCES & part.keys():
                try:
                    own.lookup(str(part[keyword]))
                except (Unresolvable, ValueError):
                    raise SchemaUnusableError(f"refers to {show(part[keyword])}, which it does not hold") from None
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def _count(check: Callable[..., Iterator[Any] | None], effort: _Effort) -> Callable[..., Iterator[Any]]:
    def run_counted(validator: Any, wanted: Any, value: Any, schema: Any) -> Iterator[Any]:  # noqa: ANN401 - the library's form
        effort.spend(len(wanted) if isinstance(wanted, list) else 1)
        effort.depth += 1
        yield from check(validator, wanted, value, schema) or ()
        effort.depth -= 1

    return run_counted


def _accept(*_: object) -> Iterator[Any]:
    return iter(())


def _find_equal_items(validator: Any, wanted: object, value: object, _schema: object) -> Iterator[Any]:  # noqa: ANN401 - the library's form
    """Yield an error if items of a list are equal; the library's own check takes quadratic time."""
    if wanted is True and validator.is_type(value, "array"):
        texts = [json.dumps(item, sort_keys=True) for item in value]  # type: ignore[attr-defined]  # a list
        if len(set(texts)) < len(texts):
            from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - as above

            yield ValidationError("has equal items")


def _name_place(path: Any) -> str:  # noqa: ANN401 - a type of the library
    return ".".join(str(part)[:_MAX_PATH_PART] for part in path)


def _describe_error(error: Any) -> str:  # noqa: ANN401 - a type of the library
    """Describe how a value violates a keyword of the schema, without the text of the error."""
    keyword, wanted, value = error.validator, error.validator_value, error.instance
    if keyword == "required":
        missing = [name for name in wanted if name not in value]
        return f"must have {', '.join(map(show, missing))}"
    if keyword == "additionalProperties" and isinstance(error.schema.get("properties"), dict):
        known = error.schema["properties"]
        unknown = ", ".join(show(name) for name in value if name not in known)
        return f"must not have {unknown}; known are {', '.join(map(show, known)) or 'none'}"
    return f"must satisfy {keyword} {show(wanted)}, got {show(value)}"

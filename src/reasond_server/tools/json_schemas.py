"""JSON Schemas (draft 2020-12) of strangers, and values checked by them within a bound of work.

Regular expressions run in linear time; references to other documents are not followed. How long a check may take is
known before it begins (`tools.schema_steps`), because the validator cannot be interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import Violation, show
from reasond_server.tools.schema_steps import MAX_STEPS, SchemaUnusableError, StepCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jsonschema_rs import Draft202012Validator, ValidationError

    from reasond_server.types import Json

_MAX_VIOLATIONS: Final = 10
_MAX_PATH_PART: Final = 100
_MAX_SCHEMA_CHARACTERS: Final = 65_536
_MAX_VALUE_CHARACTERS: Final = 4_000_000
_MAX_LEVELS: Final = 200
_MAX_PATTERN_BYTES: Final = 100_000
# Describing a violation takes about 30 us and copies the value; finding that there is one takes less than 1 us.
_MAX_DESCRIBING_STEPS: Final = 4_000
_VALUE_CHARACTERS_A_STEP: Final = 1_000
_ALTERNATIVES: Final = frozenset({"anyOf", "oneOf"})
# Characters around a name or a value.
_AROUND: Final = 4


def build_validator(schema: Json, *, max_steps: int = MAX_STEPS) -> Callable[[object], Sequence[Violation]]:
    """Return a function that checks values by `schema` and returns at most 10 violations.

    The function raises SchemaUnusableError if a check could take more than `max_steps`; 20,000 of them take 0.2 s.

    Raises:
        SchemaUnusableError: it is no JSON Schema, or it refers to something that it does not hold; the text names it.
    """
    # The schema is one document, whatever it calls itself.
    document = {name: part for name, part in schema.items() if name not in {"$schema", "$id"}}
    if _measure(document) > _MAX_SCHEMA_CHARACTERS:
        raise SchemaUnusableError(f"has more than {_MAX_SCHEMA_CHARACTERS} characters; shorten its descriptions")
    counter = StepCounter(document, max_steps=max_steps)
    validator = _compile(document)
    has_alternatives = _has_alternatives(document)

    def find_violations(value: object) -> Sequence[Violation]:
        size = _measure(value)
        if size > _MAX_VALUE_CHARACTERS:
            raise SchemaUnusableError(f"is not used for values of more than {_MAX_VALUE_CHARACTERS} characters")
        steps = counter.count(value)
        if validator.is_valid(value):
            return ()
        if steps * (1 + size // _VALUE_CHARACTERS_A_STEP) <= _MAX_DESCRIBING_STEPS:
            errors: Sequence[ValidationError] = list(validator.iter_errors(value))[:_MAX_VIOLATIONS]
        elif has_alternatives:
            # Each alternative that fails would be described too.
            text = f"must satisfy the schema; where it does not is only said of checks of {_MAX_DESCRIBING_STEPS} steps"
            return [Violation(field="", description=text)]
        else:
            errors = _find_first(validator, value)
        return [Violation(field=_name_place(one.instance_path), description=_describe(one, document)) for one in errors]

    return find_violations


def _compile(schema: dict[str, Any]) -> Draft202012Validator:
    # Imported here, because most servers never check a schema.
    from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError  # noqa: PLC0415 - see above

    options = RegexOptions(size_limit=_MAX_PATTERN_BYTES, dfa_size_limit=_MAX_PATTERN_BYTES)
    try:
        return Draft202012Validator(schema, pattern_options=options, validate_formats=False, offline=True)
    except ValidationError as error:
        place = _name_place(error.instance_path)
        if error.kind.name == "format":
            raise SchemaUnusableError(
                f"has a regular expression that is not supported at {place}: {show(error.instance)}; write it without "
                "look-around and back references, and shorter if it repeats much"
            ) from None
        problem = f"must satisfy {error.kind.name}, got {show(error.instance)}"
        raise SchemaUnusableError(f"is no JSON Schema: {place or 'it'} {problem}") from None


def _find_first(validator: Draft202012Validator, value: object) -> Sequence[ValidationError]:
    from jsonschema_rs import ValidationError  # noqa: PLC0415 - as above

    try:
        validator.validate(value)
    except ValidationError as error:
        return (error,)
    return ()


def _measure(value: object) -> int:
    """Return about how many characters the JSON of `value` has.

    Raises:
        SchemaUnusableError: it is nested too deeply for the validator, which recurses.
    """
    size, level = 0, [value]
    for _ in range(_MAX_LEVELS):
        below: list[object] = []
        for part in level:
            size += _AROUND
            if isinstance(part, dict):
                size += sum(map(len, part)) + _AROUND * len(part)
                below.extend(part.values())
            elif isinstance(part, list):
                below.extend(part)
            elif isinstance(part, str):
                size += len(part)
        if not below:
            return size
        level = below
    raise SchemaUnusableError(f"or the value is nested more than {_MAX_LEVELS} levels deep")


def _has_alternatives(schema: object) -> bool:
    if isinstance(schema, dict):
        return bool(_ALTERNATIVES & schema.keys()) or any(map(_has_alternatives, schema.values()))
    return isinstance(schema, list) and any(map(_has_alternatives, schema))


def _name_place(path: Sequence[str | int]) -> str:
    return ".".join(str(part)[:_MAX_PATH_PART] for part in path)


def _follow(root: Any, path: Sequence[str | int]) -> Any:  # noqa: ANN401 - any JSON value
    """Return what is at `path`, in which the library writes names of digits as numbers and leaves empty names out.

    Raises:
        LookupError, TypeError: it cannot be found.
    """
    for part in path:
        root = root[part if isinstance(root, list) else str(part)]
    return root


def _describe(error: ValidationError, schema: Json) -> str:
    """Describe how a value violates a keyword of the schema, without the text of the error."""
    keyword, place, found = error.kind.name, error.schema_path, error.instance
    if keyword == "required":
        return f"must have {show(error.kind.value)}"
    if keyword == "falseSchema":
        return f"must not be there, got {show(found)}"
    if keyword == "propertyNames":
        problem = f"must not have {show(error.kind.value.instance)}"
        return f"{problem}; names must satisfy {place[-1]}{_show_limit(schema, place)}"
    if keyword in {"additionalProperties", "unevaluatedProperties"}:
        problem = f"must not have {', '.join(map(show, error.kind.value))}"
        known = _list_known(schema, place)
        return f"{problem}; known are {', '.join(map(show, known))}" if known else problem
    return f"must satisfy {keyword}{_show_limit(schema, place)}, got {show(found)}"


def _show_limit(schema: Json, place: Sequence[str | int]) -> str:
    """Return what the keyword at `place` demands, behind a blank; nothing if it cannot be found."""
    try:
        return f" {show(_follow(schema, place))}"
    except (LookupError, TypeError):
        return ""


def _list_known(schema: Json, place: Sequence[str | int]) -> Sequence[str]:
    """Return the names of the properties that are declared beside the keyword at `place`."""
    try:
        known = _follow(schema, (*place[:-1], "properties"))
    except (LookupError, TypeError):
        return ()
    return tuple(known) if isinstance(known, dict) else ()

"""An upper bound for the steps of a JSON Schema validation, computed before it begins.

The validator is native code that nothing can interrupt, and a schema of some hundred bytes can ask for 2^40 checks. The
count follows a schema as a validator does, but evaluates nothing: every branch counts, whether it is reached or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote

from reasond_server.errors.base import show

MAX_STEPS: Final = 20_000
# A tree of 40 levels by `$ref`, `properties` and `items` fits.
_MAX_DEPTH: Final = 150
_MAX_REFERENCES: Final = 1_000
# The validator compiles each of them, which takes up to 5 ms.
_MAX_PATTERNS: Final = 50
_LISTS_BESIDE: Final = ("allOf", "anyOf", "oneOf")
_PARTS_BESIDE: Final = ("not", "if", "then", "else")
_MAPS_BESIDE: Final = ("dependentSchemas", "dependencies")
_ITEMS: Final = ("items", "contains", "unevaluatedItems", "additionalItems")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_APPLICATORS: Final = frozenset(
    (*_LISTS_BESIDE, *_PARTS_BESIDE, *_MAPS_BESIDE, *_ITEMS, *_MEMBERS, "prefixItems", "properties", "propertyNames")
)
# Words about a schema, which a validator does not read when it checks a value.
_UNREAD: Final = frozenset({"$defs", "definitions", "default", "examples", "description", "title", "$comment"})
# The validator evaluates what stands beside these keywords again, to learn which parts it has seen.
_REPEATING: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_REPEATS: Final = 4
# Numbers that a validator divides and compares as fractions of long integers.
_LARGE_NUMBER: Final = 1e15
_LARGE_NUMBER_STEPS: Final = 30
_CHARACTERS_A_STEP: Final = 1_000
# For each character: an expression of a few thousand states takes 20 us for one.
_PATTERN_STEPS: Final = 2
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,4}")
# These mean something else in a part of a JSON pointer than between parts.
_ENCODED_MARKS: Final = re.compile(r"%(?:2f|7e)", re.IGNORECASE)


class SchemaUnusableError(Exception):
    """The schema cannot be used; the text says why, as in "refers to itself without end"."""


class StepCounter:
    """Counts the steps of checks by one schema, `max_steps` at most for each check.

    Raises:
        SchemaUnusableError: it refers to something that it does not hold, or has too many references or patterns.
    """

    def __init__(self, schema: object, *, max_steps: int = MAX_STEPS) -> None:
        self._schema = schema
        self._most = self._left = max_steps
        self._anchors: dict[str, object] = {}
        # By the identity of a part, which `schema` keeps alive.
        self._read: dict[int, tuple[int, Sequence[object]]] = {}
        references, patterns = self._survey()
        for name, found, most in (
            ("references", len(references), _MAX_REFERENCES),
            ("regular expressions", patterns, _MAX_PATTERNS),
        ):
            if found > most:
                raise SchemaUnusableError(f"has {found} {name}, at most {most} are allowed; leave some out")
        for reference in references:
            self._find_target(reference)

    def count(self, value: object) -> int:
        """Return the steps that a check of `value` takes at most.

        Raises:
            SchemaUnusableError: they are more than allowed, or the schema nests or refers too deeply.
        """
        self._left = self._most
        self._visit(self._schema, value, 0)
        return self._most - self._left

    def _survey(self) -> tuple[list[str], int]:
        """Return the references and the number of patterns, and remember the anchors."""
        references, patterns = [], 0
        waiting: list[object] = [self._schema]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                if isinstance(part.get("$ref"), str):
                    references.append(part["$ref"])
                self._note_names(part)
                patterns += isinstance(part.get("pattern"), str)
                if isinstance(part.get("patternProperties"), dict):
                    patterns += len(part["patternProperties"])
                waiting.extend(part.values())
            elif isinstance(part, list):
                waiting.extend(part)
        return references, patterns

    def _note_names(self, part: Mapping[str, object]) -> None:
        for keyword, remedy in (("$dynamicRef", "use $ref"), ("$id", "one document is allowed; put it under $defs")):
            if isinstance(part.get(keyword), str):
                raise SchemaUnusableError(f"uses {keyword} {show(part[keyword])}, which is not supported: {remedy}")
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = part.get(keyword)
            if isinstance(name, str):
                if name in self._anchors:
                    raise SchemaUnusableError(f"has the anchor {show(name)} twice")
                self._anchors[name] = part

    def _find_target(self, reference: str) -> object:
        fragment = reference.removeprefix("#")
        refusal = SchemaUnusableError(f"refers to {show(reference)}, which it does not hold")
        if fragment == reference or _ENCODED_MARKS.search(fragment):
            raise refusal
        found: object = self._schema
        try:
            if fragment and not fragment.startswith("/"):
                return self._anchors[fragment]
            for part in unquote(fragment).split("/")[1:]:
                found = _look_up(found, part.replace("~1", "/").replace("~0", "~"))
        except LookupError:
            raise refusal from None
        return found

    def _visit(self, schema: object, value: object, depth: int) -> None:
        if not isinstance(schema, dict):
            self._spend(1)
            return
        if depth > _MAX_DEPTH:
            raise SchemaUnusableError(f"nests more than {_MAX_DEPTH} levels, or refers to itself without end")
        known = self._read.get(id(schema))
        if known is None:
            beside = list(self._list_beside(schema)) * (_REPEATS if _REPEATING & schema.keys() else 1)
            known = self._read[id(schema)] = (_weigh(schema), beside)
        self._spend(known[0] * _weigh_value(value))
        if isinstance(value, str) and "pattern" in schema:
            self._spend(_PATTERN_STEPS * len(value))
        for part in known[1]:
            self._visit(part, value, depth + 1)
        if isinstance(value, dict):
            self._visit_members(schema, value, depth + 1)
        elif isinstance(value, list):
            if schema.get("uniqueItems") is True:
                self._spend_parts(value)
            self._visit_items(schema, value, depth + 1)

    def _list_beside(self, schema: Mapping[str, Any]) -> Iterator[object]:
        """Yield the schemas that are evaluated on the same value as `schema`."""
        if "$ref" in schema:
            yield self._find_target(schema["$ref"])
        for keyword in _LISTS_BESIDE:
            yield from schema.get(keyword, ())
        for keyword in _PARTS_BESIDE:
            if keyword in schema:
                yield schema[keyword]
        for keyword in _MAPS_BESIDE:
            yield from schema.get(keyword, {}).values()

    def _visit_members(self, schema: Mapping[str, Any], value: Mapping[str, object], depth: int) -> None:
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        others = [schema[keyword] for keyword in _MEMBERS if keyword in schema]
        for name, member in value.items():
            if patterns:
                self._spend(len(patterns) * _PATTERN_STEPS * (1 + len(name)))
            if "propertyNames" in schema:
                self._visit(schema["propertyNames"], name, depth)
            for part in chain((properties[name],) if name in properties else others, patterns.values()):
                self._visit(part, member, depth)

    def _visit_items(self, schema: Mapping[str, Any], value: list[object], depth: int) -> None:
        for part, item in zip(schema.get("prefixItems", ()), value, strict=False):
            self._visit(part, item, depth)
        for part in [schema[keyword] for keyword in _ITEMS if keyword in schema]:
            for item in value:
                self._visit(part, item, depth)

    def _spend_parts(self, value: object) -> None:
        """Spend a step for each value within `value`."""
        waiting = [value]
        while waiting:
            part = waiting.pop()
            self._spend(_weigh_value(part))
            if isinstance(part, dict):
                waiting.extend(part.values())
            elif isinstance(part, list):
                waiting.extend(part)

    def _spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise SchemaUnusableError(
                f"needs more than {self._most} steps to check one value; give it fewer references, alternatives or "
                "patterns, or ask for a smaller value"
            )


def _weigh(schema: Mapping[str, object]) -> int:
    """Return the steps that the keywords of a schema take by themselves: one for each value that they hold."""
    weight = 1
    waiting: list[object] = [part for keyword, part in schema.items() if keyword not in _APPLICATORS | _UNREAD]
    while waiting:
        part = waiting.pop()
        weight += _weigh_value(part)
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    multiple = schema.get("multipleOf")
    if isinstance(multiple, float) and not 1 / _LARGE_NUMBER < multiple < _LARGE_NUMBER:
        weight += _LARGE_NUMBER_STEPS
    return weight


def _weigh_value(value: object) -> int:
    """Return the steps of one look at `value`: 1, and more for a long text or a large number."""
    if isinstance(value, str):
        return 1 + len(value) // _CHARACTERS_A_STEP
    if isinstance(value, int):
        # Arithmetic takes quadratic time.
        return 1 + (value.bit_length() // 200) ** 2
    if isinstance(value, float) and abs(value) > _LARGE_NUMBER:
        return _LARGE_NUMBER_STEPS
    return 1


def _look_up(found: object, key: str) -> object:
    """Return the member or item that a part of a JSON pointer names.

    Raises:
        LookupError: there is none.
    """
    if isinstance(found, dict):
        return found[key]
    if isinstance(found, list) and _INDEX.fullmatch(key):
        return found[int(key)]
    raise LookupError

"""The tools of a run within their share of the window: JSON Schemas are shortened until all of them fit.

Servers of tools write their schemas without knowing the window. A schema that is too large loses its words first
(descriptions, examples, titles), then everything but the names and types of its own properties, then those. A shortened
one is still a JSON Schema that allows whatever the whole one does, and the tool's description says so; what a call does
not satisfy, the tool itself says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import ContextExhaustedError
from reasond_server.strategies.react.prompts import bounded_specs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.llm.model import TokenCounter, ToolSpec

MOST_TOOL_TOKENS: Final = 1024
"""Most tokens that one tool may take."""
MOST_TOKENS: Final = 8192
"""Most tokens that all tools together may take where the window is large or unknown."""

_SHARE_OF_WINDOW: Final = 4
_WORDS: Final = frozenset({"description", "title", "examples", "default", "$comment", "deprecated", "readOnly"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "required"})
_SHORTENED: Final = " (Its arguments are told in short: a call that they do not fit is answered with what is wrong.)"
_SHORT_DESCRIPTION: Final = 200
_BARE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Tools as a model is told of them; `each` and `whole` are the texts by which their tokens are counted.

    `sizes` are the bytes of `each`.
    """

    specs: Sequence[ToolSpec] = ()
    each: Sequence[str] = ()
    sizes: Sequence[int] = ()
    whole: str = ""


class Offers:
    """Makes the offers of a server's runs, and keeps the last one: from run to run the tools are mostly the same.

    Most of what a run does before its first call would otherwise be reading and writing the same schemas again.
    """

    def __init__(self) -> None:
        self._tools: Sequence[ToolSpec] = ()
        self._offer = Offer()

    def of(self, tools: Sequence[ToolSpec]) -> Offer:
        """Return the offer of `tools`, bounded as `prompts.bounded_specs` does."""
        if tools != self._tools:
            self._offer = _offer_of(bounded_specs(tools))
            self._tools = tools
        return self._offer


def fitting(offer: Offer, *, counter: TokenCounter, window: int | None) -> Offer:
    """Return `offer` itself if it fits as `fitting_specs` demands, else one of shortened tools. Raises as that does."""
    # A token is at least one byte, so what fits by its bytes needs no counting.
    sized = zip(offer.each, offer.sizes, strict=True)
    most = [size if size <= MOST_TOOL_TOKENS else counter.count_text(text) for text, size in sized]
    if _fit(most, window) or _fit([counter.count_text(text) for text in offer.each], window):
        return offer
    return _offer_of(fitting_specs(offer.specs, counter=counter, window=window))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A tool as it is told: `level` 0 is whole, 3 bare."""

    whole: ToolSpec
    level: int
    told: ToolSpec
    tokens: int


def fitting_specs(specs: Sequence[ToolSpec], *, counter: TokenCounter, window: int | None) -> Sequence[ToolSpec]:
    """Return `specs` in their order, none over MOST_TOOL_TOKENS and together at most MOST_TOKENS and window / 4.

    Time is linear in the texts, and at most quadratic in the number of tools.

    Raises:
        ContextExhaustedError: even without any schema they take more.
    """
    most = _share_of(window)
    shown = [_within(spec, counter) for spec in specs]
    while sum(one.tokens for one in shown) > most:
        open_places = [place for place, one in enumerate(shown) if one.level < _BARE]
        if not open_places:
            raise _no_room(shown, most)
        largest = max(open_places, key=lambda place: shown[place].tokens)
        shown[largest] = _shown(shown[largest].whole, shown[largest].level + 1, counter)
    return tuple(one.told for one in shown)


def _fit(tokens: Sequence[int], window: int | None) -> bool:
    return sum(tokens) <= _share_of(window) and max(tokens, default=0) <= MOST_TOOL_TOKENS


def _share_of(window: int | None) -> int:
    """Return the most tokens that all tools together may take."""
    return MOST_TOKENS if window is None else min(MOST_TOKENS, window // _SHARE_OF_WINDOW)


def _offer_of(specs: Sequence[ToolSpec]) -> Offer:
    shapes = [[spec.name, spec.description, spec.parameters] for spec in specs]
    each = [_text_of(spec) for spec in specs]
    sizes = [len(text.encode("utf-8", "replace")) for text in each]
    return Offer(specs=specs, each=each, sizes=sizes, whole=json.dumps(shapes))


def _text_of(spec: ToolSpec) -> str:
    return f"{spec.name}: {spec.description} {json.dumps(spec.parameters, ensure_ascii=False)}"


def _within(spec: ToolSpec, counter: TokenCounter) -> _Shown:
    one = _shown(spec, 0, counter)
    while one.tokens > MOST_TOOL_TOKENS and one.level < _BARE:
        one = _shown(spec, one.level + 1, counter)
    return one


def _shown(spec: ToolSpec, level: int, counter: TokenCounter) -> _Shown:
    told = spec
    if level:
        description = spec.description[:_SHORT_DESCRIPTION] if level == _BARE else spec.description
        told = replace(spec, description=description + _SHORTENED, parameters=_shortened(spec.parameters, level))
    return _Shown(whole=spec, level=level, told=told, tokens=counter.count_text(_text_of(told)))


def _shortened(schema: Mapping[str, Any], level: int) -> dict[str, Any]:
    if level == 1:
        return dict(_without_words(schema))
    if level == _BARE:
        # Some providers refuse an object without properties.
        return {"type": "object", "properties": {}}
    properties = schema.get("properties")
    names = properties if isinstance(properties, dict) else {}
    short: dict[str, Any] = {"type": "object", "properties": {name: _typed(each) for name, each in names.items()}}
    return short | ({"required": schema["required"]} if schema.get("required") else {})


def _typed(schema: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    kind = schema.get("type") if isinstance(schema, dict) else None
    return {"type": kind} if kind else {}


def _without_words(schema: Any, *, is_map: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Return `schema` without what only people read; `is_map` tells that its keys are names and no keywords."""
    if isinstance(schema, list):
        return [_without_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if is_map:
            kept[key] = _without_words(value)
        elif key in _VALUES:
            kept[key] = value
        elif key not in _WORDS:
            kept[key] = _without_words(value, is_map=key in _NAMED)
    return kept


def _no_room(shown: Sequence[_Shown], most: int) -> ContextExhaustedError:
    tokens = sum(one.tokens for one in shown)
    return ContextExhaustedError(
        f"{len(shown)} tools take {tokens} tokens even without their schemas, and may take {most} of the window",
        remedy="Offer fewer tools ([tools] enabled, and allow_tools of [tools.mcp.NAME]), or use a model with a larger "
        "context window.",
        metadata={"tools": str(len(shown)), "tool_tokens": str(tokens), "allowed_tokens": str(most)},
    )

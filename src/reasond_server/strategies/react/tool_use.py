"""Tools in a run of ReAct: their descriptions within a share of the window, and the calls of one run.

Tool servers write their schemas without knowing the window. A schema that is too large first loses its texts
(descriptions, examples, titles), then everything except the names and types of its own properties, then those too. A
shortened schema still allows everything that the original allows, and the tool's description says that it is
shortened. If a call does not satisfy the original schema, the tool reports it.

Calls have generated ids, their number is limited, and the same call is made at most twice.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.text_calls import bound_specs, clean_call
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.strategies.react import prompts as words
from reasond_server.tools.execution import NOT_CALLED, REPEATED, has_failed, refuse_call
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.tools.results import parse_arguments
from reasond_server.types import FinishReason, ToolCall, ToolResult
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.llm.model import TokenCounter, ToolSpec
    from reasond_server.tools.tool import Toolbox


MOST_TOOL_TOKENS: Final = 1024
"""Most tokens that one tool may take."""
MOST_OFFER_TOKENS: Final = 8192
"""Most tokens that all tools together may take if the window is large or unknown."""

_SHARE_OF_WINDOW: Final = 4
_WORDS: Final = frozenset({"description", "title", "examples", "default", "$comment", "deprecated", "readOnly"})
_NAMED: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "required"})
_SHORTENED: Final = " (Its arguments are told in short: a call that they do not fit is answered with what is wrong.)"
_SHORT_DESCRIPTION: Final = 200
_BARE: Final = 3

_MAX_SAME_CALLS: Final = 2
_NONE_LEFT: Final = "no calls are left; answer from what you know"


@value
class Offer:
    """Tools as the model sees them; their tokens are counted from the texts `each` and `whole`.

    `sizes` are the bytes of `each`.
    """

    specs: Sequence[ToolSpec] = ()
    each: Sequence[str] = ()
    sizes: Sequence[int] = ()
    whole: str = ""


class Offers:
    """Makes the offers of all runs and caches the last one, because tools rarely change between runs.

    Without the cache, parsing and serialising schemas would be most of the work before a run's first call.
    """

    def __init__(self) -> None:
        self._tools: Sequence[ToolSpec] = ()
        self._offer = Offer()

    def make(self, tools: Sequence[ToolSpec]) -> Offer:
        """Return the offer of `tools`, bounded as `text_calls.bound_specs` does."""
        if tools != self._tools:
            self._offer = _build_offer(bound_specs(tools))
            self._tools = tools
        return self._offer


def fit_offer(offer: Offer, *, counter: TokenCounter, window: int | None) -> Offer:
    """Return `offer` if it fits the limits of `fit_specs`, else an offer of shortened tools. Raises as that does."""
    # A token is at least one byte, so a text whose bytes fit need not be counted.
    sized = zip(offer.each, offer.sizes, strict=True)
    most = [size if size <= MOST_TOOL_TOKENS else counter.count_text(text) for text, size in sized]
    if _has_room(most, window) or _has_room([counter.count_text(text) for text in offer.each], window):
        return offer
    return _build_offer(fit_specs(offer.specs, counter=counter, window=window))


@value
class _ShownTool:
    """A tool as the model sees it; `level` 0 is complete, 3 has no schema."""

    whole: ToolSpec
    level: int
    shown: ToolSpec
    tokens: int


def fit_specs(specs: Sequence[ToolSpec], *, counter: TokenCounter, window: int | None) -> Sequence[ToolSpec]:
    """Return `specs` in their order, shortened if necessary.

    Each has at most MOST_TOOL_TOKENS, and all together at most MOST_OFFER_TOKENS and a quarter of `window`. Time is
    linear in the texts, and at most quadratic in the number of tools.

    Raises:
        ContextExhaustedError: the tools exceed the limits even without schemas.
    """
    most = _compute_share(window)
    shown = [_shorten_to_limit(spec, counter) for spec in specs]
    while sum(one.tokens for one in shown) > most:
        open_places = [place for place, one in enumerate(shown) if one.level < _BARE]
        if not open_places:
            raise _refuse_tools(shown, most)
        largest = max(open_places, key=lambda place: shown[place].tokens)
        shown[largest] = _show_at(shown[largest].whole, shown[largest].level + 1, counter)
    return tuple(one.shown for one in shown)


def _has_room(tokens: Sequence[int], window: int | None) -> bool:
    return sum(tokens) <= _compute_share(window) and max(tokens, default=0) <= MOST_TOOL_TOKENS


def _compute_share(window: int | None) -> int:
    """Return the most tokens that all tools together may take."""
    return MOST_OFFER_TOKENS if window is None else min(MOST_OFFER_TOKENS, window // _SHARE_OF_WINDOW)


def _build_offer(specs: Sequence[ToolSpec]) -> Offer:
    shapes = [[spec.name, spec.description, spec.parameters] for spec in specs]
    each = [_write_text(spec) for spec in specs]
    sizes = [len(text.encode("utf-8", "replace")) for text in each]
    return Offer(specs=specs, each=each, sizes=sizes, whole=json.dumps(shapes))


def _write_text(spec: ToolSpec) -> str:
    return f"{spec.name}: {spec.description} {json.dumps(spec.parameters, ensure_ascii=False)}"


def _shorten_to_limit(spec: ToolSpec, counter: TokenCounter) -> _ShownTool:
    one = _show_at(spec, 0, counter)
    while one.tokens > MOST_TOOL_TOKENS and one.level < _BARE:
        one = _show_at(spec, one.level + 1, counter)
    return one


def _show_at(spec: ToolSpec, level: int, counter: TokenCounter) -> _ShownTool:
    shown = spec
    if level:
        description = spec.description[:_SHORT_DESCRIPTION] if level == _BARE else spec.description
        shown = replace(spec, description=description + _SHORTENED, parameters=_shorten(spec.parameters, level))
    return _ShownTool(whole=spec, level=level, shown=shown, tokens=counter.count_text(_write_text(shown)))


def _shorten(schema: Mapping[str, Any], level: int) -> dict[str, Any]:
    if level == 1:
        return dict(_drop_words(schema))
    if level == _BARE:
        # Some providers refuse an object without the keyword `properties`.
        return {"type": "object", "properties": {}}
    properties = schema.get("properties")
    names = properties if isinstance(properties, dict) else {}
    short: dict[str, Any] = {"type": "object", "properties": {name: _keep_type(each) for name, each in names.items()}}
    return short | ({"required": schema["required"]} if schema.get("required") else {})


def _keep_type(schema: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    kind = schema.get("type") if isinstance(schema, dict) else None
    return {"type": kind} if kind else {}


def _drop_words(schema: Any, *, is_map: bool = False) -> Any:  # noqa: ANN401 - any JSON
    """Return `schema` without texts for readers; with `is_map`, its keys are names of properties, not keywords."""
    if isinstance(schema, list):
        return [_drop_words(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, inner in schema.items():
        if is_map:
            kept[key] = _drop_words(inner)
        elif key in _VALUES:
            kept[key] = inner
        elif key not in _WORDS:
            kept[key] = _drop_words(inner, is_map=key in _NAMED)
    return kept


def _refuse_tools(shown: Sequence[_ShownTool], most: int) -> ContextExhaustedError:
    tokens = sum(one.tokens for one in shown)
    return ContextExhaustedError(
        f"{len(shown)} tools take {tokens} tokens even without their schemas, and may take {most} of the window",
        remedy="Offer fewer tools ([tools] enabled, and allow_tools of [tools.mcp.NAME]), or use a model with a larger "
        "context window.",
        metadata={"tools": str(len(shown)), "tool_tokens": str(tokens), "allowed_tokens": str(most)},
    )


@value
class AnswerDemand:
    """Why the next model call must answer, and the finish reason if it has no tagged answer."""

    finish_reason: FinishReason
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class ToolUse:
    """The tool calls of one run, at most `most`; `is_budgets` is whether the task's budget sets this limit."""

    tools: Toolbox
    most: int
    is_budgets: bool
    made: int = 0
    failed: int = 0
    _minted: int = 0
    _before: dict[str, list[str]] = field(default_factory=dict)
    _stop: AnswerDemand | None = None

    @property
    def stop(self) -> AnswerDemand | None:
        """The reason why no further tool call is allowed; None while calls are allowed."""
        if self._stop is not None or self.made < self.most:
            return self._stop
        limit = "budget.max_tool_calls" if self.is_budgets else "max_tool_calls"
        return AnswerDemand(
            finish_reason=FinishReason.BUDGET_EXHAUSTED if self.is_budgets else FinishReason.MAX_ITERATIONS,
            warning=f"All {self.most} tool calls of {limit} were made; the run had to answer.",
        )

    def mint(self, call: ToolCall) -> ToolCall:
        """Return `call` with a generated id, and with text that can be encoded in UTF-8."""
        self._minted += 1
        return clean_call(call, call_id=f"c{self._minted}")

    async def make(self, call: ToolCall) -> tuple[ToolResult, str]:
        """Make one call if it is still allowed; return its result and a note about it for the model."""
        before = self._before.setdefault(words.compute_action_key(call), [])
        note = words.REPEATED.format(call_id=before[0]) if before else ""
        if refused := self._find_refusal(call, len(before)):
            result, note = refused, ""
        else:
            before.append(call.call_id)
            self.made += 1
            result = await self._call(call)
            # Models that see an error alone apologise for it, as their answer.
            if result.is_error and self.stop is None:
                note = words.FAILED_AGAIN.format(call_id=before[0]) if note else words.FAILED
        self.failed += has_failed(result)
        return result, note

    def _find_refusal(self, call: ToolCall, times: int) -> ToolResult | None:
        if self.stop is not None:
            return refuse_call(call, NOT_CALLED, _NONE_LEFT)
        if times < _MAX_SAME_CALLS:
            return None
        warning = "The model made the same call a third time; it was refused, and the run had to answer."
        self._stop = AnswerDemand(finish_reason=FinishReason.MAX_ITERATIONS, warning=warning)
        return refuse_call(call, REPEATED, f"the same call was made {_MAX_SAME_CALLS} times before; use its result")

    async def _call(self, call: ToolCall) -> ToolResult:
        try:
            return await self.tools.call(call)
        except TokenBudgetExhaustedError as error:
            self._stop = AnswerDemand(finish_reason=FinishReason.BUDGET_EXHAUSTED, warning=error.full_message)
            return refuse_call(call, NOT_CALLED, _NONE_LEFT)


def derive_handle(call: ToolCall) -> str:
    """Return the handle for reading the result of `call` again; a call that reads a result has that result's handle."""
    if call.name != READ_TOOL_RESULT:
        return call.call_id
    try:
        handle = parse_arguments(call.arguments_json).get("handle")
    except ValueError:
        handle = None
    return handle if isinstance(handle, str) and handle.isalnum() else call.call_id

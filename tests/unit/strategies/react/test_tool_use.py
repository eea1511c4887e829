"""Tools within their share of the window: which are shortened, in which order, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import ToolSpec
from reasond_server.strategies.react.tool_use import (
    MOST_OFFER_TOKENS,
    MOST_TOOL_TOKENS,
    Offers,
    ToolUse,
    fit_offer,
    fit_specs,
)
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.execution import Tools
from reasond_server.types import FinishReason, ToolCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def spec(name: str, words: int = 0, names: int = 1, description: str = "Does it.") -> ToolSpec:
    properties = {
        f"{name}{place}": {"type": "string", "description": "w" * words, "enum": ["description", "b"]}
        for place in range(names)
    }
    schema = {"type": "object", "properties": properties, "required": [f"{name}0"]}
    return ToolSpec(name=name, description=description, parameters=schema)


def size(one: ToolSpec) -> int:
    return len(f"{one.name}: {one.description} {json.dumps(one.parameters)}")


def test_tools_that_fit_are_shown_as_they_are() -> None:
    specs = (spec("a"), spec("b"))
    assert fit_specs(specs, counter=ByteCounter(), window=None) == specs


def test_tools_are_made_ready_once_and_again_when_one_of_them_changed() -> None:
    offers = Offers()
    first = offers.make((spec("b"), spec("a")))
    assert [one.name for one in first.specs] == ["a", "b"]
    assert offers.make((spec("b"), spec("a"))) is first
    other = offers.make((spec("b"), spec("a", names=2)))
    assert "a1" in other.specs[0].parameters["properties"]
    assert "a1" in other.each[0]
    assert "a1" in other.whole
    assert offers.make(()).specs == ()


def test_an_offer_that_fits_is_taken_as_it_is_and_another_is_shortened_without_changing_it() -> None:
    small, large = Offers().make([spec("a")]), Offers().make([spec("a", words=2000)])
    assert fit_offer(small, counter=ByteCounter(), window=None) is small
    shortened = fit_offer(large, counter=ByteCounter(), window=None)
    assert shortened.specs == fit_specs(large.specs, counter=ByteCounter(), window=None)
    assert len(shortened.whole) < MOST_TOOL_TOKENS < len(large.whole)
    # Each tool is within its own bound, but together they exceed the share of this window.
    many = Offers().make([spec(f"t{place}", words=500) for place in range(3)])
    told = fit_offer(many, counter=ByteCounter(), window=6_400)
    assert told.specs == fit_specs(many.specs, counter=ByteCounter(), window=6_400) != many.specs


def test_tools_that_fit_by_their_bytes_are_not_counted() -> None:
    class Uncounted(ByteCounter):
        def count_text(self, text: str) -> int:
            raise AssertionError(text)

    small = Offers().make([spec("a"), spec("é")])
    assert small.sizes == [len(text.encode()) for text in small.each]
    assert fit_offer(small, counter=Uncounted(), window=4 * sum(small.sizes)) is small
    with pytest.raises(AssertionError):
        fit_offer(small, counter=Uncounted(), window=4 * sum(small.sizes) - 4)


def test_a_schema_that_is_too_large_loses_its_words_first_and_says_so() -> None:
    (told,) = fit_specs([spec("a", words=2000)], counter=ByteCounter(), window=None)
    assert told.parameters == {
        "type": "object",
        "properties": {"a0": {"type": "string", "enum": ["description", "b"]}},
        "required": ["a0"],
    }
    assert told.description.startswith("Does it. (Its arguments are told in short")


def test_a_property_that_is_called_like_a_keyword_stays() -> None:
    schema = {"type": "object", "properties": {"description": {"type": "string", "title": "w" * 2000}}}
    one = ToolSpec(name="a", description="", parameters=schema)
    (told,) = fit_specs([one], counter=ByteCounter(), window=None)
    assert told.parameters == {"type": "object", "properties": {"description": {"type": "string"}}}


def test_then_all_but_names_and_types_go_and_then_those() -> None:
    many, most = spec("a", names=20), spec("b", names=200)
    told = fit_specs([many, most], counter=ByteCounter(), window=None)
    assert told[0].parameters["properties"]["a19"] == {"type": "string"}
    assert told[0].parameters["required"] == ["a0"]
    assert told[1].parameters == {"type": "object", "properties": {}}


def test_the_largest_tools_are_shortened_until_all_fit_their_share_of_the_window() -> None:
    specs = [spec("large", words=800), spec("small", words=300)]
    small = size(specs[1])
    told = fit_specs(specs, counter=ByteCounter(), window=4 * (small + 400))
    assert "told in short" in told[0].description
    assert told[1] == specs[1]


def test_tools_that_do_not_fit_without_their_schemas_are_refused_by_name_of_the_setting() -> None:
    specs = [spec(f"t{place}", description="d" * 300) for place in range(10)]
    with pytest.raises(ContextExhaustedError, match="10 tools take") as told:
        fit_specs(specs, counter=ByteCounter(), window=8192)
    assert "allow_tools" in told.value.remedy


@pytest.mark.slow
@given(
    properties=st.dictionaries(st.text(max_size=8), JSON, max_size=6),
    words=st.integers(0, 3000),
    arguments=st.dictionaries(st.text(max_size=8), JSON, max_size=4),
)
def test_whatever_a_schema_says_a_tool_stays_within_its_bound_and_no_call_is_newly_refused(
    properties: dict[str, Any], words: int, arguments: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": properties, "description": "w" * words}
    one = ToolSpec(name="a", description="", parameters=schema)
    (told,) = fit_specs([one], counter=ByteCounter(), window=None)
    assert len(json.dumps(told.parameters, ensure_ascii=False).encode()) <= MOST_TOOL_TOKENS <= MOST_OFFER_TOKENS
    try:
        right = Draft202012Validator(schema).is_valid(arguments)
    except Exception:  # noqa: BLE001 - only valid schemas can be compared
        return
    if right:
        assert Draft202012Validator(dict(told.parameters)).is_valid(arguments)


def calling(*, most: int = 3, is_budgets: bool = False, allowed: int | None = None) -> ToolUse:
    toolbox = Tools(tools=[Calculator()]).open_toolbox(max_calls=allowed)
    return ToolUse(tools=toolbox, most=most, is_budgets=is_budgets)


def call(expression: str, call_id: str = "x") -> ToolCall:
    return ToolCall(call_id=call_id, name="calculator", arguments_json=f'{{"expression": "{expression}"}}')


async def test_only_a_tool_that_could_not_do_its_work_has_failed() -> None:
    made = calling(most=9)
    for one in ("1 / 0", "4 * 25 cents", "100 + 5%"):
        await made.make(made.mint(call(one)))
    unknown = ToolCall(call_id="x", name="abacus", arguments_json="{}")
    misfit = ToolCall(call_id="x", name="calculator", arguments_json='{"sum": "1"}')
    for wrong in (unknown, misfit):
        result, note = await made.make(made.mint(wrong))
        assert result.is_error
        assert "what its error says" in note
    _, note = await made.make(made.mint(misfit))
    assert note.startswith("The same call was made before, as c5. Change")
    assert (made.made, made.failed) == (6, 1), "the division by zero"


async def test_the_same_call_is_told_the_second_time_and_refused_the_third() -> None:
    made = calling(most=9)
    notes = []
    for _ in range(3):
        result, note = await made.make(made.mint(call("1 + 1")))
        notes.append(note)
    assert notes[0] == notes[2] == ""
    assert "as c1" in notes[1]
    assert result.is_error
    assert (made.made, made.failed) == (2, 0), "a call that was refused has not failed"
    assert made.stop is not None
    assert made.stop.finish_reason is FinishReason.MAX_ITERATIONS


@pytest.mark.parametrize(
    ("is_budgets", "reason", "limit"),
    [
        (False, FinishReason.MAX_ITERATIONS, " max_tool_calls"),
        (True, FinishReason.BUDGET_EXHAUSTED, "budget.max_tool_calls"),
    ],
)
async def test_no_more_calls_are_made_than_allowed(*, is_budgets: bool, reason: FinishReason, limit: str) -> None:
    made = calling(most=1, is_budgets=is_budgets)
    assert made.stop is None
    first, _ = await made.make(made.mint(call("1 + 1")))
    second, _ = await made.make(made.mint(call("1 + 2")))
    assert (first.is_error, second.is_error, made.made) == (False, True, 1)
    assert made.stop is not None
    assert made.stop.finish_reason is reason
    assert limit in made.stop.warning


async def test_a_toolbox_that_allows_no_more_ends_the_calls() -> None:
    made = calling(allowed=1)
    await made.make(made.mint(call("1 + 1")))
    result, _ = await made.make(made.mint(call("1 + 2")))
    assert result.is_error
    assert made.stop is not None
    assert made.stop.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert made.stop.warning
    with pytest.raises(TokenBudgetExhaustedError):
        await made.tools.call(call("1 + 3"))


def test_ids_are_ours_and_texts_can_be_encoded() -> None:
    made = calling()
    assert made.mint(call("1", call_id="")).call_id == "c1"
    again = made.mint(ToolCall(call_id="c1", name="n\ud800" + "x" * 500, arguments_json="{}"))
    assert (again.call_id, len(again.name), again.name[:2]) == ("c2", 128, "n?")

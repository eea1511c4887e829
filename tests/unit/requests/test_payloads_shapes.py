from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.requests.payloads import ShapeError, check_shape, require_outcome, require_step
from reasond_server.strategies.strategy import Outcome, Step
from reasond_server.types import (
    BoundedContextMetrics,
    ChainOfThoughtMetrics,
    CustomMetrics,
    FinishReason,
    ReactStep,
    StepDetail,
    StrategyMetrics,
    Thought,
    ToolCall,
    ToolResult,
    WindowMetrics,
)
from tests.contract.values import CYCLE, DETAILS, METRICS, NODE, SAMPLE, WINDOW

HALF = "\ud800"
WINDOWS = METRICS[BoundedContextMetrics]
COT = METRICS[ChainOfThoughtMetrics]
assert isinstance(WINDOWS, BoundedContextMetrics)
LINE: WindowMetrics = WINDOWS.iterations[0]


def but(value: Any, **changes: Any) -> Any:
    """Return `value` with changed fields that a type checker would refuse."""
    return replace(value, **changes)


REFUSED: dict[str, tuple[Any, str]] = {
    "half a character in a call": (
        but(CYCLE, actions=(ToolCall(call_id="c1", name="n", arguments_json=HALF),)),
        "arguments_json is not valid Unicode",
    ),
    "half a character in the name of a tool": (
        but(CYCLE, actions=(ToolCall(call_id="c1", name=HALF, arguments_json="{}"),)),
        "name is not valid Unicode",
    ),
    "half a character in a result": (
        but(CYCLE, observations=(ToolResult(call_id="c1", result_json=HALF),)),
        "result_json is not valid Unicode",
    ),
    "half a character in a node": (but(NODE, answer=HALF), "answer is not valid Unicode"),
    "half a character in a sample": (but(SAMPLE, normalized_answer=HALF), "normalized_answer is not valid Unicode"),
    "half a character in what was dropped": (
        but(WINDOW, carryover_report=but(WINDOW.carryover_report, fallback_reason=HALF)),
        "fallback_reason is not valid Unicode",
    ),
    "a call that is none": (but(CYCLE, actions=("search",)), "actions is a str"),
    "calls that are a text": (but(CYCLE, actions="search"), "actions is no sequence"),
    "calls that are nothing": (but(CYCLE, actions=None), "actions is no sequence"),
    "a depth that is a text": (but(NODE, depth="1"), "depth is a str"),
    "a depth that is a truth value": (but(NODE, depth=True), "depth is a bool"),
    "a depth over 32 bits": (but(NODE, depth=2**31), "depth is too large a number"),
    "a number of tokens over 53 bits": (but(WINDOW, window_tokens=2**53), "window_tokens is too large a number"),
    "a score that is none": (but(NODE, score=math.nan), "score is no finite number"),
    "a temperature without end": (but(SAMPLE, temperature=math.inf), "temperature is no finite number"),
    "a score over every float": (but(NODE, score=10**400), "score is no finite number"),
    "a score that is a truth value": (but(NODE, score=True), "score is a bool"),
    "a truth value that is a number": (but(NODE, is_pruned=1), "is_pruned is a int"),
    "a mode that is a word": (but(WINDOW, carryover_mode="tail"), "carryover_mode is a str"),
    "reading that is none": (but(WINDOW, reading=3), "reading is a int"),
    "a time before the beginning": (
        but(WINDOWS, iterations=(but(LINE, execution_time_s=-1.0),)),
        "execution_time_s is no length of time",
    ),
    "a time that no message holds": (
        but(WINDOWS, iterations=(but(LINE, execution_time_s=1e300),)),
        "execution_time_s is no length of time",
    ),
    "a limit over 32 bits": (but(COT, max_tokens=2**31), "max_tokens is too large a number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_field_does_not_declare_or_no_transport_carries_is_refused_by_its_name(what: str) -> None:
    value, complaint = REFUSED[what]
    with pytest.raises(ShapeError, match=complaint):
        check_shape(value)


@pytest.mark.parametrize("value", [*DETAILS.values(), *METRICS.values()], ids=lambda value: type(value).__name__)
def test_every_kind_of_step_and_metrics_passes_as_it_is(value: StepDetail | StrategyMetrics) -> None:
    if not isinstance(value, CustomMetrics) and type(value).__name__ != "CustomStep":
        assert check_shape(value) is value


def test_whole_numbers_may_stand_for_floats() -> None:
    assert check_shape(but(NODE, score=1)).score == 1


def test_lists_are_kept_as_tuples_that_the_strategy_cannot_change() -> None:
    calls = [ToolCall(call_id="c1", name="n", arguments_json="{}")]
    kept = check_shape(ReactStep(thought="t", actions=calls))
    calls.clear()
    assert len(kept.actions) == 1


def test_lines_that_were_checked_with_the_step_before_are_not_checked_again() -> None:
    assert isinstance(WINDOWS, BoundedContextMetrics)
    # A line that was already checked is recognised by its identity, so an invalid one shows if it is checked again.
    bad = but(LINE, tokens="many")
    before = replace(WINDOWS, iterations=(bad,))
    grown = replace(WINDOWS, iterations=(bad, LINE))
    assert check_shape(grown, before=before) is grown
    with pytest.raises(ShapeError, match="tokens is a str"):
        check_shape(replace(WINDOWS, iterations=(LINE, bad)), before=before)
    with pytest.raises(ShapeError, match="tokens is a str"):
        check_shape(grown, before=COT)


def test_a_step_is_refused_in_the_name_of_its_strategy() -> None:
    with pytest.raises(InternalError, match="strategy 'mine' yielded a TreeStep that cannot be kept: depth is a str"):
        require_step(Step(detail=but(NODE, depth="x"), answer_found=False, metrics=COT), strategy="mine")
    with pytest.raises(InternalError, match="answer_found is neither True nor False"):
        require_step(Step(detail=Thought(text="x"), answer_found=but, metrics=COT), strategy="mine")  # type: ignore[arg-type]  # a wrong type is the case


def test_an_outcome_is_refused_for_its_metrics_too() -> None:
    ill = Outcome(answer="x", finish_reason=FinishReason.ANSWERED, metrics=but(COT, temperature=math.nan))
    with pytest.raises(InternalError, match="ChainOfThoughtMetrics that cannot be kept: temperature"):
        require_outcome(ill, strategy="mine")

"""The values that a strategy may put into a log, and the handling of errors that no transport could carry."""

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError
from reasond_server.errors.model import ModelFailedError
from reasond_server.requests.payloads import MAX_DEPTH, measure_depth, require_outcome, require_step, require_wrote
from reasond_server.runs.run_driver import make_carriable
from reasond_server.strategies.strategy import Outcome, Step, Wrote
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, ReactStep, Thought, ToolCall, ToolResult

LONE = "\ud800"
METRICS = CustomMetrics(data={"n": 1})
STEP = Step(detail=Thought(text="hm"), answer_found=False, metrics=METRICS)
OUTCOME = Outcome(answer="yes", finish_reason=FinishReason.ANSWERED, metrics=METRICS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("text", [LONE, 5, None, b"bytes"])
def test_only_text_can_be_written(text: Any) -> None:
    assert require_wrote(Wrote(text="é"), strategy="s") == Wrote(text="é")
    with pytest.raises(InternalError, match="strategy 's' yielded a Wrote that is no text"):
        require_wrote(Wrote(text=text), strategy="s")


@pytest.mark.parametrize("changes", [{"detail": "a text"}, {"metrics": {"n": 1}}, {"detail": None}])
def test_a_step_of_no_known_kind_is_refused(changes: dict[str, Any]) -> None:
    assert require_step(STEP, strategy="s") == (STEP.detail, STEP.metrics)
    with pytest.raises(InternalError, match="yielded a Step whose detail or metrics are of no known kind"):
        require_step(replace(STEP, **changes), strategy="s")


@pytest.mark.parametrize(
    "detail",
    [
        Thought(text=LONE),
        ReactStep(
            thought="",
            actions=[ToolCall(call_id="c", name="t", arguments_json=LONE)],
            observations=[ToolResult(call_id="c", result_json="{}")],
        ),
    ],
)
def test_a_text_that_is_no_unicode_is_found_wherever_it_stands(detail: Thought | ReactStep) -> None:
    with pytest.raises(
        InternalError, match=f"yielded a {type(detail).__name__} that cannot be kept: .* not valid Unicode"
    ):
        require_step(replace(STEP, detail=detail), strategy="s")


@given(st.dictionaries(st.text("ab", max_size=3), JSON, max_size=3))
def test_the_json_of_a_step_is_kept_as_a_copy(data: dict[str, Any]) -> None:
    kept, _ = require_step(replace(STEP, detail=CustomStep(data=data)), strategy="s")
    assert isinstance(kept, CustomStep)
    assert kept.data == data
    assert kept.data is not data
    assert measure_depth(data) <= MAX_DEPTH


@pytest.mark.parametrize("data", [None, [1], "text", MappingProxyType({})])
def test_what_is_no_object_of_json_is_refused(data: Any) -> None:
    with pytest.raises(InternalError, match="no JSON object"):
        require_step(replace(STEP, detail=CustomStep(data=data)), strategy="s")


class Word(str):
    __slots__ = ()


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**5000),
    st.floats(),
    st.text(),
    st.just(LONE),
    st.just(Word("w")),
)


@given(st.dictionaries(st.one_of(st.text(max_size=3), st.just(LONE), st.just(Word("k")), st.integers()), PLAIN))
def test_plain_json_is_kept_as_if_it_had_been_written_and_read(data: dict[Any, Any]) -> None:
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError:
        with pytest.raises(InternalError, match="no JSON object"):
            require_step(replace(STEP, detail=CustomStep(data=data)), strategy="s")
        return
    kept, _ = require_step(replace(STEP, detail=CustomStep(data=data)), strategy="s")
    assert isinstance(kept, CustomStep)
    assert repr(kept.data) == repr(json.loads(text))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answer": LONE}, "answer or warnings that are no text"),
        ({"answer": None}, "answer or warnings that are no text"),
        ({"warnings": ["fine", LONE]}, "answer or warnings that are no text"),
        ({"finish_reason": "answered"}, "a finish reason that no strategy may give"),
        ({"finish_reason": FinishReason.CANCELLED}, "a finish reason that no strategy may give"),
        ({"finish_reason": FinishReason.FAILED}, "a finish reason that no strategy may give"),
        ({"metrics": 7}, "metrics of no known kind"),
    ],
)
def test_an_outcome_that_no_strategy_may_give_is_refused(changes: dict[str, Any], told: str) -> None:
    assert require_outcome(OUTCOME, strategy="s") == OUTCOME
    with pytest.raises(InternalError, match=told):
        require_outcome(replace(OUTCOME, **changes), strategy="s")


@pytest.mark.parametrize("wait_s", [-1.0, float("nan"), float("inf"), 31 * 86_400.0])
def test_an_error_is_made_so_that_it_can_be_sent(wait_s: float) -> None:
    error = make_carriable(ModelFailedError(f"a{LONE}", remedy=LONE, metadata={LONE: 5}, retry_after_s=wait_s))  # type: ignore[dict-item]  # what a third party may do
    assert (error.message, error.remedy, error.metadata, error.retry_after_s) == ("a?", "?", {"?": "5"}, None)
    assert make_carriable(ModelFailedError("x", retry_after_s=3.0)).retry_after_s == 3.0

"""Every value that a log can hold is decoded as an equal value, and a value that cannot be read raises an error."""

import json
import traceback
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.stored.codec import (
    decode_event,
    decode_execution,
    detail_json,
    encode_event,
    encode_execution,
)
from reasond_server.types import (
    CustomStep,
    Execution,
    ExecutionStarted,
    Iteration,
    LoggedEvent,
    Result,
    StepDetail,
    StrategyMetrics,
    StrategySource,
    Thought,
)
from reasond_server.types.kinds import settle_sequences
from reasond_server.types.repairs import CritiqueStep, ReflectionStep, Repair, VoteStep
from tests.stores.logs import START, step

HOSTILE = st.sampled_from(["\x00", "\u2028", "</answer>", '"\\', "𝄞", "\ufeff", "é" * 300, "{}", "%s :x"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | HOSTILE
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**70), 2**70)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
LEAVES: Mapping[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: st.integers(0, 2**63),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    type(None): st.none(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of the type that `hint` declares."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in LEAVES:
        return LEAVES[hint]
    if origin in {types.UnionType, typing.Union}:
        return st.one_of([values_of(member) for member in arguments])
    if origin is Sequence:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXTS, JSON, max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    assert isinstance(hint, type)
    hints = typing.get_type_hints(hint, localns={"datetime": datetime})
    return st.builds(hint, **{field.name: values_of(hints[field.name]) for field in fields(hint)})


EVENTS = values_of(ExecutionStarted) | values_of(Iteration) | values_of(Result)


def round_trip(event: Any, time: datetime = START) -> LoggedEvent:
    return decode_event(7, encode_event(LoggedEvent(sequence=7, create_time=time, event=event)))


REPAIR_EVENTS = st.one_of([values_of(kind) for kind in (CritiqueStep, ReflectionStep, VoteStep, Repair)])


def list_items(value: Any) -> Any:
    """Return a value with lists in the place of its tuples."""
    if isinstance(value, tuple):
        return [list_items(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{each.name: list_items(getattr(value, each.name)) for each in fields(value)})


@pytest.mark.slow
@given(event=REPAIR_EVENTS)
def test_a_settled_event_is_as_it_comes_back(event: Any) -> None:
    assert settle_sequences(list_items(event)) == round_trip(list_items(event)).event == event


@given(event=EVENTS, time=LEAVES[datetime])
def test_every_event_comes_back_as_it_was(event: Any, time: datetime) -> None:
    logged = LoggedEvent(sequence=7, create_time=time, event=event)
    assert round_trip(event, time) == logged
    # What writes values by the types of their fields writes what those write that look at each value.
    assert json.loads(encode_event(logged))["body"] == json.loads(to_json(event, inf_nan_mode="constants"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", typing.get_args(StepDetail))
def test_every_kind_of_step_comes_back_as_it_was(kind: type) -> None:
    @given(detail=values_of(kind))
    def check(detail: Any) -> None:
        event = Iteration(index=0, answer_found=True, usage=step().usage, elapsed_s=0.5, detail=detail)
        assert round_trip(event).event == event

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", typing.get_args(StrategyMetrics))
def test_every_kind_of_metrics_comes_back_as_it_was(kind: type) -> None:
    @given(metrics=values_of(kind), result=values_of(Result))
    def check(metrics: Any, result: Any) -> None:
        event = _with_metrics(result, metrics)
        assert round_trip(event).event == event

    check()


@given(execution=values_of(Execution))
def test_every_execution_comes_back_as_it_was(execution: Execution) -> None:
    text = encode_execution(execution)
    assert decode_execution(text) == execution
    whole = json.loads(to_json(execution))
    assert {"session_id": "", **json.loads(text)["body"]} == whole


def test_read_only_tables_are_kept_as_tables() -> None:
    config = types.MappingProxyType({"a": (1, 2)})
    event = ExecutionStarted(strategy="s", strategy_source=_source(), model="m", config=config)
    assert round_trip(event).event == ExecutionStarted(
        strategy="s", strategy_source=_source(), model="m", config={"a": [1, 2]}
    )


def test_what_a_newer_release_wrote_is_refused_by_version() -> None:
    newer = encode_event(LoggedEvent(sequence=1, create_time=START, event=step())).replace('"v":1', '"v":2', 1)
    with pytest.raises(InternalError, match="has version 2, this release reads 1") as caught:
        decode_event(1, newer)
    assert "a later one" in caught.value.remedy
    with pytest.raises(InternalError, match="of no version that there was"):
        decode_execution("{}")


def test_fields_that_a_later_release_added_do_no_harm() -> None:
    text = encode_event(LoggedEvent(sequence=1, create_time=START, event=step()))
    assert decode_event(1, text.replace('"index":0', '"index":0,"added":{"x":1}')).event == step()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"v":1}',
        '{"v":1,"kind":"nope","of":"","at":"2026-11-21","body":{}}',
        '{"v":1,"kind":"iteration","of":"nope","at":"2026-11-21","body":{"detail":{}}}',
        '{"v":1,"kind":"started","of":"","at":"noon","body":{}}',
    ],
)
def test_rows_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InternalError, match="stored"):
        decode_event(1, text)
    with pytest.raises(InternalError, match="stored"):
        decode_execution(text)


@pytest.mark.parametrize(
    "text",
    [
        "SECRET",
        '{"v":"SECRET"}',
        '{"v":1,"kind":"SECRET","of":"","at":"2026-11-21","body":{}}',
        '{"v":1,"kind":"iteration","of":"SECRET","at":"2026-11-21","body":{"detail":{}}}',
        '{"v":1,"kind":"started","of":"","at":"SECRET","body":{"strategy_source":"SECRET"}}',
        '{"v":1,"body":{"state":"SECRET"}}',
    ],
)
def test_nothing_that_is_stored_is_told_of_a_row_that_cannot_be_read(text: str) -> None:
    for read in (lambda: decode_event(7, text), lambda: decode_execution(text)):
        with pytest.raises(InternalError) as caught:
            read()
        assert "SECRET" not in "".join(traceback.format_exception(caught.value))
        assert "SECRET" not in caught.value.full_message


def test_an_event_that_cannot_be_read_is_told_by_sequence_and_kind() -> None:
    with pytest.raises(InternalError, match=r"cannot be read \(KeyError\): sequence 7, kind iteration"):
        decode_event(7, '{"v":1,"kind":"iteration"}')


@pytest.mark.parametrize("data", [{"a": "\ud800"}, {"a": object()}, {"a": {"\ud800": 1}}])
def test_what_json_cannot_hold_is_refused(data: Any) -> None:
    event = Iteration(index=0, answer_found=True, usage=step().usage, elapsed_s=0, detail=CustomStep(data=data))
    with pytest.raises(InternalError, match="cannot be kept"):
        encode_event(LoggedEvent(sequence=1, create_time=START, event=event))


def test_a_kind_that_is_not_known_is_refused() -> None:
    with pytest.raises(InternalError, match="of no kind"):
        detail_json(typing.cast("StepDetail", START))


def test_steps_are_told_apart_by_kind_and_content() -> None:
    same = [detail_json(Thought(text="a")) for _ in range(2)]
    assert same[0] == same[1]
    assert detail_json(Thought(text="b")) not in same
    assert detail_json(CustomStep(data={"text": "a", "answer": ""})) not in same


def _source() -> StrategySource:
    return StrategySource.SYSTEM


def _with_metrics(result: Result, metrics: Any) -> Result:
    return replace(result, metrics=replace(result.metrics, strategy_specific=metrics))

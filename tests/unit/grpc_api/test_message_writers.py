"""A class that cannot fill its message is detected at the first value, before a client misses a field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from reasond.v1 import errors_pb2, execution_pb2, strategies_pb2
from reasond_server.grpc_api.message_writers import Alternatives, fill
from reasond_server.types import Json, Thought
from reasond_server.types.kinds import STEPS, Word

DETAIL = execution_pb2.Iteration.DESCRIPTOR.oneofs_by_name["detail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfAThought:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A value that does not fit its messages."""

    reason: Word = ""
    message: str = ""

    @property
    def usage(self) -> int:
        """A type from which no message can be built."""
        return 0

    @property
    def index(self) -> int:
        return 0

    @property
    def answer_found(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class OddBudget:
    max_total_tokens: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_elapsed_s: float | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OddStart:
    strategy: str
    strategy_source: Word
    model: Word
    config: Json


def test_a_class_that_has_nothing_for_a_field_is_refused() -> None:
    with pytest.raises(TypeError, match=r"HalfAThought has nothing for reasond\.v1\.Thought\.answer"):
        fill(strategies_pb2.Thought(), HalfAThought(text="t"))


def test_a_computed_message_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Iteration\.usage is computed"):
        fill(execution_pb2.Iteration(), Odd(reason="r", message="m"))


def test_what_is_no_kind_of_the_family_is_refused() -> None:
    with pytest.raises(TypeError, match="HalfAThought is no kind of step"):
        Alternatives(STEPS, DETAIL)[HalfAThought]


def test_a_function_is_made_once_for_each_class() -> None:
    alternatives = Alternatives(STEPS, DETAIL)
    assert alternatives[Thought] is alternatives[Thought]


@pytest.mark.parametrize(("word", "name"), [("MODEL_FAILED", "MODEL_FAILED"), ("never heard of", "INTERNAL")])
def test_a_reason_that_the_proto_does_not_know_counts_as_internal(word: str, name: str) -> None:
    message = fill(execution_pb2.ExecutionError(), Odd(reason=word, message="m"))
    assert message.reason == errors_pb2.ErrorReason.Value(f"ERROR_REASON_{name}")


def test_limits_that_are_not_set_are_left_out_and_lengths_of_time_are_durations() -> None:
    full = fill(execution_pb2.Budget(), OddBudget(max_total_tokens=0, max_tool_calls=0, max_elapsed_s=1.5))
    empty = fill(execution_pb2.Budget(), OddBudget())
    assert [field.name for field, _ in full.ListFields()] == ["max_total_tokens", "max_tool_calls", "max_elapsed"]
    assert full.max_elapsed.ToMilliseconds() == 1500
    assert empty.ListFields() == []


@pytest.mark.parametrize("has_content", [True, False])
def test_free_json_is_text_and_content_like_any_other(has_content: Any) -> None:
    start = OddStart(strategy="s", strategy_source="AGENT", model="m", config={"b": 1, "a": 2})
    message = fill(execution_pb2.ExecutionStarted(), start, has_content=has_content)
    assert (message.strategy, message.config_json) == (("s", '{"a":2,"b":1}') if has_content else ("", ""))
    assert message.strategy_source == execution_pb2.STRATEGY_SOURCE_AGENT

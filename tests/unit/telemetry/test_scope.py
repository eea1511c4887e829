"""The notes that an RPC takes of the executions that it begins, and their fields in its log lines."""

from __future__ import annotations

from typing import Any

from reasond_server.telemetry.scope import Scope, current, enter, get_current_trace, note_execution, note_result
from reasond_server.types import Usage


async def test_outside_of_rpcs_nothing_is_noted() -> None:
    note_execution("e")
    note_result(Usage(input_tokens=1), "answered", strategy="react")
    assert (current(), get_current_trace()) == (None, None)


async def test_executions_of_a_batch_are_noted_once_each_and_not_without_end() -> None:
    enter(scope := Scope())
    for number in (1, 1, *range(40)):
        note_execution(f"e{number:03}")
    assert scope.execution_id.split(",")[:2] == ["e001", "e000"]
    assert len(scope.execution_id.split(",")) == 20


async def test_tokens_of_a_batch_are_added() -> None:
    enter(scope := Scope())
    note_result(Usage(input_tokens=1, output_tokens=2), "answered", strategy="react")
    note_result(Usage(input_tokens=3, output_tokens=4), "truncated", strategy="mine")
    line: dict[str, Any] = {}
    scope.add_to(line)
    assert line == {"input_tokens": 4, "output_tokens": 6, "finish_reason": "truncated", "strategy": "mine"}


def test_without_a_trace_a_line_has_the_call_id_for_a_trace_id_or_one_made_of_it() -> None:
    found = []
    line: dict[str, Any]
    alone: dict[str, Any]
    for call_id, execution_id in (("ab" * 16, "e"), ("mine", "e"), ("mine", "f"), ("", "cd" * 16), ("0" * 32, "")):
        Scope(call_id=call_id, execution_id=execution_id).add_to(line := {})
        found.append(line["trace_id"])
    assert (found[0], found[3]) == ("ab" * 16, "cd" * 16)
    assert found[1] == found[2]
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") and set(one) != {"0"} for one in found)
    Scope().add_to(alone := {})
    assert alone == {}

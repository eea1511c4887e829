import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.task_checks import check_task, decode_task, digest_request
from reasond_server.runs.plan import encode_unresumable
from reasond_server.types import Budget, HistoryMessage, Speaker, Task, ToolCall, build_row, write_value


def say(text: str) -> HistoryMessage:
    return HistoryMessage(role=Speaker.USER, text=text)


def refusal(request_id: str = "", **fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as refused:
        check_task(Task(**{"query": "why?", **fields}), request_id=request_id)
    return refused.value.message.removeprefix("Request validation failed: ")


@pytest.mark.parametrize(
    "query", ["x", "x" * 100_000, "\U0001d538" * 100_000, "a\n\tb", "\u0645\u0631\u062d\u0628\u0627", "\u202eabc\u200b"]
)
def test_queries_up_to_the_limit_are_taken_in_every_script(query: str) -> None:
    check_task(Task(query=query, material="y" * 2_000_000), request_id="r-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": ""}, "query must be between 1 and 100000 characters"),
        ({"query": "x" * 100_001}, "query must be between 1 and 100000 characters"),
        ({"query": " \n\t"}, "query must be between 1 and 100000 characters, and not white space alone"),
        ({"query": "a\0b"}, "query must not hold NUL characters; the first is at position 1"),
        ({"query": "ab\ud800"}, "query must be valid Unicode; position 2 holds a lone surrogate"),
        ({"material": "é" * 1_000_001}, "material must be at most 2000000 bytes of UTF-8, got 2000002"),
        ({"material": "\0"}, "material must not hold NUL characters; the first is at position 0"),
        (
            {"strategy": "No-Such"},
            "strategy must begin with a-z or _ and have at most 64 of a-z, 0-9 and _, got 'No-Such'",
        ),
        (
            {"strategy": ""},
            "strategy must begin with a-z or _ and have at most 64 of a-z, 0-9 and _, got ''",
        ),
        (
            {"strategy": "7"},
            "strategy must begin with a-z or _ and have at most 64 of a-z, 0-9 and _, got '7'",
        ),
        (
            {"strategy": "a\n"},
            "strategy must begin with a-z or _ and have at most 64 of a-z, 0-9 and _, got 'a\\n'",
        ),
        ({"agent": "a" * 257}, "agent must be at most 256 characters, got 257"),
        ({"agent_capabilities": ["a"] * 101}, "agent_capabilities must have at most 100 entries, got 101"),
        ({"agent_capabilities": ["a" * 257]}, "agent_capabilities entries must be at most 256 characters, one has 257"),
        ({"budget": Budget(max_total_tokens=0)}, "budget.max_total_tokens must be at least 1, got 0"),
        ({"budget": Budget(max_model_calls=0)}, "budget.max_model_calls must be at least 1, got 0"),
        ({"budget": Budget(max_tool_calls=-1)}, "budget.max_tool_calls must be at least 0, got -1"),
        ({"budget": Budget(max_elapsed_s=0.0001)}, "budget.max_elapsed must be at least 1 ms, got 0.1 ms"),
        ({"budget": Budget(max_elapsed_s=float("nan"))}, "budget.max_elapsed must be at least 1 ms, got nan ms"),
        ({"budget": Budget(max_output_tokens=0)}, "budget.max_output_tokens must be at least 1, got 0"),
        ({"system": "s" * 100_001}, "system must be at most 100000 characters, got 100001"),
        ({"system": "\0"}, "system must not hold NUL characters; the first is at position 0"),
        ({"history": [say("x")] * 10_001}, "history must have at most 10000 messages, got 10001; leave the oldest out"),
        (
            {"history": [say("é" * 1_048_577)] * 2},
            "history must be at most 4194304 bytes of UTF-8 together, got 4194308; leave the oldest messages out",
        ),
        (
            {"history": [say("x"), say("")]},
            "history[1].text must be at least 1 character, got 0; leave an empty message out",
        ),
        ({"model": ""}, "model must be between 1 and 256 characters, got 0"),
        ({"stop": ["x"] * 9}, "stop must have at most 8 entries, got 9"),
        ({"stop": ["a", "b" * 101]}, "stop[1] must be between 1 and 100 characters, got 101"),
        (
            {"answer_schema": {"title": "é" * 40_000}},
            "answer_schema must be at most 65536 bytes of UTF-8, got 80013; shorten its descriptions",
        ),
        ({"request_id": "a b"}, "request_id must be at most 128 printable ASCII characters, got 'a b'"),
    ],
)
def test_what_is_out_of_bounds_is_named_with_the_bound(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == message


def test_a_configuration_is_nested_at_most_sixteen_levels_deep() -> None:
    deep: Any = 1
    for _ in range(16):
        deep = {"a": [1], "b": deep} if isinstance(deep, dict) else {"b": deep}
    check_task(Task(query="why?", config=deep))
    assert refusal(config={"a": [deep]}) == "config must be nested at most 16 levels deep"


def test_a_configuration_holds_at_most_ten_thousand_values() -> None:
    check_task(Task(query="why?", config={"a": {"b": [0] * 9_998}}))
    assert refusal(config={"a": {"b": [0] * 9_999}}) == "config must hold at most 10000 values, got 10001"


def test_everything_wrong_is_named_at_once() -> None:
    assert refusal(query="", request_id="x" * 129).count(";") == 1


def test_a_digest_tells_requests_apart() -> None:
    assert digest_request(Task(query="a", config={"x": 1, "y": 2})) == digest_request(
        Task(query="a", config={"y": 2, "x": 1})
    )
    assert digest_request(Task(query="a")) != digest_request(Task(query="b"))


def test_a_schema_is_nested_at_most_sixteen_levels_deep() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(16):
        schema = {"items": schema}
    assert refusal(answer_schema=schema).startswith("answer_schema must be nested at most 16 levels deep")


def test_a_plain_task_is_stored_without_options() -> None:
    assert build_row(Task(query="why?")) == {
        "query": "why?",
        "material": "",
        "strategy": None,
        "config": {},
        "agent": None,
        "agent_capabilities": (),
        "budget": {
            "max_total_tokens": None,
            "max_model_calls": None,
            "max_tool_calls": None,
            "max_elapsed_s": None,
            "max_output_tokens": None,
        },
    }


def test_a_stored_task_is_read_as_it_was() -> None:
    task = Task(
        query="why?",
        agent_capabilities=("a",),
        budget=Budget(max_output_tokens=9),
        system="Be brief.",
        history=(say("hi"), HistoryMessage(role=Speaker.ASSISTANT, text="hello")),
        model="fast",
        stop=("#",),
        answer_schema={"type": "integer"},
    )
    assert decode_task(json.loads(json.dumps(build_row(task), default=write_value))) == task


def test_each_option_tells_requests_apart() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"system": "x"},
        {"history": (say("x"),)},
        {"model": "x"},
        {"stop": ("x",)},
        {"answer_schema": {}},
        {"budget": Budget(max_output_tokens=1)},
    ]
    assert len({digest_request(Task(query="why?", **each)) for each in options}) == len(options)


def encode_plan_of(said: tuple[HistoryMessage, ...]) -> str:
    return encode_unresumable("", {"task": build_row(Task(query="why?", history=said))})


def count_calls(work: Callable[[], object]) -> int:
    """Return how many functions `work` calls, those of C included: the least of three times.

    What measures coverage takes its probes out of the code at some time, which are calls too.
    """
    counts = []
    for _ in range(3):
        calls = 0

        def note(_frame: object, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in {"call", "c_call"}

        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(None)
        counts.append(calls)
    return min(counts)


def test_a_long_history_costs_little_for_each_message_while_the_event_loop_waits() -> None:
    """Ten thousand messages took 0.2 s of its time in all."""
    said = tuple(HistoryMessage(role=Speaker.USER, text=f"message {number}") for number in range(1000))
    assert count_calls(lambda: check_task(Task(query="why?", history=said))) < 10 * len(said)
    assert count_calls(lambda: encode_plan_of(said)) < 3 * len(said)


def test_the_digest_of_a_history_is_that_of_all_its_fields() -> None:
    call = ToolCall(call_id="c1", name="clock", arguments_json="{}")
    task = Task(
        query="why?", history=(say("a"), HistoryMessage(role=Speaker.ASSISTANT, tool_calls=(call,))), stop=("x",)
    )
    text = json.dumps(asdict(task), sort_keys=True)
    assert digest_request(task) == hashlib.sha256(text.encode()).hexdigest()

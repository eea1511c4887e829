"""Limits of the requests of turns: each violation names the field, the value or its size, the limit and the remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.turns.policy import Mode, TurnPolicy
from reasond_server.turns.turn_requests import check_part, check_reentry_shape, check_start
from reasond_server.types import Budget, HistoryMessage, Speaker, ToolResult
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
)

POLICY = TurnPolicy(modes={"careful": Mode()}, max_client_tools=2)
SCHEMA = '{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'


def tool(name: str = "open_file", schema: str = SCHEMA, description: str = "Opens a file.") -> ClientTool:
    return ClientTool(name=name, description=description, parameters_json=schema)


def block(name: str = "editor", text: str = "t", scope: ContextScope = ContextScope.TURN) -> ContextBlock:
    return ContextBlock(name=name, scope=scope, text=text)


def problems_of(request_id: str = "", **parts: Any) -> dict[str, str]:
    """Return the violations of a start by field; none if it is accepted."""
    try:
        check_start(
            TurnStart(**{"message": "m", **parts}),
            policy=POLICY,
            server_tool_names={"calculator"},
            request_id=request_id,
        )
    except InvalidRequestError as error:
        return {violation.field: violation.description for violation in error.violations}
    return {}


def test_what_is_within_the_limits_is_accepted() -> None:
    assert not problems_of(
        request_id="r" * 128,
        message="x" * 100_000,
        session_id="chat/1:a~!",
        if_revision=0,
        material="m" * 2_000_000,
        mode="careful",
        client_tools=(tool(), tool("other-Tool_1", "")),
        context=(block(text="x" * 100_000), block("plan", "", ContextScope.SESSION)),
        budget=Budget(max_total_tokens=1, max_model_calls=1, max_tool_calls=0, max_elapsed_s=0.001),
    )


def message_of(text: str) -> HistoryMessage:
    return HistoryMessage(role=Speaker.USER, text=text)


def test_all_problems_of_a_start_are_named_at_once() -> None:
    found = problems_of(
        request_id="with blank",
        message=" ",
        session_id="s" * 129,
        if_revision=-1,
        material="m" * 2_000_001,
        mode="carefull",
        client_tools=(tool("no name"), tool("calculator")),
        context=(block(""),),
        budget=Budget(max_model_calls=0),
    )
    assert list(found) == [
        "message",
        "material",
        "session_id",
        "if_revision",
        "mode",
        "client_tools[0].name",
        "client_tools[1].name",
        "context[0].name",
        "budget.max_model_calls",
        "request_id",
    ]


@pytest.mark.parametrize(
    ("parts", "field", "says"),
    [
        ({"system": "x" * 100_001}, "system", "must be at most 100000 characters"),
        ({"history": (message_of("x"),) * 10_001}, "history", "must have at most 10000 messages, got 10001"),
        ({"history": (message_of(""),)}, "history[0].text", "must be at least 1 character, got 0"),
        ({"history": (message_of("x"),), "session_id": "s"}, "history", "must be empty with the session_id 's'"),
        ({"message": ""}, "message", "must be between 1 and 100000 characters"),
        ({"message": "x" * 100_001}, "message", "must be between 1 and 100000 characters"),
        ({"message": "a\0"}, "message", "must not hold NUL characters; the first is at position 1"),
        ({"session_id": "a b"}, "session_id", "must be at most 128 printable ASCII characters, got 'a b'"),
        ({"if_revision": 3}, "if_revision", "needs a session_id, whose revision it is"),
        ({"mode": ""}, "mode", "is no mode of this server, got ''; known are 'careful', 'default'"),
        ({"mode": "carefull"}, "mode", "is no mode of this server, got 'carefull'; did you mean 'careful'?"),
        (
            {"client_tools": (tool("a"), tool("b"), tool("c"))},
            "client_tools",
            "must have at most 2 entries, got 3; offer only those that are needed",
        ),
        (
            {"client_tools": (tool("a"),), "tool_choice": "b"},
            "tool_choice",
            "must be 'auto', 'none', 'required' or the name of a client tool, got 'b'; known are 'a'",
        ),
        ({"answer_schema_json": "[]"}, "answer_schema_json", "must be a JSON object, got '[]'"),
        ({"stop": ("",)}, "stop[0]", "must be between 1 and 100 characters, got 0"),
        ({"temperature": 3.0}, "temperature", "must be between 0 and 2, got 3.0"),
        (
            {"client_tools": (tool("calculator"),)},
            "client_tools[0].name",
            "'calculator' is a tool of this server; rename yours",
        ),
        (
            {"client_tools": (tool(), tool())},
            "client_tools[1].name",
            "'open_file' is the name of 2 client tools; rename all but one",
        ),
        (
            {"client_tools": (tool("n" * 129),)},
            "client_tools[0].name",
            "must have 1-128 of a-z, A-Z, 0-9, _ and -, got 'nnnnnnnn",
        ),
        (
            {"client_tools": (tool(description="x" * 20_001),)},
            "client_tools[0].description",
            "must be at most 20000 characters, got 20001",
        ),
        ({"client_tools": (tool(schema="[]"),)}, "client_tools[0].parameters_json", "must be the JSON Schema of an"),
        ({"context": (block(), block())}, "context[1].name", "'editor' is the name of 2 blocks; rename all but one"),
        ({"context": (block("n" * 65),)}, "context[0].name", "must be between 1 and 64 characters, got 65"),
        ({"context": (block(text=""),)}, "context[0].text", "must be between 1 and 100000 characters, got 0"),
        (
            {"context": tuple(block(str(n)) for n in range(65))},
            "context",
            "must have at most 64 entries, got 65; join some of them",
        ),
    ],
)
def test_each_limit_has_its_violation(parts: dict[str, Any], field: str, says: str) -> None:
    assert problems_of(**parts)[field].startswith(says)


def test_a_name_twice_is_named_at_both_places() -> None:
    assert problems_of(client_tools=(tool(), tool())).keys() == {"client_tools[0].name", "client_tools[1].name"}


def deep(levels: int) -> str:
    return '{"not":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "must be valid JSON"),
        ('{"minimum": NaN}', "must be valid JSON of finite numbers"),
        ('{"title": "\\ud800"}', "must be valid JSON of finite numbers and valid Unicode"),
        ('"object"', "must be the JSON Schema of an object"),
        ('{"type": "string"}', 'must have "type": "object"'),
        ('{"properties": []}', "must be a JSON Schema, but properties must be an object of schemas"),
        (
            '{"properties": {"a": {"type": "text"}}}',
            "must be a JSON Schema, but properties.a.type must be one of array",
        ),
        ('{"properties": {"a": 1}}', "must be a JSON Schema, but properties.a must be an object or a boolean, got 1"),
        ('{"required": ["a", "a"]}', "must be a JSON Schema, but required must be a list of different strings"),
        ('{"anyOf": []}', "must be a JSON Schema, but anyOf must be a list of schemas that is not empty"),
        ('{"anyOf": [{"minLength": -1}]}', "must be a JSON Schema, but anyOf[0].minLength must be a whole number"),
        (
            '{"properties": {"a": {"maximum": true}}}',
            "must be a JSON Schema, but properties.a.maximum must be a number",
        ),
        (deep(17), "must be nested at most 16 levels deep"),
        (deep(100_000), "must be at most 65536 bytes of UTF-8, got 800002; shorten its descriptions"),
        (deep(8_000), "must be"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_its_place(schema: str, says: str) -> None:
    assert problems_of(client_tools=(tool(schema=schema),))["client_tools[0].parameters_json"].startswith(says)


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "{}",
        '{"properties": {}, "x-anything": [1]}',
        deep(15),
        json.dumps(
            {"type": "object", "properties": {"a": {"enum": [1, None]}, "b": True}, "additionalProperties": False}
        ),
        '{"$defs": {"p": {"type": ["string", "null"], "maxLength": 5.0}}, "properties": {"a": {"$ref": "#/$defs/p"}}}',
    ],
)
def test_every_form_of_a_valid_schema_is_accepted(schema: str) -> None:
    assert not problems_of(client_tools=(tool(schema=schema),))


def test_a_reentry_needs_the_ids_that_say_what_it_is_about() -> None:
    check_reentry_shape(TurnReentry(turn_id="t", etag="e"))
    check_reentry_shape(TurnReentry(turn_id="t", etag="e", results=(ToolResult(call_id="c1", result_json=""),)))
    with pytest.raises(InvalidRequestError) as caught:
        check_reentry_shape(
            TurnReentry(
                turn_id="",
                etag="",
                results=(ToolResult(call_id="", result_json="1"),),
                decisions=(Decision(call_id="a b", is_approved=True, reason="x" * 1001),),
            )
        )
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["turn_id", "etag", "results[0].call_id", "decisions[0].call_id", "decisions[0].reason"]


def test_more_results_than_any_hand_off_has_calls_are_refused_without_a_look_at_each() -> None:
    results = [ToolResult(call_id="", result_json="1")] * 1001
    with pytest.raises(InvalidRequestError) as caught:
        check_reentry_shape(TurnReentry(turn_id="t", etag="e", results=results))
    (violation,) = caught.value.violations
    assert violation.field == "results"
    assert violation.description == "must have at most 1000 entries, got 1001; send one for each pending call"


@pytest.mark.parametrize(
    ("part", "max_bytes", "fields"),
    [
        (ResultPart(offset=-1, limit=-1), -1, ["offset", "limit", "max_bytes"]),
        (ResultPart(json_pointer="a"), 0, ["json_pointer"]),
        (ResultPart(contains=""), 0, ["contains"]),
        (ResultPart(contains="x" * 1001), 0, ["contains"]),
    ],
)
def test_a_part_that_cannot_exist_is_refused(part: ResultPart, max_bytes: int, fields: list[str]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_part(part, max_bytes=max_bytes)
    assert [violation.field for violation in caught.value.violations] == fields


def test_every_part_that_can_exist_is_accepted() -> None:
    for part in (ResultPart(), ResultPart(offset=5, limit=9), ResultPart(json_pointer=""), ResultPart(contains="x")):
        check_part(part, max_bytes=1)

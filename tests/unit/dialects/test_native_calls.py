"""Calls in the members of messages: pieces that belong together, arguments in any form, members that go back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.dialects.native_calls import NativeCalls, clean_arguments, clean_name, write_call

if TYPE_CHECKING:
    from reasond_server.types import ToolCall


def join(*pieces: dict[str, Any], may_be_cut: bool = False) -> list[ToolCall]:
    calls = NativeCalls()
    for piece in pieces:
        calls.add(piece, 0)
    return list(calls.take(may_be_cut=may_be_cut))


def piece(arguments: Any = "", name: str = "", call_id: str = "", **more: Any) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    "pieces",
    [
        [piece('{"a": 1}', "f", "x"), piece('{"a": 2}', "f", "y")],
        [piece('{"a": 1}', "f"), piece('{"a": 2}', "f")],
        [piece({"a": 1}, "f"), piece({"a": 2}, "f")],
        [piece('{"a"', "f", "x", index=0), piece('{"a": 2}', "f", "y", index=1), piece(": 1}", index=0)],
    ],
)
def test_several_calls_stay_several(pieces: list[dict[str, Any]]) -> None:
    found = join(*pieces)
    assert [json.loads(call.arguments_json) for call in found] == [{"a": 1}, {"a": 2}]
    assert len({call.call_id for call in found}) == 2


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("", "f", "x"), piece('{"a"'), piece(": 1}")],
        [piece("", "f", "x"), piece('{"a"', "f", "x"), piece(": 1}", "f", "x")],
        [piece('{"a"', "f", "x"), piece('{"a": 1}', "f", "x")],
        [piece('{"a": 1}', "f", "x"), piece('{"a": 1}', "f", "x")],
        [{"name": "f", "arguments": '{"a": 1}'}],
    ],
)
def test_pieces_of_one_call_are_joined_and_a_repetition_is_dropped(pieces: list[dict[str, Any]]) -> None:
    (call,) = join(*pieces)
    assert (call.name, json.loads(call.arguments_json)) == ("f", {"a": 1})


def test_a_cut_answer_has_only_the_calls_with_whole_arguments() -> None:
    pieces = [piece('{"a": 1}', "f", "x", index=0), piece('{"a": ', "g", "y", index=1)]
    assert [call.name for call in join(*pieces, may_be_cut=True)] == ["f"]
    assert [call.name for call in join(*pieces)] == ["f", "g"]


@pytest.mark.parametrize(
    "name", ["f", "functions.f", "f<|channel|>commentary", "functions.f:0", "default_api.f", " f ", "f()", "f\n"]
)
def test_names_lose_what_templates_put_around_them(name: str) -> None:
    assert clean_name(name) == "f"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": 1}, '{"a": 1}'),
        (None, "{}"),
        ("", "{}"),
        ("null", "{}"),
        ('{"a": 1,}', '{"a": 1}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("{'a': True}", '{"a": true}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ('{"a":1}', '{"a":1}'),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
    ],
)
def test_arguments_that_mean_an_object_become_one(arguments: object, text: str) -> None:
    assert clean_arguments(arguments) == text


def test_members_that_the_gateway_wants_back_go_back() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    (call,) = join(
        piece("{}", "f", "x", extra_content=signed) | {"function": {"name": "f", "arguments": "{}", "mark": 7}}
    )
    assert write_call(call) == {
        "id": "x",
        "type": "function",
        "function": {"name": "f", "arguments": "{}", "mark": 7},
        "extra_content": signed,
    }

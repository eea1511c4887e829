"""Functions as tools: their schemas, and the arguments and results of their calls."""

# The annotations stay values (no `from __future__`), because the functions are defined inside tests.

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import pytest

from reasond import ClientFunction, ToolArgumentsError, client_tool
from reasond.client_tools import build_decision, build_failure, build_result
from reasond.v1.strategies_pb2 import ToolCall
from reasond.v1.turns_pb2 import PendingCall


@dataclass
class Place:
    city: str
    floors: list[int] = field(default_factory=list)


class Options(TypedDict):
    depth: int
    unit: NotRequired[Literal["m", "km"]]


@dataclass
class Chain:
    rest: Optional["Chain"]


def pending(arguments: Any, call_id: str = "c1") -> PendingCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return PendingCall(call=ToolCall(call_id=call_id, tool="t", arguments_json=text), idempotency_key="key-1")


@client_tool
def find(
    where: Place,
    words: list[str],
    options: Options,
    mode: Literal["fast", "deep"] = "fast",
    weights: dict[str, float] | None = None,
    limit: Annotated[int, "Most hits."] = 3,
    *,
    exact: bool = False,
) -> str:
    """Find words
    in a place.

    Args:
        where: The place,
            with its floors.
        words: What to find.

    Returns:
        The hits.
    """
    return f"{where} {words} {options} {mode} {weights} {limit} {exact}"


def test_the_schema_comes_from_the_hints_and_the_docstring() -> None:
    place = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "floors": {"type": "array", "items": {"type": "integer"}}},
        "required": ["city"],
        "additionalProperties": False,
    }
    options = {
        "type": "object",
        "properties": {"depth": {"type": "integer"}, "unit": {"enum": ["m", "km"]}},
        "required": ["depth"],
        "additionalProperties": False,
    }
    weights = {"type": "object", "additionalProperties": {"type": "number"}}
    told = find.describe()
    assert (told.name, told.description) == ("find", "Find words in a place.")
    assert json.loads(told.parameters_json) == {
        "type": "object",
        "properties": {
            "where": {"description": "The place, with its floors.", **place},
            "words": {"description": "What to find.", "type": "array", "items": {"type": "string"}},
            "options": options,
            "mode": {"enum": ["fast", "deep"]},
            "weights": {"anyOf": [weights, {"type": "null"}]},
            "limit": {"type": "integer", "description": "Most hits."},
            "exact": {"type": "boolean"},
        },
        "required": ["where", "words", "options"],
        "additionalProperties": False,
    }


def test_arguments_become_what_the_function_declares() -> None:
    arguments = {"where": {"city": "B", "floors": [1.0]}, "words": [], "options": {"depth": 2}, "weights": {"a": 1}}
    found = find.read_arguments(pending(arguments))
    assert found == {
        "where": Place(city="B", floors=[1]),
        "words": [],
        "options": {"depth": 2},
        "weights": {"a": 1.0},
    }
    assert isinstance(found["where"].floors[0], int)
    assert find(**found).startswith("Place(city='B'")


def test_all_that_does_not_fit_is_named_at_once() -> None:
    arguments = {
        "where": {"town": "B", "floors": ["x"]},
        "words": "w",
        "mode": "slow",
        "limit": True,
        "exact": 1,
        "weights": {"a": "b"},
        "more": 1,
    }
    with pytest.raises(ToolArgumentsError) as caught:
        find.read_arguments(pending(arguments))
    for problem in (
        "options is required",
        "more is not known; known are where, words, options, mode, weights, limit, exact",
        "where.city is required",
        "where.town is not known; known are city, floors",
        "where.floors[0] must be a whole number, got 'x'",
        "words must be a list, got 'w'",
        "mode must be one of 'fast', 'deep', got 'slow'",
        "weights.a must be a number, got 'b'",
        "limit must be a whole number, got True",
        "exact must be true or false, got 1",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", "null"])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(ToolArgumentsError, match="must be a JSON object"):
        find.read_arguments(pending(text))


def test_the_key_of_the_call_is_given_to_whoever_declares_it_and_hidden_from_the_model() -> None:
    @client_tool(name="pay", description="Pays.")
    async def transfer(amount: int, idempotency_key: str) -> str:
        return f"{amount} {idempotency_key}"

    assert transfer.is_async
    assert (transfer.name, transfer.description) == ("pay", "Pays.")
    assert list(transfer.parameters["properties"]) == transfer.parameters["required"] == ["amount"]
    arguments = transfer.read_arguments(pending({"amount": 5}))
    assert arguments == {"amount": 5, "idempotency_key": "key-1"}
    assert asyncio.run(transfer(**arguments)) == "5 key-1"


def take_untyped(x) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - what is refused
    del x


def take_many(*x: int) -> None:
    del x


def take_date(x: date) -> None:
    del x


def take_either(x: int | str) -> None:
    del x


def take_keyed(x: dict[int, str]) -> None:
    del x


def take_endless(x: Chain) -> None:
    del x


def take_nested(x: list[set[int]]) -> None:
    del x


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (take_untyped, "the parameter 'x' of take_untyped has no type"),
        (take_many, "the parameter 'x' of take_many must be one that can be passed by name"),
        (take_date, "the parameter 'x' of take_date has the type date, which is not supported; use str, int"),
        (take_either, "the parameter 'x' of take_either is a union of 2 types; use str, int"),
        (take_keyed, "the parameter 'x' of take_keyed has the type dict"),
        (take_endless, "rest of Chain has the type Chain, which holds itself"),
        (take_nested, "an item of the parameter 'x' of take_nested has the type set"),
        (lambda: None, "the name of a tool must have 1-128 of"),
    ],
)
def test_what_cannot_be_described_is_refused_at_the_decoration(function: Callable[..., Any], says: str) -> None:
    with pytest.raises(TypeError) as caught:
        client_tool(function)
    assert str(caught.value).startswith(says)


def test_a_result_is_json_and_a_failure_says_what_happened() -> None:
    assert build_result(pending({}), {"at": Place(city="Ü")}).result_json == '{"at": {"city": "Ü", "floors": []}}'
    for odd in (object(), float("nan"), {1, 2}, "\ud800"):
        result = build_result(pending({}), odd)
        assert result.is_error
        assert "that is no JSON" in result.result_json
    failed = build_failure(pending({}), "no\ud800" + "x" * 3000)
    assert (failed.call_id, failed.is_error) == ("c1", True)
    assert json.loads(failed.result_json)["error"].startswith("no?xx")
    assert len(json.loads(failed.result_json)["error"]) == 2000


def test_a_decision_is_yes_no_or_the_reason_against() -> None:
    made = [build_decision(pending({}), said) for said in (True, False, "too late")]
    assert [(one.is_approved, one.reason) for one in made] == [(True, ""), (False, ""), (False, "too late")]


def test_a_tool_is_still_its_function() -> None:
    assert isinstance(find, ClientFunction)
    assert repr(find) == "<client tool find>"

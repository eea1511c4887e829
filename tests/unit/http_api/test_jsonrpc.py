"""Every row of the JSON-RPC table, against the pure function, without HTTP and without the methods of reasond."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.request import ParseError
from reasond_server.http_api.http_calls import build_error_object
from reasond_server.http_api.jsonrpc import MAX_ANSWER_BYTES, MAX_DEPTH, MAX_VALUES, RpcParams, dispatch, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.errors.base import ReasondError


class Echo:
    """Answers with the method and its params; records which methods began and the order in which they ended."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.two_began = asyncio.Event()

    async def call(self, method: str, params: RpcParams) -> Mapping[str, Any]:
        self.began.append(method)
        if len(self.began) == 2:
            self.two_began.set()
        if method.startswith("release "):
            self.gates[method.removeprefix("release ")].set()
        if method in self.gates:
            await self.gates[method].wait()
        self.ended.append(method)
        if method == "fail":
            return {"error": {"code": -32603, "message": "it failed"}}
        if method == "unfit":
            return {"result": object()}
        if method == "large":
            return {"result": "x" * MAX_ANSWER_BYTES}
        return {"result": [method, params]}

    def refuse(self, error: ReasondError) -> Mapping[str, Any]:
        return build_error_object(error, call_id="r1")


def encode(payload: object) -> bytes:
    return json.dumps(payload).encode()


async def answer_to(payload: object, handler: Echo | None = None) -> Any:
    body = payload if isinstance(payload, bytes) else encode(payload)
    answer = await dispatch(body, handler or Echo())
    return None if answer is None else json.loads(answer)


def request(method: str = "echo", **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **members}


async def test_a_request_is_answered_with_its_result_and_id() -> None:
    assert await answer_to(request(params={"a": 1}, id=7)) == {
        "jsonrpc": "2.0",
        "result": ["echo", {"a": 1}],
        "id": 7,
    }


async def test_params_may_be_left_out_or_positional_as_far_as_the_protocol_goes() -> None:
    assert (await answer_to(request(id=1)))["result"] == ["echo", {}]
    assert (await answer_to(request(id=1, params=[1, 2])))["result"] == ["echo", [1, 2]]


@pytest.mark.parametrize("rpc_id", [0, -5, 10**30, "", "a", "ü\u2028", None])
async def test_every_valid_id_is_echoed(rpc_id: object) -> None:
    answer = await answer_to(request(id=rpc_id))
    assert answer["id"] == rpc_id
    assert "result" in answer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b"{}{}",
        b"[1,]",
        b'{"a":"\xff"}',
        b"\xef\xbb\xbf{}",
        b"[" * 300 + b"]" * 300,
        b"9" * 5000,
        b"NaN",
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":[-1e999]}',
        b'"\\ud800"',
        b'{"a":"\\udc00x"}',
    ],
)
async def test_what_is_not_json_is_a_parse_error_with_id_null(body: bytes) -> None:
    answer = await answer_to(body)
    assert answer["error"]["code"] == -32700
    assert answer["error"]["data"]["reason"] == "PARSE_ERROR"
    assert answer["error"]["message"].startswith("Parse error: ")
    assert answer["id"] is None


async def test_a_parse_error_says_where_but_repeats_nothing_of_the_body() -> None:
    answer = await answer_to(b'{"secret": tok-123}')
    assert answer["error"]["message"] == "Parse error: the body is not valid JSON (at line 1 column 13)"


@pytest.mark.parametrize(
    ("entry", "echoed"),
    [
        (1, None),
        ("x", None),
        (None, None),
        (True, None),
        ({"method": "echo", "id": 3}, 3),
        ({"jsonrpc": "1.0", "method": "echo", "id": "three"}, "three"),
        ({"jsonrpc": 2.0, "method": "echo", "id": 3}, 3),
        ({"jsonrpc": "2.0", "id": 3}, 3),
        ({"jsonrpc": "2.0", "method": 1, "params": "bar"}, None),
        (request(params="text", id=3), 3),
        (request(params=None, id=3), 3),
        (request(params=1, id=None), None),
        (request(id=True), None),
        (request(id=[1]), None),
        (request(id={"a": 1}), None),
        (request(id=1.5), None),
        (request(id=1.0), None),
    ],
)
async def test_what_is_not_a_request_is_refused_and_a_valid_id_is_echoed(entry: object, echoed: object) -> None:
    echo = Echo()
    answer = await answer_to(entry, echo)
    assert answer["error"]["code"] == -32600
    assert answer["error"]["data"]["reason"] == "INVALID_JSONRPC"
    assert answer["error"]["message"].startswith("Invalid Request: ")
    assert answer["id"] == echoed
    assert echo.began == []


async def test_of_two_members_with_one_name_the_last_counts() -> None:
    answer = await answer_to(b'{"jsonrpc":"2.0","method":"one","method":"two","id":1,"id":2}')
    assert answer == {"jsonrpc": "2.0", "result": ["two", {}], "id": 2}


async def test_members_that_the_specification_does_not_name_are_ignored() -> None:
    assert (await answer_to(request(id=1, meta={"a": 1})))["result"] == ["echo", {}]


async def test_an_empty_batch_is_one_refusal() -> None:
    answer = await answer_to([])
    assert (answer["error"]["code"], answer["id"]) == (-32600, None)


async def test_a_batch_of_nonsense_is_one_refusal_each() -> None:
    answer = await answer_to([1, 2, 3])
    assert [(each["error"]["code"], each["id"]) for each in answer] == [(-32600, None)] * 3


async def test_a_batch_is_answered_in_order_without_its_notifications() -> None:
    answer = await answer_to(
        [request("a", id=1), request("b"), {"foo": "boo"}, request("fail", id="x"), request("c", id=None)]
    )
    assert [(each["id"], "result" in each) for each in answer] == [
        (1, True),
        (None, False),
        ("x", False),
        (None, True),
    ]


async def test_one_bad_entry_does_not_spoil_its_batch() -> None:
    answer = await answer_to([request("a", id=1), 5])
    assert answer[0]["result"] == ["a", {}]
    assert answer[1]["error"]["code"] == -32600


async def test_a_batch_runs_concurrently_and_still_answers_in_order() -> None:
    echo = Echo()
    echo.gates = {"first": asyncio.Event()}
    async with asyncio.timeout(120):
        answer = await answer_to([request("first", id=1), request("release first", id=2)], echo)
    assert [each["id"] for each in answer] == [1, 2]
    assert echo.ended == ["release first", "first"]


async def test_a_batch_of_notifications_has_no_answer_but_runs() -> None:
    echo = Echo()
    assert await answer_to([request("a"), request("fail")], echo) is None
    assert echo.ended == ["a", "fail"]


async def test_a_notification_runs_and_is_never_answered_not_even_with_an_error() -> None:
    echo = Echo()
    assert await answer_to(request("fail"), echo) is None
    assert await answer_to(request("unfit"), echo) is None
    assert echo.ended == ["fail", "unfit"]


async def test_a_batch_over_the_limit_is_one_refusal_and_runs_nothing() -> None:
    echo = Echo()
    answer = await answer_to([request(id=number) for number in range(21)], echo)
    assert answer["error"]["code"] == -32600
    assert "1 to 20 entries, not 21" in answer["error"]["message"]
    assert echo.began == []


async def test_the_limit_of_a_batch_is_the_operators() -> None:
    body = encode([request(id=1), request(id=2)])
    answer = await dispatch(body, Echo(), max_batch=1)
    assert answer is not None
    assert json.loads(answer)["error"]["code"] == -32600


async def test_cancelling_cancels_every_call_of_a_batch() -> None:
    echo = Echo()
    echo.gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    running = asyncio.create_task(answer_to([request("a", id=1), request("b", id=2)], echo))
    await asyncio.wait_for(echo.two_began.wait(), 120)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert echo.ended == []


def test_nesting_is_bounded() -> None:
    assert parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    deep = b'{"a":' * MAX_DEPTH + b"[]" + b"}" * MAX_DEPTH
    with pytest.raises(ParseError, match="nested deeper than 32 levels"):
        parse(deep)


def test_brackets_inside_texts_are_not_nesting() -> None:
    assert parse(encode({"material": "[{" * 10_000})) == {"material": "[{" * 10_000}


def test_the_number_of_values_is_bounded() -> None:
    assert len(parse(b"[" + b"0," * (MAX_VALUES - 1) + b"0]")) == MAX_VALUES
    with pytest.raises(ParseError, match="more than 100000 values"):
        parse(b"[" + b"0," * MAX_VALUES + b"0]")


def test_the_largest_text_of_a_request_is_parsed() -> None:
    astral = json.dumps({"query": "\U0001f600" * 100_000}).encode()
    assert len(astral) > 1_200_000
    assert len(parse(astral)["query"]) == 100_000


async def test_an_answer_that_json_cannot_hold_is_an_internal_error_of_its_call_alone() -> None:
    answer = await answer_to([request("unfit", id=1), request("echo", id=2)])
    assert answer[0] == {
        "jsonrpc": "2.0",
        "error": {
            "code": -32603,
            "message": "internal error",
            "data": {"reason": "INTERNAL", "grpc_code": "INTERNAL", "request_id": "r1"},
        },
        "id": 1,
    }
    assert answer[1]["result"] == ["echo", {}]


async def test_an_answer_over_the_limit_is_refused_with_its_size() -> None:
    answer = await answer_to(request("large", id=1))
    assert answer["error"]["data"]["reason"] == "INVALID_REQUEST"
    assert f"over the limit of {MAX_ANSWER_BYTES}" in answer["error"]["message"]


async def test_numbers_that_are_not_finite_are_answered_as_null() -> None:
    class Infinite(Echo):
        async def call(self, method: str, params: RpcParams) -> Mapping[str, Any]:
            del method, params
            return {"result": {"score": float("inf")}}

    assert (await answer_to(request(id=1), Infinite()))["result"] == {"score": None}

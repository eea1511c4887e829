"""Bad input over both wires, on a whole server with real sockets: a clear error or an answer, and no harm to others."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from grpc_status import rpc_status

from reasond.v1 import execution_pb2, reasoning_service_pb2
from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.assembly.app import Listening

MOST = 100_000
SOON = 120.0
REASON = "/reasond.v1.ReasoningService/Reason"
SCRIPTS = {
    "Latin": "a",
    "Greek": "\u03bb",
    "Cyrillic": "\u0436",
    "Hebrew": "\u05d0",
    "Arabic": "\u0639",
    "Devanagari": "\u0915\u094d",
    "Thai": "\u0e01\u0e49",
    "Hangul": "\ud55c",
    "Han": "\u6f22",
    "Han outside the first plane": "\U00020000",
    "emoji of several parts": "\U0001f469\u200d\U0001f680",
    "combining marks": "e\u0301\u0323",
    "ligatures that NFKC unfolds": "\ufdfa",
}


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    model = FunctionModel(lambda _: "<answer>42</answer>")
    async with running_server(model=model) as listening:
        yield listening


class Wires:
    """Calls a server over one wire; `reason` is that of the error, empty if there is an answer."""

    def __init__(self, server: Listening) -> None:
        self.server = server

    async def grpc(self, query: str | bytes) -> tuple[str, str]:
        content = query if isinstance(query, bytes) else _message(query)
        return await self.raw(content)

    async def raw(self, content: bytes, *, metadata: tuple[tuple[str, str], ...] = ()) -> tuple[str, str]:
        options = [("grpc.max_metadata_size", 1 << 20), ("grpc.absolute_max_metadata_size", 1 << 20)]
        async with grpc.aio.insecure_channel(self.server.grpc, options=options) as channel:
            call: Any = channel.unary_unary(REASON)
            sent = (("authorization", f"Bearer {self.server.token}"), *metadata)
            try:
                await call(content, metadata=sent, timeout=SOON)
            except grpc.aio.AioRpcError as error:
                return _reason_of(error), str(error.details())
        return "", ""

    async def jsonrpc(self, query: str) -> tuple[str, str]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {"query": query}}
        return await self.body(json.dumps(body).encode())

    async def body(self, content: bytes, **headers: str) -> tuple[str, str]:
        named = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.server.token}",
            **headers,
        }
        async with make_http_client(timeout=SOON, trust_env=False) as client:
            response = await client.post(f"{self.server.http}/api/v1/jsonrpc", content=content, headers=named)
        if response.status_code != 200:
            return str(response.status_code), response.text
        found = response.json()
        if isinstance(found, list):
            found = found[0]
        error = found.get("error")
        return (error["data"]["reason"], error["message"]) if error else ("", "")

    async def require_alive(self) -> None:
        """Fail unless both wires answer an ordinary question."""
        assert await self.grpc("What is six times seven?") == ("", "")
        assert await self.jsonrpc("What is six times seven?") == ("", "")


@pytest.fixture
async def wires(server: Listening) -> AsyncIterator[Wires]:
    asked = Wires(server)
    yield asked
    await asked.require_alive()


def _message(query: str) -> bytes:
    request = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query=query))
    return request.SerializeToString()


def _reason_of(error: grpc.aio.AioRpcError) -> str:
    """Return the reason in the details of our error, or the name of the status code if grpc itself made the error."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # made for sync calls, reads the same fields
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status else ():
        detail.Unpack(info)
    return info.reason or error.code().name


@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_query_of_100000_characters_works_in_every_script_and_one_more_is_refused(
    wires: Wires, script: str
) -> None:
    unit = SCRIPTS[script]
    text = (unit * MOST)[:MOST]
    over = f"{text[:-1]}ab"
    for ask in (wires.grpc, wires.jsonrpc):
        assert await ask(text) == ("", "")
        reason, message = await ask(over)
        assert reason == "INVALID_REQUEST"
        assert "between 1 and 100000 characters" in message


@pytest.mark.parametrize(
    "text",
    [
        "\u202eabc\u202c \u2066def\u2069",
        "a\u200bb\u200dc\ufeffd\u2060",
        "\U000e0041\U000e0042",
        "\ufdd0\uffff",
        "\x01\x07\x1b[31m\x7f",
        "a\u0085b\u2028c\u2029d",
    ],
    ids=lambda text: unicodedata.name(text[0], f"U+{ord(text[0]):04X}"),
)
async def test_bidi_zero_width_and_control_characters_are_text_like_any_other(wires: Wires, text: str) -> None:
    assert await wires.grpc(text) == ("", "")
    assert await wires.jsonrpc(text) == ("", "")


async def test_nul_is_refused_with_its_position_over_both_wires(wires: Wires) -> None:
    for ask in (wires.grpc, wires.jsonrpc):
        reason, message = await ask("ab\0c")
        assert reason == "INVALID_REQUEST"
        assert "NUL" in message
        assert "position 2" in message


async def test_a_lone_surrogate_is_refused_over_both_wires(wires: Wires) -> None:
    as_utf8 = b"a\xed\xa0\x80b"
    task = b"\x0a" + bytes((len(as_utf8),)) + as_utf8
    reason, message = await wires.grpc(b"\x0a" + bytes((len(task),)) + task)
    assert (reason, "UTF-8" in message) == ("INVALID_REQUEST", True)
    assert (await wires.jsonrpc("a\ud800b"))[0] == "PARSE_ERROR"


@pytest.mark.parametrize(
    "content",
    [
        b'{"jsonrpc":"2.0","id":NaN,"method":"a"}',
        b'{"id":Infinity}',
        b'{"id":1e999}',
        b'{"id":' + b"9" * 4301 + b"}",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b"[" * 33 + b"]" * 33,
        b"[" + b"[]," * 100_000 + b"[]]",
        b'{"a":{' + b",".join(b'"a":0' for _ in range(100_001)) + b"}}",
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b'"' * 1_000_001,
        b"",
    ],
    ids=lambda content: content[:12].decode("latin-1") or "empty",
)
async def test_a_body_that_is_no_json_of_ours_is_a_parse_error(wires: Wires, content: bytes) -> None:
    reason, message = await wires.body(content)
    assert reason == "PARSE_ERROR"
    assert len(message) < 200


async def test_the_last_of_duplicate_members_counts(wires: Wires) -> None:
    head = b'{"jsonrpc":"2.0","id":1,"method":"no.such","method":"reasoning.execute","params":{"query":"","query":'
    assert await wires.body(head + b'"q"}}') == ("", "")


@pytest.mark.parametrize("number", [2**53, 2**63, -(2**53), 10**4299], ids=["2^53", "2^63", "-2^53", "4300 digits"])
async def test_whole_numbers_past_what_every_reader_holds_are_refused(wires: Wires, number: int) -> None:
    params = {"query": "q", "budget": {"max_total_tokens": 0}}
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params})
    reason, message = await wires.body(text.replace(": 0}", f": {number}}}").encode())
    assert reason == "INVALID_REQUEST"
    assert "budget.max_total_tokens" in message
    assert len(message) < 1000


@pytest.mark.parametrize("entries", [0, 21, 50_000])
async def test_a_batch_of_too_many_or_none_is_one_refusal(wires: Wires, entries: int) -> None:
    reason, message = await wires.body(b"[" + b",".join([b"1"] * entries) + b"]")
    assert reason == "INVALID_JSONRPC"
    assert f"1 to 20 entries, not {entries}" in message


async def test_a_body_over_the_limit_is_refused_by_its_size(wires: Wires) -> None:
    reason, message = await wires.body(b'"' + b"a" * (8 * 1024 * 1024) + b'"')
    assert reason == "413"
    assert "max_http_body_bytes" in message


async def test_http_headers_over_the_limit_are_refused(wires: Wires) -> None:
    reason, _ = await wires.body(b"{}", **{"x-large": "y" * 70_000})
    assert reason == "431"


async def test_a_message_over_the_limit_and_metadata_over_theirs_are_refused(wires: Wires) -> None:
    assert (await wires.raw(bytes(4 * 1024 * 1024 + 1)))[0] == "RESOURCE_EXHAUSTED"
    assert (await wires.raw(_message("q"), metadata=(("x-large", "y" * 70_000),)))[0] == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b"\xff" * 1000, "are not a message"),
        (b"\x0a\xff\xff\xff\xff\x0f", "are not a message"),
        (b"\x0b" * 40_000, "are not a message"),
        # Groups that begin and never end: the limit of fields is reached before their ends are missed.
        (b"\x0b" * 500_000, "hold more than 50000 fields"),
    ],
)
async def test_garbage_for_a_message_is_the_callers_mistake(wires: Wires, content: bytes, mistake: str) -> None:
    reason, message = await wires.raw(content)
    assert reason == "INVALID_REQUEST"
    assert f"the {len(content)} bytes of the request {mistake}" in message


async def test_a_config_of_many_values_is_refused_over_both_wires(wires: Wires) -> None:
    values = list(range(10_001))
    task = execution_pb2.ReasoningTask(query="q", strategy="mine")
    task.custom.update({"x": values})
    over_grpc = await wires.grpc(reasoning_service_pb2.ReasonRequest(task=task).SerializeToString())
    params = {"query": "q", "strategy": "mine", "strategy_config": {"x": values}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params})
    for reason, message in (over_grpc, await wires.body(body.encode())):
        assert reason == "INVALID_REQUEST"
        assert "at most 10000 values" in message


async def test_many_capabilities_are_counted_and_not_repeated(wires: Wires) -> None:
    task = execution_pb2.ReasoningTask(query="q", agent_capabilities=[""] * 1_000_000)
    reason, message = await wires.raw(reasoning_service_pb2.ReasonRequest(task=task).SerializeToString())
    assert (reason, len(message) < 1000) == ("INVALID_REQUEST", True)


async def test_many_callers_with_bad_input_are_each_answered(server: Listening) -> None:
    asked = Wires(server)
    bad = [asked.jsonrpc("a\0b"), asked.grpc("a\0b"), asked.body(b"["), asked.raw(b"\xff")]
    again = [asked.jsonrpc("a\0b"), asked.grpc("a\0b"), asked.body(b"["), asked.raw(b"\xff")]
    found = await asyncio.gather(*bad, *again)
    assert all(reason in {"INVALID_REQUEST", "PARSE_ERROR"} for reason, _ in found)
    await asked.require_alive()

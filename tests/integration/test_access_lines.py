"""The log of a real server at debug level: one line per request, whatever its outcome, without any content."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc

from reasond import AsyncClient, ReactConfig
from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from tests.engines.served import Served, serving
from tests.faults.upstream import Conversation, chunk, event, streaming, upstream, usage
from tests.http_clients import make_http_client
from tests.integration.test_tools import over_http

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

QUESTION = "wEaThEr-question-of-this-test"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SERVICE = "/reasond.v1.ReasoningService/"
ANSWER = streaming(chunk("<answer>42"), chunk(finish="stop"), usage(11, 4))


class Backend:
    """Answers; waits if the question contains HOLD, and fails with the question in the error if it contains FAIL."""

    def __init__(self) -> None:
        self.held = asyncio.Event()

    async def __call__(self, conversation: Conversation) -> None:
        asked = conversation.body.decode()
        if "HOLD" in asked:
            self.held.set()
            await conversation.until_gone()
        elif "FAIL" in asked:
            told = {"error": {"message": f"{QUESTION} is no good", "type": "bad_request", "param": QUESTION}}
            await conversation.answer("400 Bad Request", json.dumps(told).encode())
        else:
            await ANSWER(conversation)


def task(*words: str) -> execution_pb2.ReasoningTask:
    return execution_pb2.ReasoningTask(query=" ".join((QUESTION, *words)), strategy="chain_of_thought")


def _as_it_is(content: bytes) -> bytes:
    return content


async def call_over_grpc(served: Served, plays: Backend) -> None:
    """Make calls that succeed, fail, are refused, name an unknown method, and are abandoned; also as streams."""

    def headers(name: str, token: str = served.token) -> Sequence[tuple[str, str]]:
        return (("authorization", f"Bearer {token}"), ("x-request-id", name), ("traceparent", PARENT))

    async with grpc.aio.insecure_channel(served.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        unary = reasoning_service_pb2.ReasonRequest
        calls: list[Any] = [
            stub.Reason(unary(task=task()), metadata=headers("grpc-ok")),
            stub.Reason(unary(task=task("FAIL")), metadata=headers("grpc-failed")),
            stub.Reason(unary(task=task()), metadata=headers("grpc-refused", "no token")),
            channel.unary_unary(f"{SERVICE}Nothing", _as_it_is)(b"", metadata=headers("grpc-unknown")),
        ]
        codes = [await call.code() for call in calls]
        assert [code.name for code in codes[:1]] == ["OK"]
        assert grpc.StatusCode.OK not in codes[1:]
        request = reasoning_service_pb2.ReasonIterationsRequest(task=task())
        async for _ in stub.ReasonIterations(request, metadata=headers("grpc-stream")):
            pass
        left = stub.Reason(unary(task=task("HOLD")), metadata=headers("grpc-left"))
        waiting = asyncio.ensure_future(left.code())
        await plays.held.wait()
        left.cancel()
        await waiting


async def call_over_http(served: Served) -> None:
    """Send a call, a batch, a stream, refused and malformed calls, and fetch pages."""

    def headers(name: str, **more: str) -> Mapping[str, str]:
        token = {"authorization": f"Bearer {served.token}", "content-type": "application/json"}
        return {**token, "x-request-id": name, "traceparent": PARENT, **more}

    def call(method: str, number: int = 1) -> Mapping[str, Any]:
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"query": QUESTION}}

    async with make_http_client(base_url=f"http://{served.http}") as client:
        for name, body, more in (
            ("http-ok", call("reasoning.execute"), {}),
            ("http-batch", [call("reasoning.execute", 1), call("reasoning.execute", 2), call(QUESTION, 3)], {}),
            ("http-stream", call("reasoning.execute"), {"accept": "text/event-stream"}),
            ("http-refused", call("reasoning.execute"), {"authorization": f"Bearer {QUESTION}"}),
            ("http-type", call("reasoning.execute"), {"content-type": "text/plain"}),
        ):
            await client.post("/api/v1/jsonrpc", content=json.dumps(body), headers=headers(name, **more))
        await client.post("/api/v1/jsonrpc", content=f'{{"query": "{QUESTION}', headers=headers("http-broken"))
        pages = {"http-card": "/.well-known/agent-card.json", "http-none": "/nothing", "probe": "/readyz"}
        for name, path in pages.items():
            await client.get(f"{path}?q={QUESTION}", headers=headers(name))


def lines_of(text: str) -> Mapping[str, dict[str, Any]]:
    """Return the lines of the access log by request id; each id must be unique."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    found = [line for line in lines if "duration_ms" in line and line["logger"] in {"reasond.grpc", "reasond.http"}]
    by_id = {line["call_id"]: line for line in found}
    assert Counter(line["call_id"] for line in found) == Counter(list(by_id))
    assert not any("request_id" in line for line in found), "that is the idempotency key of a task"
    return by_id


async def test_every_request_has_one_line_with_its_ids_and_none_has_the_question(tmp_path: Path) -> None:
    plays = Backend()
    async with upstream(plays) as server:
        environ = {
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "fake",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LOGS__FORMAT": "json",
            "REASOND__LOGS__LEVEL": "debug",
            "REASOND__SERVER__DRAIN_DELAY_S": "0",
        }
        async with serving(tmp_path, "one", environ) as served:
            await call_over_grpc(served, plays)
            await call_over_http(served)
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 60) == 0
    text = (tmp_path / "one.log").read_text("utf-8")
    lines = lines_of(text)

    assert {name: (line["code"], line["reason"]) for name, line in lines.items()} == {
        "grpc-ok": ("OK", ""),
        "grpc-failed": ("INTERNAL", "MODEL_PROTOCOL"),
        "grpc-refused": ("UNAUTHENTICATED", "TOKEN_INVALID"),
        "grpc-unknown": ("UNIMPLEMENTED", "METHOD_NOT_FOUND"),
        "grpc-stream": ("OK", ""),
        "grpc-left": ("CANCELLED", ""),
        "http-ok": (0, ""),
        "http-batch": (-32601, "METHOD_NOT_FOUND"),
        "http-stream": (0, ""),
        "http-refused": (-32603, "TOKEN_INVALID"),
        "http-type": (0, ""),
        "http-broken": (-32700, "PARSE_ERROR"),
        "http-card": (0, ""),
        "http-none": (0, ""),
        "probe": (0, ""),
    }
    assert {line["trace_id"] for line in lines.values()} == {TRACE}
    assert all(line["span_id"] for line in lines.values())
    # A request that started a run names it; a batch names all of its runs.
    runs = {name: line["execution_id"].split(",") for name, line in lines.items() if "execution_id" in line}
    assert {name: len(ids) for name, ids in runs.items()} == {
        **dict.fromkeys(("grpc-ok", "grpc-failed", "grpc-stream", "grpc-left", "http-ok", "http-stream"), 1),
        "http-batch": 2,
    }
    ends = [json.loads(line) for line in text.splitlines() if '"execution ended"' in line]
    assert {line["execution_id"] for line in ends} == {name for ids in runs.values() for name in ids}
    assert {line["trace_id"] for line in ends} == {TRACE}
    assert "weather" not in text.lower()


async def test_arguments_of_mcp_tools_are_not_logged(tmp_path: Path) -> None:
    called = {"index": 0, "id": "c1", "function": {"name": "t__fail", "arguments": json.dumps({"why": QUESTION})}}
    asking = event({"choices": [{"index": 0, "delta": {"tool_calls": [called]}, "finish_reason": None}]})
    with over_http() as (_, port):
        async with upstream(streaming(asking, chunk(finish="tool_calls"), usage(11, 4)), ANSWER) as server:
            environ = {
                "REASOND__LLM__PROVIDER": "openai",
                "REASOND__LLM__MODEL": "fake",
                "REASOND__LLM__BASE_URL": server.address,
                "REASOND__TOOLS__MCP__T__URL": f"http://127.0.0.1:{port}/mcp",
                "REASOND__TOOLS__MCP__T__CONNECT_TIMEOUT_S": "60",
                "REASOND__LOGS__FORMAT": "json",
                "REASOND__LOGS__LEVEL": "debug",
                "REASOND__SERVER__DRAIN_DELAY_S": "0",
            }
            async with serving(tmp_path, "one", environ) as served:
                async with AsyncClient(served.grpc, token=served.token) as client:
                    result = await client.reason("Go.", config=ReactConfig(allow_tool_use=True))
                served.process.terminate()
                assert await asyncio.to_thread(served.process.wait, 60) == 0
            told = server.conversations[-1].body.decode()
    assert result.answer == "42"
    assert QUESTION in told
    text = (tmp_path / "one.log").read_text("utf-8")
    assert '"execution ended"' in text
    assert QUESTION not in text


async def test_lines_of_an_untraced_call_have_a_trace_id_and_name_the_strategy(
    tmp_path: Path,
) -> None:
    async with upstream(ANSWER) as server:
        environ = {
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "fake",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LOGS__FORMAT": "json",
            "REASOND__LOGS__LEVEL": "debug",
            "REASOND__SERVER__DRAIN_DELAY_S": "0",
        }
        async with serving(tmp_path, "one", environ) as served:
            async with AsyncClient(served.grpc, token=served.token) as client:
                result = await client.reason("What is it?", strategy="chain_of_thought")
                await client.reason("And again?", strategy="self_consistency", config={"samples": 1}, request_id="r1")
            body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.chain_of_thought", "params": {"query": "And?"}}
            headers = {"authorization": f"Bearer {served.token}", "x-request-id": "mine"}
            async with make_http_client(base_url=f"http://{served.http}") as plain:
                await plain.post("/api/v1/jsonrpc", json=body, headers=headers)
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 60) == 0
    lines = [json.loads(line) for line in (tmp_path / "one.log").read_text("utf-8").splitlines() if line[:1] == "{"]
    of_calls = [line for line in lines if "call_id" in line or "execution_id" in line]
    assert all(re.fullmatch("(?!0{32})[0-9a-f]{32}", line.get("trace_id", "")) for line in of_calls), of_calls
    calls = {line["call_id"]: line for line in of_calls if "duration_ms" in line and "finish_reason" in line}
    assert sorted((line["level"], line["strategy"]) for line in calls.values()) == [
        ("info", "chain_of_thought"),
        ("info", "chain_of_thought"),
        ("info", "self_consistency"),
    ]
    by_trace = {line["trace_id"]: line for line in calls.values()}
    ends = [line for line in lines if line["message"] == "execution ended"]
    assert {line["trace_id"] for line in ends} == set(by_trace)
    assert all(line["execution_id"] == by_trace[line["trace_id"]]["execution_id"] for line in ends)
    assert result.execution_id in {line["execution_id"] for line in ends}

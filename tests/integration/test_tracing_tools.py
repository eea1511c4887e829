"""Tool calls and programs in traces: who is called is told the context where the operator enables it, else nobody."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, ReactConfig, TraceView
from reasond_server.telemetry.span_export import TracingOptions
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.accepting import accepting
from tests.engines.program_forking import forked_command
from tests.integration.test_tools import MODULE, over_http
from tests.sandboxing import PROGRAMS
from tests.spans import Spans, attributes_of, ids

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping

    from opentelemetry.sdk.trace import ReadableSpan

TOLD = ("tools",)
# All headers that carry a trace context, in our convention and in others.
WORDS = ("traceparent", "tracestate", "baggage", "b3", "x-b3-traceid", "uber-trace-id", "x-cloud-trace-context")


@asynccontextmanager
async def host() -> AsyncIterator[tuple[int, list[str]]]:
    """An HTTP server that records the request heads."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async with accepting(answer) as port:
        yield port, heads


async def call_tool(spans: Spans, tool: str, arguments: Mapping[str, Any], **environ: str) -> tuple[str, ReadableSpan]:
    """Let a run on a real server call `tool`; return the tool's result and the span of the call."""
    call = ToolCall(call_id="c1", name=tool, arguments_json=json.dumps(arguments))
    model = ScriptedModel([Reply(tool_calls=(call,)), "<answer>done</answer>"], has_native_tools=True)
    async with running_server(model=model, environ=environ, spans=spans.sink) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            result = await client.reason(
                "Go.", config=ReactConfig(allow_tool_use=True), trace_view=TraceView.TRACE_VIEW_FULL
            )
        await spans.until(lambda one: one.find_named("invoke_workflow"))
    (observed,) = result.trace[0].react.observations
    assert not observed.is_error, observed.result_json
    return observed.result_json, spans.one(f"execute_tool {tool}")


def place(span: ReadableSpan) -> str:
    trace, number = ids(span)
    return f"00-{trace:032x}-{number:016x}-01"


def names(headers: Mapping[str, Any]) -> set[str]:
    return {name for name in WORDS if name in {key.lower() for key in headers}}


@pytest.mark.parametrize("told", [(), ("models",), TOLD])
async def test_a_host_that_is_fetched_from_is_told_of_the_trace_only_where_tools_are(told: tuple[str, ...]) -> None:
    spans = Spans(options=TracingOptions(propagate_to=told))
    async with host() as (port, heads):
        allowed = '["127.0.0.1"]'
        _, span = await call_tool(
            spans,
            "http_get",
            {"url": f"http://127.0.0.1:{port}/"},
            REASOND__TOOLS__HTTP_GET__ALLOW_HOSTS=allowed,
            REASOND__TOOLS__HTTP_GET__ALLOW_PRIVATE_HOSTS=allowed,
            REASOND__TOOLS__HTTP_GET__ALLOW_HTTP="true",
        )
    (head,) = heads
    headers = dict(line.split(": ", 1) for line in head.strip().splitlines()[1:])
    assert names(headers) == ({"traceparent"} if told == TOLD else set())
    if told == TOLD:
        assert headers["traceparent"] == place(span)


@pytest.mark.parametrize("told", [(), ("models",), TOLD])
async def test_an_mcp_program_is_told_of_the_trace_only_where_tools_are(told: tuple[str, ...]) -> None:
    spans = Spans(options=TracingOptions(propagate_to=told))
    command, *args = forked_command(MODULE)
    environ = {
        "REASOND__TOOLS__MCP__T__COMMAND": command,
        "REASOND__TOOLS__MCP__T__ARGS": json.dumps(args),
        "REASOND__TOOLS__MCP__T__CONNECT_TIMEOUT_S": "60",
    }
    returned, span = await call_tool(spans, "t__heard", {}, **environ)
    heard = json.loads(json.loads(returned)["text"])
    assert names(heard["meta"]) == ({"traceparent"} if told == TOLD else set())
    if told == TOLD:
        assert heard["meta"]["traceparent"] == place(span)


@pytest.mark.parametrize("told", [(), ("models",), TOLD])
async def test_an_mcp_server_over_http_is_told_in_the_call_and_by_headers_only_where_tools_are(
    told: tuple[str, ...],
) -> None:
    spans = Spans(options=TracingOptions(propagate_to=told))
    with over_http() as (_, port):
        environ = {
            "REASOND__TOOLS__MCP__T__URL": f"http://127.0.0.1:{port}/mcp",
            "REASOND__TOOLS__MCP__T__CONNECT_TIMEOUT_S": "60",
        }
        returned, span = await call_tool(spans, "t__heard", {}, **environ)
    heard = json.loads(json.loads(returned)["text"])
    assert heard["headers"]
    for told_in in (heard["headers"], heard["meta"]):
        assert names(told_in) == ({"traceparent"} if told == TOLD else set())
        if told == TOLD:
            assert told_in["traceparent"] == place(span)


async def test_each_program_has_a_span_that_says_how_it_ended() -> None:
    spans, programs = Spans(), iter(["print(6 * )", "print(6 * 7)"])
    environ = {"REASOND__REPAIR__ENABLED": "false", **PROGRAMS}
    model = FunctionModel(lambda _: f"```python\n{next(programs)}\n```")
    async with running_server(model=model, environ=environ, spans=spans.sink) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            await client.reason("6 times 7?", strategy="program_of_thought", config={"max_program_s": 60.0})
        await spans.until(lambda one: one.find_named("reasond.v1.ReasoningService/"))
    tried = ["step", ["chat function"], "step", ["run_program"]]
    assert spans.tree() == [
        "reasond.v1.ReasoningService/Reason",
        ["invoke_workflow program_of_thought", [*tried, *tried]],
    ]
    ran = [one for one in spans.all if one.name == "run_program"]
    assert [attributes_of(one).get("error.type") for one in ran] == ["failed", None]

"""A server's traces as a receiver sees them: the whole tree of each strategy, and of failures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from concurrent import futures
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.trace import SpanKind, StatusCode

from reasond import AsyncClient, BoundedContextConfig, ReactConfig, ReasondError, SelfConsistencyConfig
from reasond.v1 import reasoning_service_pb2 as pb
from reasond_server.errors.model import ModelFailedError
from reasond_server.telemetry.span_export import TracingOptions
from reasond_server.telemetry.spans import ATTRIBUTES, REPAIR_SPANS
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from reasond_server.types import ToolCall
from tests.accepting import accepting
from tests.faults.upstream import chunk, refusing, streaming, upstream, usage
from tests.forking import ForkedProcess
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of, ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatModel

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
SERVER = "reasond.v1.ReasoningService/"
GOOD = (chunk("<answer>42</answer>"), chunk(finish="stop"), usage(11, 4))


async def ask_once(spans: Spans, model: ChatModel | None, query: str = "What is 6 * 7?", **keys: Any) -> None:
    """Ask once over gRPC and wait until the span of the RPC has ended."""
    async with running_server(model=model, spans=spans.sink) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            await client.reason(query, **keys)
        await spans.until(lambda one: one.find_named(SERVER))


async def test_chain_of_thought_is_one_step_with_one_call() -> None:
    spans = Spans()
    await ask_once(spans, ScriptedModel(["Six times seven. <answer>42</answer>"]))
    assert spans.tree() == [f"{SERVER}Reason", ["invoke_workflow chain_of_thought", ["step", ["chat scripted"]]]]
    rpc, run, step, chat = spans.all
    assert [one.kind for one in spans.all] == [SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.INTERNAL, SpanKind.CLIENT]
    assert attributes_of(rpc)["rpc.response.status_code"] == "OK"
    assert attributes_of(rpc)["reasond.execution.id"] == attributes_of(run)["gen_ai.conversation.id"]
    assert attributes_of(run)["gen_ai.operation.name"] == "invoke_workflow"
    assert attributes_of(run)["reasond.finish_reason"] == "answered"
    assert (attributes_of(step)["reasond.step.index"], attributes_of(step)["openinference.span.kind"]) == (0, "CHAIN")
    assert attributes_of(chat)["gen_ai.usage.output_tokens"] == attributes_of(run)["gen_ai.usage.output_tokens"]
    assert {one.status.status_code for one in spans.all} == {StatusCode.UNSET}


async def test_react_has_a_step_for_each_turn_and_its_tools_below_it() -> None:
    call = ToolCall(call_id="c1", name="calculator", arguments_json='{"expression": "6*7"}')
    spans = Spans()
    model = ScriptedModel([Reply(text="I compute.", tool_calls=(call,)), "<answer>42</answer>"], has_native_tools=True)
    await ask_once(spans, model, config=ReactConfig(allow_tool_use=True))
    assert spans.tree() == [
        f"{SERVER}Reason",
        ["invoke_workflow react", ["step", ["chat scripted", "execute_tool calculator"], "step", ["chat scripted"]]],
    ]
    assert attributes_of(spans.one("execute_tool"))["gen_ai.tool.call.id"] == "c1"
    assert "gen_ai.tool.call.arguments" not in attributes_of(spans.one("execute_tool"))


async def test_a_tool_that_the_model_invented_does_not_name_a_span() -> None:
    call = ToolCall(call_id="c1", name="the secret plan", arguments_json="{}")
    spans = Spans()
    model = ScriptedModel([Reply(text="I try.", tool_calls=(call,)), "<answer>42</answer>"], has_native_tools=True)
    await ask_once(spans, model, config=ReactConfig(allow_tool_use=True))
    tool = spans.one("execute_tool")
    assert tool.name == "execute_tool unknown"
    assert attributes_of(tool)["error.type"] == "tool_error"
    assert "secret plan" not in str([attributes_of(one) for one in spans.all])


async def test_bounded_context_has_a_step_for_each_window() -> None:
    spans = Spans()
    model = FunctionModel(lambda request: "Nothing here." if "6 * 7" not in str(request) else "<answer>42</answer>")
    await ask_once(spans, model, config=BoundedContextConfig())
    (rpc, (run, steps)) = spans.tree()
    assert (rpc, run) == (f"{SERVER}Reason", "invoke_workflow bounded_context")
    assert steps[:2] == ["step", ["chat function"]]


async def test_self_consistency_has_every_sample_below_a_step() -> None:
    spans = Spans()
    model = FunctionModel(lambda _: "<answer>42</answer>")
    await ask_once(spans, model, config=SelfConsistencyConfig(samples=3))
    steps = {ids(span)[1] for span in spans.find_named("step")}
    calls = spans.find_named("chat")
    assert len(calls) == attributes_of(spans.one("invoke_workflow self_consistency"))["reasond.steps"]
    assert all(call.parent is not None and call.parent.span_id in steps for call in calls)


async def test_tree_of_thought_has_every_call_below_a_step() -> None:
    spans = Spans()
    await ask_once(spans, None, strategy="tree_of_thought")
    steps = {ids(span)[1] for span in spans.find_named("step")}
    calls = spans.find_named("chat")
    assert calls
    assert all(call.parent is not None and call.parent.span_id in steps for call in calls)
    run = spans.one("invoke_workflow tree_of_thought")
    assert all(span.parent is not None and span.parent.span_id == ids(run)[1] for span in spans.find_named("step"))


async def test_every_attribute_is_in_the_table_and_no_span_has_a_reserved_name() -> None:
    names, attributes = set(), set()
    for strategy in ("chain_of_thought", "react", "tree_of_thought", "self_consistency", "bounded_context"):
        spans = Spans(options=TracingOptions(has_content=True))
        await ask_once(spans, None, strategy=strategy)
        names |= {span.name for span in spans.all}
        attributes |= {name for span in spans.all for name in attributes_of(span)}
    assert attributes <= set(ATTRIBUTES)
    assert not names & set(REPAIR_SPANS)


async def test_a_run_that_fails_says_why_in_every_span_that_failed() -> None:
    spans = Spans()
    with pytest.raises(ReasondError):
        await ask_once(spans, ScriptedModel([Reply(error=ModelFailedError("gone"))]))
    await spans.until(lambda one: one.find_named(SERVER))
    assert spans.tree() == [f"{SERVER}Reason", ["invoke_workflow chain_of_thought", ["step", ["chat scripted"]]]]
    failed = {span.name: attributes_of(span).get("error.type") for span in spans.all}
    assert failed == {
        f"{SERVER}Reason": "MODEL_FAILED",
        "invoke_workflow chain_of_thought": "MODEL_FAILED",
        "step": None,
        "chat scripted": "MODEL_FAILED",
    }
    assert spans.one("invoke_workflow").status.status_code is StatusCode.ERROR


async def test_a_request_that_is_refused_is_no_fault_of_the_server() -> None:
    spans = Spans()
    with pytest.raises(ReasondError):
        await ask_once(spans, None, "")
    await spans.until(lambda one: one.find_named(SERVER))
    (rpc,) = spans.all
    assert attributes_of(rpc)["error.type"] == "INVALID_REQUEST"
    assert rpc.status.status_code is StatusCode.UNSET


async def test_a_run_that_its_caller_left_is_cancelled_and_every_span_ends() -> None:
    spans, gate = Spans(), asyncio.Event()
    model = ScriptedModel([Reply(text="<answer>1</answer>", hold=gate)])
    async with running_server(model=model, spans=spans.sink) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:

            async def follow() -> None:
                async for _ in client.reason_iterations("Why?"):
                    pass

            asking = asyncio.create_task(follow())
            await spans.until(lambda _: model.open_calls)
            asking.cancel()
            await asyncio.wait([asking])
        await spans.until(lambda one: one.find_named(SERVER) and one.find_named("invoke_workflow"))
    run = ["invoke_workflow chain_of_thought", ["step", ["chat scripted"]]]
    assert spans.tree() == [f"{SERVER}ReasonIterations", run]
    assert attributes_of(spans.one("invoke_workflow"))["reasond.finish_reason"] == "cancelled"
    assert attributes_of(spans.one(SERVER))["rpc.response.status_code"] == "CANCELLED"


async def test_a_caller_continues_its_trace_over_grpc_and_over_http() -> None:
    spans = Spans()
    async with running_server(spans=spans.sink) as listening:
        async with grpc.aio.insecure_channel(listening.grpc) as channel:
            call = channel.unary_unary(
                f"/{SERVER}ListStrategies",
                request_serializer=pb.ListStrategiesRequest.SerializeToString,
                response_deserializer=pb.ListStrategiesResponse.FromString,
            )
            metadata = (("authorization", f"Bearer {listening.token}"), ("traceparent", PARENT), ("tracestate", "a=1"))
            await call(pb.ListStrategiesRequest(), metadata=metadata)
        async with make_http_client(base_url=listening.http) as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.list_strategies", "params": {}}
            headers = {"authorization": f"Bearer {listening.token}", "traceparent": PARENT}
            answer = await http.post("/api/v1/jsonrpc", json=body, headers=headers)
            assert answer.status_code == 200
        await spans.until(lambda one: len(one.all) == 2)
    for span in spans.all:
        assert f"{ids(span)[0]:032x}" == TRACE
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == SPAN
    assert {span.name for span in spans.all} == {f"{SERVER}ListStrategies", "POST /api/v1/jsonrpc"}


async def ask_as(listening: Listening, token: str) -> None:
    """Send a request over both wires with a trace header that asks for sampling."""
    async with grpc.aio.insecure_channel(listening.grpc) as channel:
        call = channel.unary_unary(
            f"/{SERVER}ListStrategies",
            request_serializer=pb.ListStrategiesRequest.SerializeToString,
            response_deserializer=pb.ListStrategiesResponse.FromString,
        )
        with suppress(grpc.aio.AioRpcError):
            metadata = (("authorization", f"Bearer {token}"), ("traceparent", PARENT))
            await call(pb.ListStrategiesRequest(), metadata=metadata)
    async with make_http_client(base_url=listening.http) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.list_strategies", "params": {}}
        headers = {"authorization": f"Bearer {token}", "traceparent": PARENT}
        await http.post("/api/v1/jsonrpc", json=body, headers=headers)


async def test_a_stranger_neither_has_a_trace_kept_nor_writes_into_one() -> None:
    dark, light = Spans(options=TracingOptions(sample_ratio=0.0)), Spans()
    async with running_server(spans=dark.sink) as listening:
        await ask_as(listening, "nonsense")
        await ask_as(listening, listening.token)
        await dark.until(lambda one: len(one.all) == 2)
    assert {f"{ids(span)[0]:032x}" for span in dark.all} == {TRACE}
    assert not any("error.type" in attributes_of(span) for span in dark.all)
    async with running_server(spans=light.sink) as listening:
        await ask_as(listening, "nonsense")
        await light.until(lambda one: len(one.all) == 2)
    for span in light.all:
        assert attributes_of(span)["error.type"] == "TOKEN_INVALID"
        assert span.parent is None
        assert f"{ids(span)[0]:032x}" != TRACE
        assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]


async def test_names_from_strangers_name_no_span_and_probes_have_no_span() -> None:
    spans = Spans()
    async with running_server(spans=spans.sink) as listening:
        async with grpc.aio.insecure_channel(listening.grpc) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/stranger.Service/Whatever")(b"")  # type: ignore[arg-type]  # no codec: bytes pass
        async with make_http_client(base_url=listening.http) as http:
            await http.get("/stranger/whatever", headers={"traceparent": "x" * 4000})
            await http.get("/healthz")
        await spans.until(lambda one: len(one.all) == 2)
    assert [span.name for span in spans.all] == ["_OTHER", "GET"]
    assert "hatever" not in str([(span.name, attributes_of(span)) for span in spans.all])


@pytest.mark.parametrize("told", [("models",), ()])
async def test_the_model_server_is_told_where_the_call_stands_and_retries_are_one_span(told: tuple[str, ...]) -> None:
    spans = Spans(options=TracingOptions(propagate_to=told))
    async with upstream(refusing("503 Busy"), streaming(*GOOD)) as server:
        environ = {
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "m",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__FIRST_WAIT_S": "0.01",
        }
        async with running_server(environ=environ, spans=spans.sink) as listening:
            async with AsyncClient(listening.grpc, token=listening.token) as client:
                await client.reason("What is 6 * 7?")
            await spans.until(lambda one: one.find_named(SERVER))
        heads = [one.head.lower() for one in server.conversations]
    assert len(heads) == 2
    (chat,) = spans.find_named("chat")
    trace, span = ids(chat)
    for head in heads:
        assert (f"traceparent: 00-{trace:032x}-{span:016x}-01" in head) is bool(told)


async def test_content_is_there_only_where_it_is_asked_for_and_cut() -> None:
    for has_content in (False, True):
        spans = Spans(options=TracingOptions(has_content=has_content))
        question = f"My password=hunter2hunter2 and {'long ' * 2000}"
        await ask_once(spans, ScriptedModel(["<answer>forty-two</answer>"]), question)
        text = str([attributes_of(span) for span in spans.all])
        assert ("forty-two" in text) is has_content
        assert ("long long" in text) is has_content
        assert "hunter2" not in text
        assert len(text) < 20_000


class Receiver(TraceServiceServicer):
    """An OTLP receiver over gRPC and HTTP; `came` is set at each export."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.resource: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}
        self.came = threading.Event()

    def Export(  # noqa: N802 - the name is given by gRPC
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.take(request, dict(context.invocation_metadata()))
        return ExportTraceServiceResponse()

    def take(self, request: ExportTraceServiceRequest, metadata: dict[str, Any]) -> None:
        """Record an export."""
        self.metadata = metadata
        for each in request.resource_spans:
            self.resource = {one.key: one.value.string_value for one in each.resource.attributes}
            self.spans |= {span.name: span for scope in each.scope_spans for span in scope.spans}
        self.came.set()


@contextmanager
def receiving_over_http() -> Iterator[tuple[Receiver, str]]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_ours = (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            if is_ours:
                receiver.take(ExportTraceServiceRequest.FromString(body), dict(self.headers.items()))
            self.send_response(200 if is_ours else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield receiver, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def redirecting_to(location: str) -> Iterator[tuple[list[str], str]]:
    """Answer every export with a redirect; yield the received keys and the address."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.headers["x-key"])
            self.send_response(307)
            self.send_header("location", location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield asked, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]  # generated
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def serving(folder: Path, **environ: str) -> Iterator[tuple[ForkedProcess, dict[str, str]]]:
    """A real `reasond serve --dev` with `environ`."""
    ready = folder / "ready.json"
    ports = {"REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}
    process = ForkedProcess(
        *("serve", "--dev", "--ready-file", ready),
        environ={**os.environ, **ports, "REASOND__SERVER__DRAIN_DELAY_S": "0", **environ},
        folder=folder,
        stderr=folder / "log",
    )
    try:
        limit = time.monotonic() + 180
        while not ready.exists():
            assert time.monotonic() < limit, (folder / "log").read_text()
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended with {process.wait(0.02)}: {(folder / 'log').read_text()}")
        yield process, json.loads(ready.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("over", "variables"),
    [
        (receiving, ("REASOND__TRACING__ENDPOINT", "REASOND__TRACING__PROTOCOL", "")),
        (receiving_over_http, ("REASOND__TRACING__ENDPOINT", "REASOND__TRACING__PROTOCOL", "http/protobuf")),
        (receiving_over_http, ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")),
    ],
)
async def test_a_real_server_sends_its_spans_to_an_otlp_receiver_with_the_headers_of_the_environment(
    tmp_path: Path, over: Callable[[], AbstractContextManager[tuple[Receiver, str]]], variables: tuple[str, str, str]
) -> None:
    with over() as (receiver, address):
        endpoint, protocol, spoken = variables
        environ = {endpoint: address, protocol: spoken, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=quite-secret"}
        with serving(tmp_path, **environ) as (process, told):
            async with AsyncClient(told["grpc"], token=told["token"]) as client:
                await client.reason("What is 6 * 7?")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
        log = (tmp_path / "log").read_text()
    assert {f"{SERVER}Reason", "invoke_workflow chain_of_thought", "step", "chat demo"} <= set(receiver.spans)
    run, chat = receiver.spans["invoke_workflow chain_of_thought"], receiver.spans["chat demo"]
    assert chat.trace_id == run.trace_id
    assert receiver.spans["step"].parent_span_id == run.span_id
    assert receiver.resource["service.name"] == "reasond"
    assert receiver.resource["service.instance.id"]
    assert receiver.metadata["x-key"] == "quite-secret"
    assert "quite-secret" not in log


async def test_a_receiver_that_is_down_costs_spans_and_one_line_and_nothing_else(tmp_path: Path) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with serving(tmp_path, **environ, OTEL_EXPORTER_OTLP_TIMEOUT="1") as (process, told):
        async with AsyncClient(told["grpc"], token=told["token"]) as client:
            for _ in range(20):
                await client.reason("What is 6 * 7?")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    log = (tmp_path / "log").read_text()
    assert log.count("spans could not be exported") <= 1
    assert "Traceback" not in log
    assert "Failed to export" not in log


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
async def test_a_receiver_that_never_answers_keeps_neither_callers_nor_the_end_of_the_server_waiting(
    tmp_path: Path, protocol: str
) -> None:
    held: list[asyncio.StreamWriter] = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    async with accepting(hold) as port:
        endpoint = f"http://127.0.0.1:{port}"
        environ = {"REASOND__TRACING__ENDPOINT": endpoint, "REASOND__TRACING__PROTOCOL": protocol}
        with serving(tmp_path, **environ, OTEL_BSP_SCHEDULE_DELAY="50") as (process, told):
            async with AsyncClient(told["grpc"], token=told["token"]) as client:
                while not held:
                    await client.reason("What is 6 * 7?", timeout_s=10)
                answers = [(await client.reason("What is 6 * 7?", timeout_s=10)).answer for _ in range(20)]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    assert set(answers) == {"42"}
    assert "the last spans could not be exported in time" in (tmp_path / "log").read_text()


async def test_a_receiver_that_points_elsewhere_has_nothing_sent_there(tmp_path: Path) -> None:
    with receiving_over_http() as (elsewhere, address), redirecting_to(f"{address}/v1/traces") as (asked, endpoint):
        environ = {"REASOND__TRACING__ENDPOINT": endpoint, "REASOND__TRACING__PROTOCOL": "http/protobuf"}
        with serving(tmp_path, **environ, OTEL_EXPORTER_OTLP_HEADERS="x-key=quite-secret") as (process, told):
            async with AsyncClient(told["grpc"], token=told["token"]) as client:
                await client.reason("What is 6 * 7?")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
    assert set(asked) == {"quite-secret"}
    assert not elsewhere.spans

"""Metrics under the names of gRPC and OpenTelemetry: sent to a real OTLP receiver, and scraped with exemplars."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc

from reasond import AsyncClient
from reasond.v1.execution_pb2 import ReasoningTask
from reasond.v1.reasoning_service_pb2 import ListStrategiesRequest, ReasonRequest
from reasond.v1.reasoning_service_pb2_grpc import ReasoningServiceStub
from reasond_server.testing import ScriptedModel, running_server
from tests.http_clients import make_http_client
from tests.spans import Spans, ids

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMIT_S = 120.0
REASON = "reasond.v1.ReasoningService/Reason"
LIST = "reasond.v1.ReasoningService/ListStrategies"
# The boundaries of gRFC A66.
SIZES = [0, 1024, 2048, 4096, 16384, 65536, 262144, 1048576, 4194304]
SIZES += [16777216, 67108864, 268435456, 1073741824, 4294967296]
OWN_LISTENER = {"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}


@dataclass
class Receiver(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Keeps the newest value of each metric."""

    address: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, str] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def Export(self, request: Any, _context: object) -> Any:  # noqa: N802 - the proto's name
        for resource in request.resource_metrics:
            self.resource = {each.key: each.value.string_value for each in resource.resource.attributes}
            for metric in resource.scope_metrics[0].metrics:
                self.metrics[metric.name] = metric
        self.came.set()
        return metrics_service_pb2.ExportMetricsServiceResponse()


@asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver, None]:
    server, receiver = grpc.aio.server(), Receiver()
    # Generated without annotations.
    add: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add(receiver, server)
    receiver.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(0)


def attributes(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


async def test_a_receiver_is_sent_the_metrics_of_the_standards_at_the_latest_when_the_server_ends() -> None:
    async with receiving() as receiver:
        environ = {"REASOND__METRICS__ENDPOINT": receiver.address, "REASOND__METRICS__ON_HTTP": "false"}
        async with (
            running_server(model=ScriptedModel(["4"]), environ=environ) as server,
            AsyncClient(server.grpc, token=server.token) as client,
        ):
            await client.reason("2 + 2?", strategy="direct")
        assert receiver.resource["service.name"] == "reasond"
        started = receiver.metrics["grpc.server.call.started"].sum
        assert (started.is_monotonic, started.aggregation_temporality) == (True, 2)
        assert [(attributes(each), each.as_double) for each in started.data_points] == [({"grpc.method": REASON}, 1)]
        duration = receiver.metrics["grpc.server.call.duration"]
        (point,) = duration.histogram.data_points
        assert (duration.unit, attributes(point)) == ("s", {"grpc.method": REASON, "grpc.status": "OK"})
        assert (point.count, sum(point.bucket_counts)) == (1, 1)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        (call,) = receiver.metrics["gen_ai.client.operation.duration"].histogram.data_points
        chat = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "reasond.demo"}
        assert attributes(call) == chat | {"gen_ai.request.model": "scripted"}
        usage = receiver.metrics["gen_ai.client.token.usage"].histogram.data_points
        assert sorted(attributes(each)["gen_ai.token.type"] for each in usage) == ["input", "output"]
        assert all(each.sum > 0 for each in usage)
        assert "reasond_executions" in receiver.metrics


async def test_sizes_of_messages_are_told_by_the_names_of_grpc_to_any_client(grpcurl: str) -> None:
    """The request is compressed on its way; gRPC for Python tells only how long it is unpacked."""
    request = ReasonRequest(task=ReasoningTask(query="2 + 2?", material="word " * 10_000, strategy="direct"))
    async with receiving() as receiver:
        environ = {"REASOND__METRICS__ENDPOINT": receiver.address, **OWN_LISTENER}
        async with running_server(model=ScriptedModel(["4"]), environ=environ) as server:
            token = f"authorization: Bearer {server.token}"
            options = (("grpc.use_local_subchannel_pool", 1),)
            async with grpc.aio.insecure_channel(server.grpc, options, grpc.Compression.Gzip) as channel:
                stub: Any = ReasoningServiceStub(channel)
                metadata = (tuple(token.split(": ")),)
                answer = await stub.Reason(request, metadata=metadata)
                listed = await stub.ListStrategies(ListStrategiesRequest(), metadata=metadata)
            call = (grpcurl, "-plaintext", "-H", token, server.grpc, LIST)
            asked = await asyncio.create_subprocess_exec(*call, stdout=asyncio.subprocess.DEVNULL)
            assert await asked.wait() == 0
            async with make_http_client() as http:
                lines = (await http.get(server.metrics)).text.splitlines()
    sizes = {
        ("rcvd", REASON): [1, request.ByteSize()],
        ("sent", REASON): [1, answer.ByteSize()],
        ("rcvd", LIST): [2, 0],
        ("sent", LIST): [2, 2 * listed.ByteSize()],
    }
    for (way, method), (count, total) in sizes.items():
        name = f"grpc.server.call.{way}_total_compressed_message_size"
        labels = f'{{grpc_method="{method}",grpc_status="OK"}}'
        assert f"{name.replace('.', '_')}_bytes_sum{labels} {total:.1f}" in lines
        assert f"{name.replace('.', '_')}_bytes_count{labels} {count:.1f}" in lines
        told = receiver.metrics[name]
        points = {attributes(each)["grpc.method"]: each for each in told.histogram.data_points}
        assert (told.unit, points[method].count, points[method].sum) == ("By", count, total)
        assert attributes(points[method]) == {"grpc.method": method, "grpc.status": "OK"}
        assert list(points[method].explicit_bounds) == SIZES
        assert points[method].bucket_counts[0] == (0 if total else count)


async def test_metrics_are_sent_at_the_interval_of_the_environment() -> None:
    async with receiving() as receiver:
        environ = {
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": receiver.address,
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        }
        async with running_server(environ=environ), asyncio.timeout(LIMIT_S):
            await receiver.came.wait()
        assert receiver.metrics["reasond_ready"].gauge.data_points[0].as_double in {0, 1}


async def test_a_receiver_that_is_down_costs_nothing_else() -> None:
    environ = {"REASOND__METRICS__ENDPOINT": "http://127.0.0.1:1", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
    async with (
        running_server(model=ScriptedModel(["4"]), environ=environ) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        assert (await client.reason("2 + 2?", strategy="direct")).answer == "4"


async def test_a_scrape_has_the_same_metrics_and_exemplars_lead_to_the_trace() -> None:
    spans = Spans()
    model = ScriptedModel(["4"])
    async with running_server(model=model, environ=OWN_LISTENER, spans=spans.sink) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            await client.reason("2 + 2?", strategy="direct")
        async with make_http_client(headers={"accept": "application/openmetrics-text"}) as http:
            lines = (await http.get(server.metrics)).text.splitlines()
        await spans.until(lambda found: found.find_named(REASON))
        trace = f"{ids(spans.one(REASON))[0]:032x}"
    assert f'grpc_server_call_started_total{{grpc_method="{REASON}"}} 1.0' in lines
    durations = [
        line
        for line in lines
        if line.startswith(f'grpc_server_call_duration_seconds_bucket{{grpc_method="{REASON}",grpc_status="OK"')
    ]
    assert [line for line in durations if f'trace_id="{trace}"' in line]
    calls = [line for line in lines if line.startswith("gen_ai_client_operation_duration_seconds_bucket")]
    assert [line for line in calls if f'trace_id="{trace}"' in line]
    usage = [line for line in lines if line.startswith("gen_ai_client_token_usage_count")]
    assert len(usage) == 2

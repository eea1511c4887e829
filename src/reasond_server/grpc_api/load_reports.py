"""Load reports (ORCA), for clients that balance by load: in the trailers of calls, and as a stream of their own.

The messages are the fields in use of the public files of xDS, in a pool of their own; decision 0072 says why. Sources:
gRFC A51 (reports), A58 (weighted round robin).
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, text_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.runs.live_runs import Load

LOAD_KEY: Final = "endpoint-load-metrics-bin"
LOAD_SERVICE: Final = "xds.service.orca.v3.OpenRcaService"
# What was so many seconds ago counts a third.
_MEMORY_S: Final = 5.0
_REPORT_FILE: Final = """
name: "xds/data/orca/v3/orca_load_report.proto" package: "xds.data.orca.v3" syntax: "proto3"
message_type {
  name: "OrcaLoadReport"
  field { name: "rps_fractional" number: 6 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field { name: "eps" number: 7 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  field {
    name: "named_metrics" number: 8 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".xds.data.orca.v3.OrcaLoadReport.NamedMetricsEntry"
  }
  field { name: "application_utilization" number: 9 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  nested_type {
    name: "NamedMetricsEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_DOUBLE }
  }
}
"""
_SERVICE_FILE: Final = """
name: "xds/service/orca/v3/orca.proto" package: "xds.service.orca.v3" syntax: "proto3"
dependency: "google/protobuf/duration.proto" dependency: "xds/data/orca/v3/orca_load_report.proto"
message_type {
  name: "OrcaLoadReportRequest"
  field {
    name: "report_interval" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".google.protobuf.Duration"
  }
}
service {
  name: "OpenRcaService"
  method {
    name: "StreamCoreMetrics" input_type: ".xds.service.orca.v3.OrcaLoadReportRequest"
    output_type: ".xds.data.orca.v3.OrcaLoadReport" server_streaming: true
  }
}
"""


def add_load_files(pool: descriptor_pool.DescriptorPool) -> None:
    """Add the files of load reports to `pool`; never to that of the process, where others may have the whole files."""
    pool.AddSerializedFile(duration_pb2.DESCRIPTOR.serialized_pb)
    for text in (_REPORT_FILE, _SERVICE_FILE):
        pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))


class LoadReports:
    """Measures the load that `look` tells every `interval_s` seconds, and serves `OpenRcaService`.

    The utilization is the share of the places in use, averaged over the last seconds as all figures are: a call that
    ends has freed its place, and clients divide the calls in a second by the utilization.
    """

    def __init__(
        self, *, look: Callable[[], Load], interval_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        pool = descriptor_pool.DescriptorPool()
        add_load_files(pool)
        find, make = pool.FindMessageTypeByName, message_factory.GetMessageClass
        self._new_report: Any = make(find("xds.data.orca.v3.OrcaLoadReport"))
        self._request: Any = make(find("xds.service.orca.v3.OrcaLoadReportRequest"))
        self._look = look
        self._interval_s = interval_s
        self._monotonic = monotonic
        self._seen, self._seen_s = look(), monotonic()
        # Places in use, executions that began, refusals and tokens, each in a second.
        self._rates: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
        self._closed = asyncio.Event()
        self._measuring: asyncio.Task[None] | None = None
        self.latest = b""
        """The latest report, serialized."""

    def begin(self) -> None:
        """Measure from now on."""
        self.measure()
        self._measuring = asyncio.create_task(self._measure_on(), name="load reports")

    def close(self) -> None:
        """Measure no more, and end the streams."""
        self._closed.set()
        if self._measuring is not None:
            self._measuring.cancel()

    def measure(self) -> None:
        """Take what happened since the last measurement into the averages, and write the report."""
        load, now_s = self._look(), self._monotonic()
        seen, passed_s = self._seen, now_s - self._seen_s
        if passed_s > 0:
            share = 1 - math.exp(-passed_s / _MEMORY_S)
            grown = (
                load.busy_s - seen.busy_s,
                load.begun - seen.begun,
                load.refused - seen.refused,
                load.tokens - seen.tokens,
            )
            self._rates = tuple(
                rate + share * (by / passed_s - rate) for rate, by in zip(self._rates, grown, strict=True)
            )
            self._seen, self._seen_s = load, now_s
        used, begun, refused, tokens = self._rates
        report = self._new_report(
            application_utilization=used / load.places,
            rps_fractional=begun + refused,
            eps=refused,
            named_metrics={"queued": load.queued, "tokens_per_second": tokens},
        )
        self.latest = report.SerializeToString()

    def register(self, methods: MethodTable) -> None:
        """Add the service to a server."""
        handler: Any = grpc.unary_stream_rpc_method_handler(
            self._stream, request_deserializer=self._request.FromString, response_serializer=None
        )
        methods.add_registered_method_handlers(LOAD_SERVICE, {"StreamCoreMetrics": handler})

    async def _stream(self, request: Any, context: Context) -> None:  # noqa: ANN401 - a message of a pool of its own
        """Write a report now and whenever the interval of the caller has passed, until the listeners close."""
        asked_s = request.report_interval.seconds + request.report_interval.nanos / 1e9
        while not self._closed.is_set():
            await context.write(self.latest)
            try:
                await asyncio.wait_for(self._closed.wait(), max(asked_s, self._interval_s))
            except TimeoutError:
                continue

    async def _measure_on(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self.measure()

"""Load reports on a real server: the stream, the trailers, and what the figures are worth."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory

from reasond_server.errors.limits import OverloadedError
from reasond_server.grpc_api.load_reports import LoadReports, add_load_files
from reasond_server.runs.live_runs import Load
from tests.unit.grpc_api.parts import ScriptedReasoning, serving

if TYPE_CHECKING:
    from reasond_server.reasoning.service import ExecutionView

POOL = descriptor_pool.DescriptorPool()
add_load_files(POOL)
Report: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("xds.data.orca.v3.OrcaLoadReport"))
Request: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("xds.service.orca.v3.OrcaLoadReportRequest"))
IDLE = Load(running=0, queued=0, places=8, busy_s=0.0, begun=0, refused=0, tokens=0)
GRPCURL = Path(__file__).resolve().parents[3] / ".cache" / "bin" / "grpcurl"


def follow(channel: Any) -> Any:
    stream = channel.unary_stream(
        "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics",
        request_serializer=Request.SerializeToString,
        response_deserializer=Report.FromString,
    )
    return stream(Request())


def test_the_figures_are_those_of_a_second() -> None:
    now_s, load = 0.0, IDLE
    reports = LoadReports(look=lambda: load, interval_s=1.0, monotonic=lambda: now_s)
    # Two places of eight in use; five executions a second, and one refusal; a hundred tokens.
    for second in range(1, 61):
        now_s = float(second)
        load = Load(
            running=2, queued=3, places=8, busy_s=2.0 * second, begun=5 * second, refused=second, tokens=100 * second
        )
        reports.measure()

    report = Report.FromString(reports.latest)

    assert report.application_utilization == pytest.approx(0.25, rel=1e-3)
    assert (report.rps_fractional, report.eps) == (pytest.approx(6.0, rel=1e-3), pytest.approx(1.0, rel=1e-3))
    assert dict(report.named_metrics) == {"queued": 3.0, "tokens_per_second": pytest.approx(100.0, rel=1e-3)}


def test_a_server_that_was_busy_for_a_moment_keeps_its_calls_in_a_second_of_use() -> None:
    now_s, load = 0.0, IDLE
    reports = LoadReports(look=lambda: load, interval_s=1.0, monotonic=lambda: now_s)
    # One call of half a second, then nothing: clients divide the calls by the utilization.
    for second, busy_s, begun in ((1, 0.5, 1), (2, 0.5, 1), (30, 0.5, 1)):
        now_s, load = float(second), replace(IDLE, busy_s=busy_s, begun=begun)
        reports.measure()
        report = Report.FromString(reports.latest)
        assert report.rps_fractional / report.application_utilization == pytest.approx(8 / 0.5)


def test_a_second_measurement_at_the_same_moment_changes_nothing() -> None:
    reports = LoadReports(look=lambda: IDLE, interval_s=1.0, monotonic=lambda: 5.0)
    reports.measure()
    first = reports.latest
    reports.measure()

    assert reports.latest == first


@pytest.mark.parametrize("reports", ["streams", "both"])
async def test_a_stream_reports_without_a_token_until_the_server_closes(reports: str) -> None:
    options = {"load_reports": reports, "load_report_interval_s": 0.01}
    async with serving(ScriptedReasoning(), look=lambda: replace(IDLE, queued=2), **options) as served:
        call = follow(served.channel)
        seen = [await call.read() for _ in range(3)]
        await served.server.close_listeners()
        while (report := await call.read()) is not grpc.aio.EOF:
            seen.append(report)

        assert await call.code() is grpc.StatusCode.OK
    assert {each.named_metrics["queued"] for each in seen} == {2.0}


@pytest.mark.parametrize("reports", ["off", "calls"])
async def test_there_is_no_stream_unless_it_is_asked_for(reports: str) -> None:
    async with serving(ScriptedReasoning(), look=lambda: IDLE, load_reports=reports) as served:
        assert await follow(served.channel).code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.skipif(
    not GRPCURL.exists(), reason="grpcurl is not here: gRPC's own clients keep the trailer to themselves"
)
@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize(("reports", "is_told"), [("off", False), ("streams", False), ("calls", True), ("both", True)])
async def test_the_trailers_report_the_load_where_it_is_asked_for(
    reports: str, *, is_told: bool, is_refused: bool
) -> None:
    async def refuse() -> ExecutionView:
        raise OverloadedError("full")

    reasoning = ScriptedReasoning(on_execute=refuse) if is_refused else ScriptedReasoning()
    async with serving(reasoning, look=lambda: IDLE, load_reports=reports) as served:
        process = await asyncio.create_subprocess_exec(
            *(str(GRPCURL), "-plaintext", "-v", "-H", "authorization: Bearer good", "-d", '{"task": {"query": "?"}}'),
            *(f"127.0.0.1:{served.server.port}", "reasond.v1.ReasoningService/Reason"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        told, _ = await process.communicate()

    assert b"x-request-id: minted" in told, told
    assert (b"endpoint-load-metrics-bin: " in told) == is_told, told

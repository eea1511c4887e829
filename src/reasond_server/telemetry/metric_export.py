"""Sends the metrics of this process to an OTLP receiver, once a minute, as a scrape would read them."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.telemetry.exposition import ATTRIBUTES, STANDARD_METRICS
from reasond_server.telemetry.span_export import OtlpOptions, build_resource, open_exporter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client.core import Metric as Family
    from prometheus_client.samples import Exemplar, Sample

    from reasond_server.telemetry.exposition import Exposition

_STANDARD: Final = {each.exposed_name: each for each in STANDARD_METRICS}
_INTERVAL_VARIABLE: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL_S: Final = 60.0
_NANO: Final = 1_000_000_000


class MetricExport:
    """Sends what `exposition` has, until `aclose`, which sends it a last time within `within_s` seconds.

    The interval is OTEL_METRIC_EXPORT_INTERVAL (milliseconds), or a minute. What cannot be sent is lost; the next one
    has the sums.
    """

    def __init__(self, *, exposition: Exposition, options: OtlpOptions) -> None:
        self._exposition = exposition
        self._exporter = open_exporter(options)
        self._resource = build_resource(options)
        self._scope = InstrumentationScope("reasond", options.version)
        self._interval_s = _read_interval_s(options.environ.get(_INTERVAL_VARIABLE, ""))
        self._start_ns = time.time_ns()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to send."""
        self._task = asyncio.create_task(self._work(), name="metrics over OTLP")

    async def aclose(self, *, within_s: float) -> None:
        """Send a last time, and stop."""
        if self._task is None:
            return
        await end_task(self._task)
        sending = asyncio.ensure_future(self._send())
        await asyncio.wait({sending}, timeout=within_s)
        await end_task(sending)
        await asyncio.to_thread(self._exporter.shutdown)

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._send()

    async def _send(self) -> None:
        self._exposition.sample()
        await asyncio.to_thread(self._send_now)

    def _send_now(self) -> None:
        metrics = list(convert_metrics(self._exposition.collect(), start_ns=self._start_ns, now_ns=time.time_ns()))
        scope = ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        resource = ResourceMetrics(resource=self._resource, scope_metrics=[scope], schema_url="")
        self._exporter.export(MetricsData(resource_metrics=[resource]))


def convert_metrics(families: Iterable[Family], *, start_ns: int, now_ns: int) -> Iterable[Metric]:
    """Yield `families` as metrics of OpenTelemetry, those of a standard under its name; times are since 1970."""
    for family in families:
        standard = _STANDARD.get(family.name)
        data: Any
        if family.type == "histogram":
            points = list(_build_histogram_points(family.samples, start_ns=start_ns, now_ns=now_ns))
            data = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
        else:
            numbers = [
                NumberDataPoint(
                    attributes=_build_attributes(sample.labels),
                    start_time_unix_nano=start_ns,
                    time_unix_nano=now_ns,
                    value=sample.value,
                )
                for sample in family.samples
            ]
            data = Gauge(data_points=numbers)
            if family.type == "counter":
                cumulative = AggregationTemporality.CUMULATIVE
                data = Sum(data_points=numbers, aggregation_temporality=cumulative, is_monotonic=True)
        if data.data_points:
            yield Metric(
                name=standard.name if standard else family.name,
                description=family.documentation,
                unit=standard.unit if standard else "s" if family.name.endswith("_seconds") else "",
                data=data,
            )


def _build_histogram_points(samples: Sequence[Sample], *, start_ns: int, now_ns: int) -> Iterable[HistogramDataPoint]:
    """Yield a point for each series; the samples of a series follow each other, its buckets first."""
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        key = tuple((name, each) for name, each in sorted(sample.labels.items()) if name != "le")
        series.setdefault(key, []).append(sample)
    for key, found in series.items():
        buckets = sorted((float(each.labels["le"]), each) for each in found if "le" in each.labels)
        totals = [int(each.value) for _, each in buckets]
        yield HistogramDataPoint(
            attributes=_build_attributes(dict(key)),
            start_time_unix_nano=start_ns,
            time_unix_nano=now_ns,
            count=totals[-1],
            sum=next((each.value for each in found if each.name.endswith("_sum")), 0.0),
            bucket_counts=[total - before for total, before in zip(totals, [0, *totals], strict=False)],
            explicit_bounds=[bound for bound, _ in buckets if bound < math.inf],
            min=math.nan,
            max=math.nan,
            exemplars=[_build_exemplar(each.exemplar) for _, each in buckets if each.exemplar],
        )


def _build_exemplar(found: Exemplar) -> Any:  # noqa: ANN401 - OpenTelemetry's class is imported here only
    from opentelemetry.sdk.metrics import Exemplar as OtelExemplar  # noqa: PLC0415 - where there is one

    return OtelExemplar(
        filtered_attributes={},
        value=found.value,
        time_unix_nano=int(float(found.timestamp or 0) * _NANO),
        span_id=int(found.labels.get("span_id", "0"), 16),
        trace_id=int(found.labels.get("trace_id", "0"), 16),
    )


def _build_attributes(labels: dict[str, str]) -> dict[str, str]:
    return {ATTRIBUTES.get(name, name): each for name, each in labels.items() if each}


def _read_interval_s(text: str) -> float:
    """Return the interval that the variable names in milliseconds; a minute if it names none."""
    return max(0.1, int(text) / 1000) if text.strip().isdecimal() else _DEFAULT_INTERVAL_S

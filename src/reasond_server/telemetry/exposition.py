"""Samples gauges four times a second, and writes the metrics in the formats that Prometheus reads.

They are written in a thread, so that the event loop is not blocked. If PROMETHEUS_MULTIPROC_DIR is set before
`prometheus_client` is imported, any process returns the sums over all processes that share the folder. The parent of
these processes empties the folder before the first one starts and calls `forget_process` after each one has ended.

Some stand there under the names of gRPC and of OpenTelemetry too, made of ours when they are read; to count costs
nothing more. Sources: grpc/proposal A66 (all of its server metrics) and open-telemetry/semantic-conventions-genai
(gen_ai.client.operation.duration, gen_ai.client.token.usage). Prometheus has their names with underscores and the unit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.telemetry.observers import ProcessFacts, ServerSnapshot
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    from reasond_server.telemetry.meters import Meters

_INTERVAL_S: Final = 0.25
_PROCESS_EVERY: Final = 20
_COUNT_EVERY_S: Final = 5.0
_OWN_PROCESS: Final = Path("/proc/self")
_log = logging.getLogger("reasond.metrics")


@value
class StandardMetric:
    """One metric of a standard: its name there, its unit, and the metric of ours that it is made of.

    `labels` gives the standard's name of each label that is kept, and `transport` bounds which series count.
    """

    name: str
    unit: str
    made_of: str
    meaning: str
    labels: Mapping[str, str]
    is_of_models: bool = False
    transport: str = ""

    @property
    def exposed_name(self) -> str:
        """The name for Prometheus, without _total, _bucket and the like."""
        return self.name.replace(".", "_") + _UNITS.get(self.unit, "")


_UNITS: Final[Mapping[str, str]] = MappingProxyType({"s": "_seconds", "By": "_bytes"})

STANDARD_METRICS: Final = (
    StandardMetric(
        name="grpc.server.call.started",
        unit="{call}",
        made_of="reasond_rpcs_started",
        meaning="RPCs that began.",
        labels={"method": "grpc_method"},
    ),
    StandardMetric(
        name="grpc.server.call.duration",
        unit="s",
        made_of="reasond_call_duration_seconds",
        meaning="Time from the arrival of an RPC to its end, by its status.",
        labels={"method": "grpc_method", "code": "grpc_status"},
        transport="grpc",
    ),
    StandardMetric(
        name="grpc.server.call.rcvd_total_compressed_message_size",
        unit="By",
        made_of="reasond_rpc_received_bytes",
        meaning="Bytes of the requests of an RPC; what a client compressed counts unpacked.",
        labels={"method": "grpc_method", "code": "grpc_status"},
    ),
    StandardMetric(
        name="grpc.server.call.sent_total_compressed_message_size",
        unit="By",
        made_of="reasond_rpc_sent_bytes",
        meaning="Bytes of the responses of an RPC; none is compressed.",
        labels={"method": "grpc_method", "code": "grpc_status"},
    ),
    StandardMetric(
        name="gen_ai.client.operation.duration",
        unit="s",
        made_of="reasond_model_call_duration_seconds",
        meaning="Time of a model call, its retries included.",
        labels={"model": "gen_ai_request_model", "outcome": "error_type"},
        is_of_models=True,
    ),
    StandardMetric(
        name="gen_ai.client.token.usage",
        unit="{token}",
        made_of="reasond_model_call_tokens",
        meaning="Tokens of a model call.",
        labels={"model": "gen_ai_request_model", "kind": "gen_ai_token_type"},
        is_of_models=True,
    ),
)
"""The metrics of the standards that this server tells."""

_MADE_OF: Final = {each.made_of: each for each in STANDARD_METRICS}
ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "grpc_method": "grpc.method",
        "grpc_status": "grpc.status",
        "gen_ai_operation_name": "gen_ai.operation.name",
        "gen_ai_provider_name": "gen_ai.provider.name",
        "gen_ai_request_model": "gen_ai.request.model",
        "gen_ai_token_type": "gen_ai.token.type",
        "error_type": "error.type",
    }
)
"""The names of attributes in OpenTelemetry by those of labels."""


def add_standard_metrics(families: Iterable[Family], *, provider: str) -> Iterator[Family]:
    """Yield `families`, each followed by the standard's metric that is made of it; `provider` answers model calls."""
    for family in families:
        yield family
        wanted = _MADE_OF.get(family.name)
        if wanted is not None:
            yield _translate(family, wanted, provider)


def _translate(family: Family, wanted: StandardMetric, provider: str) -> Family:
    made = Family(wanted.exposed_name, wanted.meaning, family.type)
    fixed = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": provider} if wanted.is_of_models else {}
    made.samples = [
        sample._replace(
            name=sample.name.replace(family.name, wanted.exposed_name, 1),
            labels=fixed | _translate_labels(sample, wanted),
        )
        for sample in family.samples
        if not wanted.transport or sample.labels.get("transport") == wanted.transport
    ]
    return made


def _translate_labels(sample: Sample, wanted: StandardMetric) -> dict[str, str]:
    """Return the labels in the standard's names; outcomes that are no error have no `error_type`."""
    kept = {name: sample.labels[ours] for ours, name in wanted.labels.items()}
    if not kept.get("error_type", "X").isupper():
        kept["error_type"] = ""
    return kept | ({"le": sample.labels["le"]} if "le" in sample.labels else {})


class Sampler:
    """Feeds `metrics` with the snapshots of `look`, which must be quick and must not block.

    The facts of the process are read in a thread with every twentieth sample.
    """

    def __init__(self, *, metrics: Meters, look: Callable[[], ServerSnapshot], interval_s: float = _INTERVAL_S) -> None:
        self._metrics = metrics
        self._look = look
        self._interval_s = interval_s
        self._started_s = time.time()
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, *, count_awaiting: Callable[[], Awaitable[int]] | None = None) -> None:
        """Start to take samples until `aclose`; `count_awaiting` counts the waiting turns in the store."""
        if not self._tasks:
            self._tasks.append(asyncio.create_task(self._work(), name="samples of metrics"))
            if count_awaiting is not None:
                counting = self._count_turns(count_awaiting)
                self._tasks.append(asyncio.create_task(counting, name="count of waiting turns"))

    async def aclose(self) -> None:
        """Stop after a last sample, because other processes may still expose the counts of this one."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await end_task(task)
        if tasks:
            self.sample()

    def sample(self) -> None:
        """Take one sample now, so that the exposed metrics are current."""
        self._metrics.sample(self._look())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        rounds = 0
        while True:
            if rounds % _PROCESS_EVERY == 0:
                self._metrics.sample_process(await asyncio.to_thread(read_process_facts, self._started_s))
            rounds += 1
            try:
                self.sample()
            except Exception:  # noqa: BLE001 - the task has no caller that could handle it
                _log.exception("a sample of metrics could not be taken")
            due_s = loop.time() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self._metrics.loop_lagged(max(0.0, loop.time() - due_s))

    async def _count_turns(self, count_awaiting: Callable[[], Awaitable[int]]) -> None:
        """Count again and again; while the store cannot be reached, the last number stands."""
        while True:
            try:
                self._metrics.set_awaiting(await count_awaiting())
            except StoreUnavailableError:
                _log.debug("the waiting turns could not be counted")
            except Exception:  # noqa: BLE001 - the task has no caller that could handle it
                _log.exception("the waiting turns could not be counted")
            await asyncio.sleep(_COUNT_EVERY_S)


def read_process_facts(started_s: float) -> ProcessFacts:
    """Return the current facts of a process that began at `started_s`. Blocks, because it reads /proc."""
    times = os.times()
    return ProcessFacts(
        cpu_s=times.user + times.system,
        resident_bytes=_read_resident_bytes(),
        open_files=_count_open_files(),
        most_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        started_s=started_s,
    )


def _read_resident_bytes() -> int | None:
    try:
        pages = int((_OWN_PROCESS / "statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _count_open_files() -> int | None:
    try:
        return len(os.listdir(_OWN_PROCESS / "fd"))  # noqa: PTH208 - only the number is needed, and there may be 100,000
    except OSError:
        return None


FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_OPENMETRICS: Final = "application/openmetrics-text"
_OPENMETRICS_TYPE: Final = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@value
class Scrape:
    """All metrics in one format, ready to send."""

    body: bytes
    content_type: str


class Exposition:
    """Writes `registry`, or with several processes the metrics of all of them in `folder`. Calls `before` first.

    `provider` names in OpenTelemetry's metrics who answers model calls.

    Requests that arrive while the same format is being written share that answer, so many scrapers cost as much as one.
    """

    def __init__(
        self, *, registry: CollectorRegistry, before: Callable[[], None], folder: str = "", provider: str = "openai"
    ) -> None:
        self._source = _SeriesSource(registry=registry, folder=folder, provider=provider)
        self._own = _SeriesSource(registry=registry, folder="", provider=provider)
        self._before = before
        self._writing: dict[bool, asyncio.Future[bytes]] = {}

    async def scrape(self, accept: Sequence[str]) -> Scrape:
        """Return all metrics in the format that the values of the Accept header request; the default is text."""
        is_open = wants_openmetrics(accept)
        writing = self._writing.get(is_open)
        if writing is None:
            self._before()
            writing = asyncio.ensure_future(asyncio.to_thread(self._write, is_open=is_open))
            self._writing[is_open] = writing
            writing.add_done_callback(lambda _: self._writing.pop(is_open, None))
        body = await asyncio.shield(writing)
        return Scrape(body=body, content_type=_OPENMETRICS_TYPE if is_open else _TEXT_TYPE)

    def sample(self) -> None:
        """Make what `collect` reads current."""
        self._before()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of this process alone. Blocks."""
        return self._own.collect()

    def _write(self, *, is_open: bool) -> bytes:
        source: Any = self._source
        if not is_open:
            return as_text(source)
        written: bytes = as_openmetrics(source)  # type: ignore[no-untyped-call]  # the library has no types there
        return written


class _SeriesSource:
    """The series to write, without their `_created` times, which would nearly double the number of series."""

    def __init__(self, *, registry: CollectorRegistry, folder: str, provider: str) -> None:
        self._registry = registry
        self._folder = folder
        self._provider = provider

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        found: Any = self._registry
        if self._folder:
            found = MultiProcessCollector(None, self._folder)  # type: ignore[no-untyped-call]  # as above
        for metric in add_standard_metrics(found.collect(), provider=self._provider):
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def wants_openmetrics(accept: Sequence[str]) -> bool:
    """Return whether the values of the Accept header name OpenMetrics with a weight above 0."""
    for choice in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in choice.split(";"))
        if media_type == _OPENMETRICS:
            return not any(each in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for each in parameters)
    return False


def forget_process(process_id: int, folder: str) -> None:
    """Drop the gauges of a process that ended; its counters stay, because the sums must never decrease."""
    if os.path.isdir(folder):  # noqa: PTH112 - the library takes text
        mark_process_dead(process_id, folder)  # type: ignore[no-untyped-call]  # the library has no types there

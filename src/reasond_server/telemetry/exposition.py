"""Writes the metrics in the formats that Prometheus reads, in a thread so that the event loop is not blocked.

If PROMETHEUS_MULTIPROC_DIR is set before `prometheus_client` is imported, any process returns the sums over all
processes that share the folder. The parent of these processes empties the folder before the first one starts and calls
`forget_process` after each one has ended.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

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

    Requests that arrive while the same format is being written share that answer, so many scrapers cost as much as one.
    """

    def __init__(self, *, registry: CollectorRegistry, before: Callable[[], None], folder: str = "") -> None:
        self._source = _SeriesSource(registry=registry, folder=folder)
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

    def _write(self, *, is_open: bool) -> bytes:
        source: Any = self._source
        if not is_open:
            return as_text(source)
        written: bytes = as_openmetrics(source)  # type: ignore[no-untyped-call]  # the library has no types there
        return written


class _SeriesSource:
    """The series to write, without their `_created` times, which would nearly double the number of series."""

    def __init__(self, *, registry: CollectorRegistry, folder: str) -> None:
        self._registry = registry
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        found: Any = self._registry
        if self._folder:
            found = MultiProcessCollector(None, self._folder)  # type: ignore[no-untyped-call]  # as above
        for metric in found.collect():
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

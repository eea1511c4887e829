"""Writes the metrics in the formats that Prometheus reads, in a thread so that the event loop goes on.

With PROMETHEUS_MULTIPROC_DIR in the environment before `prometheus_client` is imported, the numbers of all processes
that share the folder are added up, whichever of them is asked. Whoever starts and reaps those processes empties the
folder before the first and calls `forget_process` after each that ended.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
_OPENMETRICS: Final = "application/openmetrics-text"
_OPENMETRICS_TYPE: Final = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
_TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """All metrics as they are sent."""

    body: bytes
    content_type: str


class Exposition:
    """Writes `registry`; in several processes, what all of them keep in `folder`. `before` is called first.

    Whoever asks while the same format is being written is given that answer: many scrapers cost no more than one.
    """

    def __init__(self, *, registry: CollectorRegistry, before: Callable[[], None], folder: str = "") -> None:
        self._source = _SeriesSource(registry=registry, folder=folder)
        self._before = before
        self._writing: dict[bool, asyncio.Future[bytes]] = {}

    async def scrape(self, accept: Sequence[str]) -> Scrape:
        """Return everything in the format that the values of the header Accept ask for, by default as text."""
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
    """What there is to write, without the time that each series was made at, which nearly doubles their number."""

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
    """Return whether the values of the header Accept name OpenMetrics, and not only to refuse it."""
    for choice in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in choice.split(";"))
        if media_type == _OPENMETRICS:
            return not any(each in {"q=0", "q=0.0", "q=0.00", "q=0.000"} for each in parameters)
    return False


def forget_process(process_id: int, folder: str) -> None:
    """Drop the gauges of a process that ended; what it counted stays, or the sums would go down."""
    if os.path.isdir(folder):  # noqa: PTH112 - the library takes text
        mark_process_dead(process_id, folder)  # type: ignore[no-untyped-call]  # the library has no types there

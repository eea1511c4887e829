"""Metrics of Prometheus with bounded sets of labels and with cheap counting.

Counters are kept in plain numbers and flushed to `prometheus_client` with every sample. Its own take a lock for each
increment, and take three times as long in files that several processes share. One event loop counts and samples.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from reasond_server.telemetry.catalogue import CATALOGUE
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.telemetry.catalogue import Metric

OTHER: Final = "other"


@value
class Vocabulary:
    """The allowed values of labels: `words` by the name of the label; a label without words accepts any value.

    A label has no words if only the server's code sets its values. An unknown value `FAMILY__NAME` is counted as
    `FAMILY__other` if that is a word, any other unknown value as `other`.
    """

    words: Mapping[str, frozenset[str]]

    def bound_value(self, label: str, value: str) -> str:
        """Return `value` if it is one of the label's words, else the word that stands for it."""
        known = self.words.get(label)
        if known is None or value in known:
            return value
        family = f"{value.partition('__')[0]}__{OTHER}"
        return family if family in known else OTHER


class Count:
    """A series of a counter."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._held = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`."""
        self._held += amount

    def flush(self) -> None:
        """Pass the sum to the library."""
        if self._held:
            held, self._held = self._held, 0.0
            self._counter.inc(held)


SeriesT = TypeVar("SeriesT")
MetricT = TypeVar("MetricT", Counter, Gauge, Histogram)


Key = str | tuple[str, ...]
"""The values of a metric's labels in order; a text if there is only one label."""


class SeriesFamily(dict[Key, SeriesT]):
    """The series of one metric by the values of its labels; each series is made once.

    `make` returns the series for bounded values. The class is a dictionary, so that a lookup needs no call of Python
    code. Values outside the vocabulary are not stored as keys, because their number is unbounded.
    """

    def __init__(
        self, *, labels: tuple[str, ...], vocabulary: Vocabulary, make: Callable[[tuple[str, ...]], SeriesT]
    ) -> None:
        super().__init__()
        self._labels = labels
        self._vocabulary = vocabulary
        self._make = make

    def __missing__(self, key: Key) -> SeriesT:
        """Return the series for these label values after they are bounded."""
        values = (key,) if isinstance(key, str) else key
        bounded = tuple(map(self._vocabulary.bound_value, self._labels, values))
        kept: Key = bounded[0] if isinstance(key, str) else bounded
        if kept not in self:
            self[kept] = self._make(bounded)
        return self[kept]


class Registry:
    """All metrics of the catalogue in their own registry, by kind and name."""

    def __init__(self, *, vocabulary: Vocabulary) -> None:
        self.collected = CollectorRegistry()
        self.counters: dict[str, SeriesFamily[Count]] = {}
        self.gauges: dict[str, SeriesFamily[Gauge]] = {}
        self.histograms: dict[str, SeriesFamily[Histogram]] = {}
        self._vocabulary = vocabulary
        self._counts: list[Count] = []
        for metric in CATALOGUE.values():
            self._add(metric)

    def flush(self) -> None:
        """Pass the counts since the last flush to the library."""
        for series in self._counts:
            series.flush()

    def _add(self, metric: Metric) -> None:
        name, meaning, labels, collected = metric.name, metric.meaning, metric.labels, self.collected
        make_family = partial(SeriesFamily, labels=tuple(labels), vocabulary=self._vocabulary)
        if metric.kind == "counter":
            counter = Counter(name, meaning, labels, registry=collected)
            self.counters[name] = make_family(make=lambda values: self._count(_choose_series(counter, values)))
        elif metric.kind == "gauge":
            gauge = Gauge(name, meaning, labels, registry=collected, multiprocess_mode=metric.merged)
            self.gauges[name] = make_family(make=partial(_choose_series, gauge))
        else:
            histogram = Histogram(name, meaning, labels, registry=collected, buckets=metric.buckets)
            self.histograms[name] = make_family(make=partial(_choose_series, histogram))

    def _count(self, counter: Counter) -> Count:
        series = Count(counter)
        self._counts.append(series)
        return series


def _choose_series(metric: MetricT, values: tuple[str, ...]) -> MetricT:
    return metric.labels(*values) if values else metric

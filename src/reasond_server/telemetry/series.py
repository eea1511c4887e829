"""Metrics of Prometheus with label sets that cannot grow: what is not in the vocabulary is counted as "other"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from reasond_server.telemetry.catalogue import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "other"

SeriesT = TypeVar("SeriesT", bound=MetricWrapperBase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The words that labels may hold: `words` by the name of the label; a label without words holds anything.

    Labels without words are those whose values come from this code alone.
    """

    words: Mapping[str, frozenset[str]]

    def bounded(self, label: str, value: str) -> str:
        """Return `value` if it is one of the label's words, else "other"."""
        known = self.words.get(label)
        return value if known is None or value in known else OTHER


class Family(Generic[SeriesT]):
    """The series of one metric; each is looked up once and kept."""

    def __init__(self, metric: SeriesT, *, labels: tuple[str, ...], vocabulary: Vocabulary) -> None:
        self._metric = metric
        self._labels = labels
        self._vocabulary = vocabulary
        self._kept: dict[tuple[str, ...], SeriesT] = {}

    def __call__(self, *values: str) -> SeriesT:
        """Return the series of these label values."""
        kept = self._kept.get(values)
        return self._found(values) if kept is None else kept

    def _found(self, values: tuple[str, ...]) -> SeriesT:
        if not self._labels:
            self._kept[values] = self._metric
            return self._metric
        bounded = tuple(map(self._vocabulary.bounded, self._labels, values))
        series = self._metric.labels(*bounded)
        if bounded == values:
            # Only what is in the vocabulary is kept: odd words, of which there is no end, are looked up each time.
            self._kept[values] = series
        return series


class Registry:
    """All metrics of the catalogue, made once, in a registry of their own."""

    def __init__(self, *, vocabulary: Vocabulary) -> None:
        self.collected = CollectorRegistry()
        self._vocabulary = vocabulary

    def counter(self, name: str) -> Family[Counter]:
        """Return the counter `name` of the catalogue."""
        told = CATALOGUE[name]
        return self._family(Counter(name, told.meaning, told.labels, registry=self.collected), name)

    def gauge(self, name: str) -> Family[Gauge]:
        """Return the gauge `name` of the catalogue."""
        told = CATALOGUE[name]
        made = Gauge(name, told.meaning, told.labels, registry=self.collected, multiprocess_mode=told.merged)
        return self._family(made, name)

    def histogram(self, name: str) -> Family[Histogram]:
        """Return the histogram `name` of the catalogue."""
        told = CATALOGUE[name]
        made = Histogram(name, told.meaning, told.labels, registry=self.collected, buckets=told.buckets)
        return self._family(made, name)

    def _family(self, metric: SeriesT, name: str) -> Family[SeriesT]:
        return Family(metric, labels=tuple(CATALOGUE[name].labels), vocabulary=self._vocabulary)

"""Metrics of Prometheus with bounded sets of labels and with cheap counting.

Counts are kept in plain numbers and flushed to `prometheus_client` with every sample. Its own counters take a lock for
each increment, and take three times as long in files that several processes share. One event loop counts and samples.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from reasond_server.telemetry.catalogue import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
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


class _Flushable(Protocol):
    """A series that buffers its counts."""

    def flush(self) -> None:
        """Pass the buffered counts to the library."""
        ...


class Count:
    """A series of a counter."""

    __slots__ = ("_counter", "_held")

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


class Spread:
    """A series of a histogram with the upper `bounds`."""

    __slots__ = ("_bounds", "_held", "_histogram", "_total")

    def __init__(self, histogram: Histogram, *, bounds: tuple[float, ...]) -> None:
        self._histogram = histogram
        self._bounds = bounds
        self._held = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in its bucket."""
        self._held[bisect_left(self._bounds, value)] += 1
        self._total += value

    def flush(self) -> None:
        """Pass the counts to the library."""
        held = self._held
        if not any(held):
            return
        # The library's API takes only one value at a time; these private buckets exist since its first release.
        for place, (bucket, count) in enumerate(zip(self._histogram._buckets, held, strict=True)):  # noqa: SLF001 - as said
            if count:
                bucket.inc(count)
                held[place] = 0
        self._histogram._sum.inc(self._total)  # noqa: SLF001 - as said
        self._total = 0.0


SeriesT = TypeVar("SeriesT")


Key = str | tuple[str, ...]
"""The values of a metric's labels in order; a text if there is only one label."""


class SeriesFamily(dict[Key, SeriesT]):
    """The series of one metric by the values of its labels; each series is made once.

    `make` returns the series for bounded values. The class is a dictionary, so that a lookup needs no call of Python
    code. Values outside the vocabulary are not stored as keys, because their number is unbounded.
    """

    __slots__ = ("_labels", "_make", "_vocabulary")

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
    """All metrics of the catalogue in their own registry; each is made once."""

    def __init__(self, *, vocabulary: Vocabulary) -> None:
        self.collected = CollectorRegistry()
        self._vocabulary = vocabulary
        self._flushable: list[_Flushable] = []

    def flush(self) -> None:
        """Pass the counts since the last flush to the library."""
        for series in self._flushable:
            series.flush()

    def counter(self, name: str) -> SeriesFamily[Count]:
        """Return the counter `name` of the catalogue."""
        told = CATALOGUE[name]
        counter = Counter(name, told.meaning, told.labels, registry=self.collected)

        def make(values: tuple[str, ...]) -> Count:
            series = Count(counter.labels(*values) if values else counter)
            self._flushable.append(series)
            return series

        return SeriesFamily(labels=tuple(told.labels), vocabulary=self._vocabulary, make=make)

    def histogram(self, name: str) -> SeriesFamily[Spread]:
        """Return the histogram `name` of the catalogue."""
        told = CATALOGUE[name]
        bounds = tuple(told.buckets)
        histogram = Histogram(name, told.meaning, told.labels, registry=self.collected, buckets=bounds)

        def make(values: tuple[str, ...]) -> Spread:
            series = Spread(histogram.labels(*values) if values else histogram, bounds=bounds)
            self._flushable.append(series)
            return series

        return SeriesFamily(labels=tuple(told.labels), vocabulary=self._vocabulary, make=make)

    def gauge(self, name: str) -> SeriesFamily[Gauge]:
        """Return the gauge `name` of the catalogue."""
        told = CATALOGUE[name]
        gauge = Gauge(name, told.meaning, told.labels, registry=self.collected, multiprocess_mode=told.merged)

        def make(values: tuple[str, ...]) -> Gauge:
            return gauge.labels(*values) if values else gauge

        return SeriesFamily(labels=tuple(told.labels), vocabulary=self._vocabulary, make=make)

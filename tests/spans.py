"""Spans for tests: collected in memory, and shown as a tree."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reasond_server.telemetry.span_export import SpanSink, TracingOptions, open_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

LIMIT_S = 180.0
Tree = list[Any]


@dataclass
class Spans:
    """A sink and the spans that it has received."""

    options: TracingOptions = field(default_factory=TracingOptions)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    sink: SpanSink = field(init=False)

    def __post_init__(self) -> None:
        self.sink = open_sink(self.exporter, self.options, is_batched=False)

    @property
    def all(self) -> Sequence[ReadableSpan]:
        """The ended spans, ordered by start time."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, order(span)))

    def find_named(self, start: str) -> Sequence[ReadableSpan]:
        return [span for span in self.all if span.name.startswith(start)]

    def one(self, start: str) -> ReadableSpan:
        (found,) = self.find_named(start)
        return found

    def tree(self, parent: int | None = None) -> Tree:
        """The names as nested lists: a span with children is followed by their list."""
        names: Tree = []
        known = {ids(span)[1] for span in self.all}
        for span in self.all:
            above = None if span.parent is None else span.parent.span_id
            if above == parent or (parent is None and above not in known):
                names.append(span.name)
                below = self.tree(ids(span)[1])
                names += [below] if below else []
        return names

    async def until(self, holds: Callable[[Spans], object]) -> None:
        """Let the server run until `holds`, because a span ends after its answer is sent."""
        async with asyncio.timeout(LIMIT_S):
            while not holds(self):  # noqa: ASYNC110 - the exporter has no event
                await asyncio.sleep(0)


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def order(span: ReadableSpan) -> int:
    """Return the sort key: if parent and child begin in the same nanosecond, the parent comes first."""
    return -(span.end_time or 0)


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})

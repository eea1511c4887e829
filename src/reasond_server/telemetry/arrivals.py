"""The span of a request: part of its caller's trace, but only once it is known who calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reasond_server.telemetry.scope import Scope
    from reasond_server.telemetry.spans import Attributes, OpenSpan, Tracing


class Arrival:
    """A request that has come in within `scope`, and is served until `left`.

    A caller whose token was accepted is believed: its trace goes on here, and its flag may decide whether it is kept.
    Anybody else gets a trace of the server's own, kept or not as if nothing had been said, with a link to the place
    that was named: a stranger must neither fill the traces nor write into those of others.
    """

    __slots__ = ("_attributes", "_began_ns", "_name", "_scope", "_span", "_tracing")

    def __init__(self, *, tracing: Tracing, scope: Scope, name: str, attributes: Attributes) -> None:
        self._tracing = tracing
        self._scope = scope
        self._name = name
        self._attributes = attributes
        self._began_ns = tracing.now_ns()
        self._span: OpenSpan | None = None
        scope.arrival = self

    def admit(self) -> None:
        """Begin the span where the caller says that it stands, at the time when the request came; once."""
        if self._span is None:
            self._begin(is_known=True)

    def left(self) -> OpenSpan:
        """Return the span, to be ended; one of the server's own where nobody was admitted."""
        return self._span or self._begin(is_known=False)

    def _begin(self, *, is_known: bool) -> OpenSpan:
        named = self._scope.trace
        self._span = span = self._tracing.serve(
            self._name,
            self._attributes,
            caller=named if is_known else None,
            links=() if is_known or named is None else (named,),
            began_ns=self._began_ns,
        )
        self._scope.span, self._scope.trace = span, span.context
        return span

"""W3C trace context: read and validated from the headers of callers, and written for outgoing calls.

Source: W3C Trace Context, level 1. Baggage is neither read nor forwarded, because it is content of strangers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final

from reasond_server.types.values import value

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACE_KEYS: Final = frozenset({TRACEPARENT, TRACESTATE})
"""The headers that `read_trace` reads."""
TRACE_NAMES: Final = frozenset(key.encode("ascii") for key in TRACE_KEYS)
"""The same in the form of ASGI, for `read_trace_bytes`."""

# A later version may add fields after the flags; the fields of this version come first.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
_MAX_CHARACTERS: Final = 512
_MAX_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_*/-]{0,240}(?:@[a-z][a-z0-9_*/-]{0,13})?=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


@value
class TraceContext:
    """A position in a trace: two ids in lower-case hex (32 and 16 digits), neither zero; vendors define `state`."""

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.is_sampled:02x}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry this context to the next program."""
        return {TRACEPARENT: self.traceparent, **({TRACESTATE: self.state} if self.state else {})}

    @property
    def text(self) -> str:
        """Both headers as one text for storage; `of_text` reads it."""
        return f"{self.traceparent} {self.state}".rstrip()

    @classmethod
    def of_text(cls, text: str) -> TraceContext | None:
        """Return the context in `text`; None if there is none."""
        if not text:
            return None
        parent, _, state = text.partition(" ")
        return parse_traceparent(parent, state)


def parse_traceparent(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context in the headers; None for an invalid `traceparent`. An invalid `tracestate` is dropped."""
    if len(traceparent) > _MAX_CHARACTERS:
        return None
    found = _FORM.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    state = tracestate if _is_state(tracestate) else ""
    return TraceContext(trace_id=trace_id, span_id=span_id, is_sampled=bool(int(flags, 16) & 1), state=state)


def read_trace(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """Return the caller's context from headers with lower-case names; None unless there is one valid `traceparent`."""
    found = [(key, value) for key, value in metadata if key in TRACE_KEYS]
    if not found:
        return None
    parents = [_decode_text(value) for key, value in found if key == TRACEPARENT]
    if len(parents) != 1:
        return None
    return parse_traceparent(parents[0], ",".join(_decode_text(value) for key, value in found if key == TRACESTATE))


def read_trace_bytes(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the result of `read_trace` for headers in the form of ASGI."""
    found = [(key.decode("ascii"), value) for key, value in headers if key in TRACE_NAMES]
    return read_trace(found) if found else None


_outgoing: Final[ContextVar[TraceContext | None]] = ContextVar("reasond_outgoing_trace", default=None)


def build_outgoing_headers() -> Mapping[str, str]:
    """Return the trace headers of the current outgoing call; empty if it carries no trace."""
    context = _outgoing.get()
    return {} if context is None else context.headers


class OutgoingTrace:
    """A context manager inside which `build_outgoing_headers` returns the headers of `context`."""

    def __init__(self, context: TraceContext | None) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = _outgoing.set(self._context)

    def __exit__(self, *_: object) -> None:
        _outgoing.reset(self._token)


def _is_state(text: str) -> bool:
    if not text or len(text) > _MAX_CHARACTERS:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    filled = [member for member in members if member]
    keys = {member.partition("=")[0] for member in filled}
    is_whole = all(_MEMBER.fullmatch(member) for member in filled)
    return is_whole and 0 < len(filled) <= _MAX_MEMBERS and len(keys) == len(filled)


def _decode_text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

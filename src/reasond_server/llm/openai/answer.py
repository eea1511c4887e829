"""One streamed answer, from bytes to events: limits of its waits, decoding, faults, and its end.

Generators are avoided, because each generator around a stream adds a cost to every event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from reasond_server.dialects.stream_forms import is_end, split_body, split_data
from reasond_server.errors.model import (
    ModelError,
    ModelFailedError,
    ModelProtocolError,
    ModelRateLimitedError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from reasond_server.llm.counting.requests import render_call
from reasond_server.llm.model import CALLERS_TIME, Finished, ModelFinish, ReasoningText, Text
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import parse_json
from reasond_server.llm.openai.protocol import AnswerEnd, Decoder, UpstreamReportError
from reasond_server.llm.openai.sse import ServerEvent, SseReader
from reasond_server.llm.openai.usage_reports import settle_usage
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.types import ToolCall, Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent, TokenCounter
    from reasond_server.llm.openai.backend_options import BackendOptions, Timeouts
    from reasond_server.llm.openai.transport import Upstream
    from reasond_server.telemetry.observers import Observer


_LINGER_FOR_USAGE_S = 2.0
_LINGER_FOR_END_S = 0.05
# The wait for the end when the caller has enough text: a server that ends its answer does so at its next token.
_LINGER_AFTER_ENOUGH_S = 1.0
# A token has about four characters, and servers send each token in an event of 250 bytes or more.
_CHARACTERS_PER_TOKEN = 4
_BYTES_PER_CHARACTER = 512
_T = TypeVar("_T")
_Piece: TypeAlias = "Text | ReasoningText | ToolCall"
_BOM = b"\xef\xbb\xbf"
_JSON_BEGINS = (b"{", b"[")
_MARGIN = 0.05
_STOPPED_IN_REASONING = (
    "The server ended hidden reasoning before any answer, perhaps at a stop string that the model thought of: this "
    "backend is called without stop strings from now on, and from the start with max_stops = 0 in its capabilities."
)


class AnswerReader:
    """Reads one answer.

    Attributes:
        is_done: the answer is complete: its end was received, or a stop string matched (`is_stopped`).
        is_accepted: some content was received, even if it is held back.
        has_content: text or a tool call was received, not only reasoning.
        characters: characters of the text returned so far, reasoning included.
        fault: an error that the server reported, or a breach of the protocol; nothing is read after it.
    """

    def __init__(self, *, decoder: Decoder, stop: Sequence[str], options: BackendOptions) -> None:
        self._decoder = decoder
        self._stop = StopFilter(stop)
        self._events = SseReader(max_line_bytes=options.max_line_bytes)
        self._body: list[bytes] | None = None
        self._is_begun = False
        self._written: list[str] = []
        self.fault: ModelProtocolError | UpstreamReportError | None = None
        self._taken = 0
        self.is_done = False
        self.is_accepted = False
        self.has_content = False
        self.characters = 0

    @property
    def progress(self) -> int:
        """Characters of content received so far, returned or held back."""
        return self._taken + self._decoder.held_characters

    def count_earned_bytes(self, max_tokens: int) -> int:
        """Return the most bytes that the content so far may take on the wire, at most 2 KiB per requested token.

        So a long answer is not refused because of its length, and bytes without content are bounded.
        """
        return _BYTES_PER_CHARACTER * min(self.progress, _CHARACTERS_PER_TOKEN * max_tokens)

    @property
    def is_stopped(self) -> bool:
        """Whether one of our stop strings ended the answer."""
        return self._stop.matched is not None

    @property
    def written(self) -> str:
        """All text, reasoning and tool calls returned so far."""
        return "".join(self._written)

    def take(self, data: bytes) -> list[_Piece]:
        """Take the bytes of one read and return their events; adjacent pieces of text become one event.

        If the server reports an error or breaks the protocol, `fault` is set and the events before it are returned.
        """
        if not self._is_begun and data.strip():
            self._is_begun = True
            # Some gateways answer with JSON that they call a stream.
            self._body = [] if data.removeprefix(_BOM).lstrip()[:1] in _JSON_BEGINS else None
        if self._body is not None:
            self._body.append(data)
            return []
        return self._take_events(self._events.feed, data)

    def end(self) -> list[_Piece]:
        """Return the events that only the end of the bytes completes: a last line without a blank one, or a body."""
        if self._body is None:
            return self._take_events(SseReader.end, self._events)
        body, self._body = b"".join(self._body), None
        return self._take_events(lambda _: [ServerEvent(chunk) for chunk in split_body(body)], None)

    def _take_events(self, read: Callable[[_T], Sequence[ServerEvent]], source: _T) -> list[_Piece]:
        found: list[_Piece] = []
        try:
            for event in read(source):
                if is_end(event.data):
                    self.is_done = True
                    break
                if event.name == b"error":
                    raise UpstreamReportError(parse_json(event.data))  # noqa: TRY301 - stored in `fault` until all earlier events are returned
                # The fast path: nearly all data is one line.
                if event.data[:1] == b"{" and b"\n" not in event.data and b"}{" not in event.data:
                    found.extend(self._decoder.feed(event.data))
                else:
                    self._take_lines(event.data, found)
            else:
                self.fault = self._events.fault
        except (ModelProtocolError, UpstreamReportError) as fault:
            self.fault = fault
        events = self._merge_pieces(found)
        if self.is_stopped:
            # A fault after a stop string does not matter.
            self.fault = None
        self.is_accepted = self.is_accepted or self.progress > 0
        if self.fault is not None:
            events.extend(self.flush())
        return events

    def _take_lines(self, data: bytes, found: list[_Piece]) -> None:
        for chunk in split_data(data):
            if is_end(chunk):
                self.is_done = True
                return
            found.extend(self._decoder.feed(chunk))

    def _merge_pieces(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        events: list[_Piece] = []
        end, count = 0, len(pieces)
        stop = self._stop
        while end < count and stop.matched is None:
            start, kind = end, type(pieces[end])
            while end < count and type(pieces[end]) is kind:
                end += 1
            run = pieces[start:end]
            if kind is Text:
                self._show("".join([piece.text for piece in run if isinstance(piece, Text)]), events)
            elif kind is ReasoningText:
                thought = "".join([piece.text for piece in run if isinstance(piece, ReasoningText)])
                self._taken += len(thought)
                events.append(ReasoningText(text=self._note(thought)))
            else:
                self._taken += 1
                self._written.extend([render_call(piece) for piece in run if isinstance(piece, ToolCall)])
                self.has_content = True
                events.extend(run)
        self.is_done = self.is_done or stop.matched is not None
        return events

    def flush(self) -> list[_Piece]:
        """Return what was held back: text that could begin a tag or a stop string, and calls behind the finish."""
        events: list[_Piece] = []
        rest = () if self.is_stopped else self._decoder.flush()
        self.is_accepted = self.is_accepted or bool(rest)
        events.extend(self._merge_pieces(rest))
        held = self._stop.flush()
        if held:
            events.append(Text(text=self._note(held)))
        return events

    def find_end(self) -> AnswerEnd:
        """Return the known state of the end."""
        ending = self._decoder.find_end()
        if self.is_stopped:
            matched = self._stop.matched
            return AnswerEnd(reason=ModelFinish.STOP, usage=None, matched_stop=matched, tokens=ending.tokens)
        return ending

    def _show(self, text: str, events: list[_Piece]) -> None:
        self._taken += len(text)
        self.has_content = self.has_content or not text.isspace()
        shown = self._stop.feed(text)
        if shown:
            events.append(Text(text=self._note(shown)))

    def _note(self, text: str) -> str:
        self.characters += len(text)
        self._written.append(text)
        return text


class WaitLimitError(Exception):
    """A wait exceeded its limit of `seconds`, which `setting` names; `what` describes the failure.

    `is_callers`: the caller's time was the limit, so the backend's health is not affected.
    """

    def __init__(self, what: str, *, seconds: float, setting: str, is_callers: bool = False) -> None:
        super().__init__(what)
        self.what = what
        self.seconds = seconds
        self.setting = setting
        self.is_callers = is_callers


class Deadline:
    """The moment when a whole call must have ended.

    Args:
        timeouts: `total_s` limits the call.
        time_left_s: seconds that the caller allows until the answer begins; 5 % of them are kept to return it. None
            for no limit.
        monotonic: a clock that never goes back, in seconds.
    """

    def __init__(self, *, timeouts: Timeouts, time_left_s: float | None, monotonic: Callable[[], float]) -> None:
        allowed = time_left_s * (1 - _MARGIN) if time_left_s is not None else timeouts.total_s
        self._is_callers = allowed < timeouts.total_s
        self.seconds = max(0.0, min(allowed, timeouts.total_s))
        self._monotonic = monotonic
        self._began = monotonic()
        self._total_s = timeouts.total_s

    def extend_to_total(self) -> None:
        """Limit the call by `total_s` only: a caller with less time closes the call and keeps the text received."""
        self.seconds = self._total_s
        self._is_callers = False

    def end_within(self, seconds: float) -> None:
        """Move the deadline to at most `seconds` from now."""
        self.seconds = min(self.seconds, self._monotonic() - self._began + seconds)

    def compute_left_s(self) -> float:
        """Return the seconds that are left; negative after the deadline."""
        return self._began + self.seconds - self._monotonic()

    def build_error(self) -> WaitLimitError:
        """Return the error for a call that exceeded this deadline."""
        setting = CALLERS_TIME if self._is_callers else "timeouts.total_s"
        what = "did not end its answer"
        return WaitLimitError(what, seconds=self.seconds, setting=setting, is_callers=self._is_callers)


class WaitLimits:
    """Limits every wait of one attempt.

    Only waiting is measured, so a slow consumer does not use up the model's time. Only content restarts the idle time,
    so keep-alives do not keep a dead call open.
    """

    def __init__(self, *, timeouts: Timeouts, deadline: Deadline, monotonic: Callable[[], float]) -> None:
        self._timeouts = timeouts
        self._deadline = deadline
        self._monotonic = monotonic
        self._left_s = timeouts.first_token_s
        self._has_begun = False

    def check(self) -> float:
        """Return the seconds that are left to wait.

        Raises:
            WaitLimitError: no time is left.
        """
        left = min(self._left_s, self._deadline.compute_left_s())
        if left <= 0:
            raise self._build_error()
        return left

    async def wait(self, begin: Callable[[], Awaitable[_T]]) -> _T:
        """Await what `begin` returns.

        Raises:
            WaitLimitError: it took too long and was cancelled.
        """
        left = self.check()
        began = self._monotonic()
        try:
            async with asyncio.timeout(left):
                return await begin()
        except TimeoutError:
            self._left_s -= left
            raise self._build_error() from None
        finally:
            self._left_s -= self._monotonic() - began

    def note_content(self) -> None:
        """Begin a new idle time."""
        self._left_s = self._timeouts.idle_s
        if not self._has_begun:
            self._has_begun = True
            self._deadline.extend_to_total()

    def end_within(self, seconds: float) -> None:
        """End all waits at most `seconds` from now, even if content arrives."""
        self._deadline.end_within(seconds)

    def linger(self, seconds: float) -> None:
        """Wait at most `seconds` more: the content is complete."""
        self._left_s = min(self._left_s, seconds)

    def _build_error(self) -> WaitLimitError:
        if self._left_s >= self._deadline.compute_left_s():
            return self._deadline.build_error()
        timeouts = self._timeouts
        if self._has_begun:
            return WaitLimitError("went silent", seconds=timeouts.idle_s, setting="timeouts.idle_s")
        seconds, setting = timeouts.first_token_s, "timeouts.first_token_s"
        return WaitLimitError("did not begin to answer", seconds=seconds, setting=setting)


_Trouble = UpstreamFaultError | WaitLimitError | UpstreamReportError | ModelProtocolError


@dataclass(eq=False, kw_only=True)
class StreamedAnswer:
    """An answer whose headers were received. `is_over` is true after its `Finished` (with `warnings`) was returned.

    If the connection breaks or the server reports an error, all earlier events are returned first, then the fault is
    raised. Once the caller has enough text, the end is awaited for at most one second, and a fault counts as the end.
    `on_stopped_in_reasoning` is called if the model stopped before its answer began; None if no stop strings were
    sent, so that they cannot be the cause.
    """

    request: ChatRequest
    warnings: Sequence[str]
    options: BackendOptions
    reader: AnswerReader
    upstream: Upstream
    limits: WaitLimits
    counter: TokenCounter
    observer: Observer
    on_stopped_in_reasoning: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._fault: UpstreamFaultError | None = None
        self._is_enough = False
        self.is_over = False

    async def read_events(self) -> Sequence[ModelEvent]:
        """Return the events of the next read, which may be none.

        Raises:
            UpstreamFaultError: the answer failed; all earlier events were returned.
        """
        reader = self.reader
        if not self._is_enough and self.request.has_enough():
            self._is_enough = True
            self.limits.end_within(_LINGER_AFTER_ENOUGH_S)
        if self._fault is not None and not self._is_enough:
            raise self._fault
        if reader.is_stopped or self._fault is not None:
            return self._finish()
        try:
            data = await self.limits.wait(self._read)
        except (UpstreamFaultError, WaitLimitError) as trouble:
            # A fault after the server reported the finish reason does not matter.
            return self._fail(trouble, []) if self._find_reason(reader.find_end()) is None else self._finish()
        return self._take_bytes(data) if data else self._take_end()

    async def aclose(self) -> None:
        """Close the answer; if the server is still writing, its connection ends at once."""
        await self.upstream.aclose()

    async def _read(self) -> bytes:
        return await self.upstream.read(granted=self._count_granted_bytes)

    def _count_granted_bytes(self) -> int:
        return self.reader.count_earned_bytes(self.request.max_tokens)

    def _take_bytes(self, data: bytes) -> Sequence[ModelEvent]:
        reader = self.reader
        before = reader.progress
        events: list[ModelEvent] = [*reader.take(data)]
        if reader.fault is not None:
            return self._finish(events) if self._is_enough else self._fail(reader.fault, events)
        if reader.progress > before:
            self.limits.note_content()
        if reader.is_done:
            self.limits.linger(_LINGER_FOR_END_S)
        elif reader.find_end().reason is not None:
            self.limits.linger(_LINGER_FOR_USAGE_S)
        return events

    def _take_end(self) -> Sequence[ModelEvent]:
        """Return the events that the end of the bytes completes, and those of the end of the answer."""
        events: list[ModelEvent] = [*self.reader.end()]
        if self.reader.fault is not None and not self._is_enough:
            return self._fail(self.reader.fault, events)
        return self._finish(events)

    def _finish(self, events: Sequence[ModelEvent] = ()) -> Sequence[ModelEvent]:
        """Return `events`, the text that was held back, and the `Finished`."""
        events = [*events, *self.reader.flush()]
        try:
            events.append(self._build_finished())
        except UpstreamFaultError as trouble:
            return self._fail(trouble, events)
        self.is_over = True
        return events

    def _fail(self, trouble: _Trouble, events: list[ModelEvent]) -> Sequence[ModelEvent]:
        """Return `events` and the text that was held back; the next read raises the fault. No events: raise it now."""
        fault, reader = self._build_fault(trouble), self.reader
        events.extend(reader.flush())
        if reader.is_accepted:
            fault.error = error_after_tokens(fault.error, characters=reader.characters)
            fault.retries = 0
        if not events:
            raise fault from None
        self._fault = fault
        return events

    def _find_reason(self, ending: AnswerEnd) -> ModelFinish | None:
        """Return why the model stopped; STOP if the caller has enough text."""
        return ending.reason or (ModelFinish.STOP if self._is_enough else None)

    def _build_finished(self) -> Finished:
        ending = self.reader.find_end()
        reason = self._find_reason(ending)
        if reason is None:
            raise faults.build_protocol_fault(self.options, "ended its answer without telling why it stopped")
        usage, doubts = settle_usage(
            ending.usage, request=self.request, written=self.reader.written, counter=self.counter
        )
        if usage.source is not UsageSource.REPORTED:
            self.observer.usage_corrected(self.options.name, usage.source.value)
        if self.options.price is not None:
            usage = self.options.price.charge(usage)
        is_stopped = self._is_stopped_in_reasoning(reason, usage)
        own = (*doubts, _STOPPED_IN_REASONING) if is_stopped else doubts
        return Finished(
            reason=reason,
            usage=usage,
            matched_stop=ending.matched_stop,
            warnings=(*self.warnings, *ending.warnings, *own),
            is_stopped_in_reasoning=is_stopped,
            tokens=ending.tokens,
        )

    def _is_stopped_in_reasoning(self, reason: ModelFinish, usage: Usage) -> bool:
        """Return whether stop strings may have ended the reasoning, and call `on_stopped_in_reasoning` if so."""
        has_reasoned = bool(self.reader.characters or usage.reasoning_tokens)
        if reason is not ModelFinish.STOP or self.reader.has_content or not has_reasoned:
            return False
        if self.on_stopped_in_reasoning is None:
            return False
        self.on_stopped_in_reasoning()
        return True

    def _build_fault(self, trouble: _Trouble) -> UpstreamFaultError:
        if isinstance(trouble, UpstreamFaultError):
            return trouble
        if isinstance(trouble, WaitLimitError):
            return build_wait_fault(self.options, trouble)
        if isinstance(trouble, UpstreamReportError):
            return faults.classify_report(self.options, trouble.report)
        return UpstreamFaultError(trouble, retries=faults.ONCE, is_unhealthy=True, may_cost=True)


def build_wait_fault(options: BackendOptions, waited: WaitLimitError) -> UpstreamFaultError:
    """Return the fault for a wait that exceeded its limit."""
    return faults.build_timeout_fault(
        options, waited.what, waited.seconds, waited.setting, is_callers=waited.is_callers
    )


def error_after_tokens(error: ModelError, *, characters: int) -> ModelError:
    """Return the error for a fault after part of the answer was received; never an error that means no cost."""
    if not isinstance(error, (ModelUnavailableError, ModelRateLimitedError, ModelTimeoutError)):
        return error
    return ModelFailedError(
        f"{error.message}; {characters} characters of the answer had come",
        remedy="The partial text is kept. Ask again for a whole answer.",
        metadata=error.metadata,
    )

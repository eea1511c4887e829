"""One answer while it comes: each read becomes events, what goes wrong a fault, and its end a `Finished`.

No generators: each of them around a stream costs every event that passes through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import ModelProtocolError
from reasond_server.llm.model import Finished, ModelFinish
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.deadlines import WaitedTooLongError
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.protocol import UpstreamReportError
from reasond_server.llm.openai.usage import settled, truncation_warning
from reasond_server.types import UsageSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest, ModelEvent, TokenCounter
    from reasond_server.llm.openai.deadlines import Patience
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.openai.reading import AnswerReader
    from reasond_server.llm.openai.transport import Upstream
    from reasond_server.telemetry.observers import BackendObserver

_LINGER_FOR_USAGE_S = 2.0
_LINGER_FOR_END_S = 0.05
# Once the caller has enough: a server that ends its answer does so at its next token.
_LINGER_AFTER_ENOUGH_S = 1.0

_Trouble = UpstreamFaultError | WaitedTooLongError | UpstreamReportError | ModelProtocolError


class Answering:
    """An answer of which the headers came. `is_over` once its `Finished` was returned; `warnings` go into that.

    Once the caller has enough of the text, the end is waited for a second at most, and whatever goes wrong then is one.
    """

    def __init__(
        self,
        *,
        request: ChatRequest,
        warnings: Sequence[str],
        options: BackendOptions,
        reader: AnswerReader,
        upstream: Upstream,
        patience: Patience,
        counter: TokenCounter,
        observer: BackendObserver,
    ) -> None:
        self._request = request
        self._warnings = warnings
        self._options = options
        self._reader = reader
        self._upstream = upstream
        self._patience = patience
        self._counter = counter
        self._observer = observer
        self._fault: UpstreamFaultError | None = None
        self._is_enough = False
        self.is_over = False

    async def events(self) -> Sequence[ModelEvent]:
        """Return what the next read brings, which may be nothing.

        Raises:
            UpstreamFaultError: the answer failed; all that had come before was returned.
        """
        reader = self._reader
        if not self._is_enough and self._request.has_enough():
            self._is_enough = True
            self._patience.end_within(_LINGER_AFTER_ENOUGH_S)
        if self._fault is not None and not self._is_enough:
            raise self._fault
        if reader.is_stopped or self._fault is not None:
            return self._ended()
        try:
            self._patience.check()
            data = self._upstream.ready(granted=self._granted)
            if data is None:
                data = await self._patience.wait(self._read)
        except (UpstreamFaultError, WaitedTooLongError) as trouble:
            # What goes wrong after its finish was told does not matter.
            return self._failed(trouble, []) if self._reason() is None else self._ended()
        return self._taken(data) if data else self._ended()

    def close(self) -> None:
        """Let go of the answer; a server that still writes it sees the connection end at once."""
        self._upstream.close()

    async def _read(self) -> bytes:
        return await self._upstream.read(granted=self._granted)

    def _granted(self) -> int:
        return self._reader.earned_bytes(self._request.max_tokens)

    def _taken(self, data: bytes) -> Sequence[ModelEvent]:
        reader = self._reader
        before = reader.progress
        events: list[ModelEvent] = [*reader.take(data)]
        if reader.fault is not None:
            return self._ended(events) if self._is_enough else self._failed(reader.fault, events)
        if reader.is_done and self._upstream.is_over:
            return self._ended(events)
        if reader.progress > before:
            self._patience.content_came()
        if reader.is_done:
            self._patience.linger(_LINGER_FOR_END_S)
        elif reader.ending().reason is not None:
            self._patience.linger(_LINGER_FOR_USAGE_S)
        return events

    def _ended(self, events: Sequence[ModelEvent] = ()) -> Sequence[ModelEvent]:
        """Return `events`, what was held back and how the answer ended."""
        events = [*events, *self._reader.rest()]
        try:
            events.append(self._finished())
        except UpstreamFaultError as trouble:
            return self._failed(trouble, events)
        self.is_over = True
        return events

    def _failed(self, trouble: _Trouble, events: list[ModelEvent]) -> Sequence[ModelEvent]:
        """Return `events` and what was held back; the fault is raised once all that was passed on."""
        fault, reader = self._fault_of(trouble), self._reader
        events.extend(reader.rest())
        if reader.is_accepted:
            fault.error = faults.after_tokens(fault.error, characters=reader.characters)
            fault.retries = 0
        if not events:
            raise fault from None
        self._fault = fault
        return events

    def _reason(self) -> ModelFinish | None:
        """Return why the model stopped; where the caller had enough, that is a reason."""
        return self._reader.ending().reason or (ModelFinish.STOP if self._is_enough else None)

    def _finished(self) -> Finished:
        ending, reason = self._reader.ending(), self._reason()
        if reason is None:
            raise faults.breach(self._options, "ended its answer without telling why it stopped")
        messages = self._request.messages
        truncated = truncation_warning(ending.usage, messages=messages, counter=self._counter)
        usage = settled(ending.usage, messages=messages, written=self._reader.written, counter=self._counter)
        if usage.source is not UsageSource.REPORTED:
            self._observer.usage_mended(self._options.name, usage.source.value)
        return Finished(
            reason=reason,
            usage=usage,
            matched_stop=ending.matched_stop,
            warnings=(*self._warnings, *([truncated] if truncated else ())),
        )

    def _fault_of(self, trouble: _Trouble) -> UpstreamFaultError:
        if isinstance(trouble, UpstreamFaultError):
            return trouble
        if isinstance(trouble, WaitedTooLongError):
            return late(self._options, trouble)
        if isinstance(trouble, UpstreamReportError):
            return faults.reported(self._options, trouble.report)
        return faults.broken(trouble)


def late(options: BackendOptions, waited: WaitedTooLongError) -> UpstreamFaultError:
    """Return the fault for a wait that came to its end."""
    return faults.late(options, waited.what, waited.seconds, waited.setting, is_callers=waited.is_callers)

"""One streamed answer, from bytes to events: decoded, stop strings applied, coalesced per read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import ModelProtocolError
from reasond_server.llm.model import ModelFinish, ReasoningText, Text
from reasond_server.llm.openai.json_values import json_value
from reasond_server.llm.openai.protocol import Ending, UpstreamReportError
from reasond_server.llm.openai.sse import SseReader
from reasond_server.llm.stopping import StopFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.openai.protocol import Decoder
    from reasond_server.types import ToolCall

_DONE = b"[DONE]"
# A token has about four characters, and servers wrap each in an event of its own of 250 bytes and more.
_CHARACTERS_PER_TOKEN = 4
_BYTES_PER_CHARACTER = 512


class AnswerReader:
    """Reads one answer.

    Attributes:
        is_done: nothing that matters can come any more; `is_stopped` if that is so because of a stop string.
        is_accepted: something of the answer came, be it held back or not.
        characters: how much text was let through, reasoning included.
        fault: what the server said or did wrong; nothing is read after it.
    """

    def __init__(self, *, decoder: Decoder, stop: Sequence[str], options: BackendOptions) -> None:
        self._decoder = decoder
        self._stop = StopFilter(stop)
        self._events = SseReader(max_line_bytes=options.max_line_bytes)
        self._written: list[str] = []
        self.fault: ModelProtocolError | UpstreamReportError | None = None
        self._taken = 0
        self.is_done = False
        self.is_accepted = False
        self.characters = 0

    @property
    def progress(self) -> int:
        """A number that grows with the content that comes, whether it is let through or held back."""
        return self._taken + self._decoder.held_characters

    def earned_bytes(self, max_tokens: int) -> int:
        """Return what the content so far may have taken on the wire: at most 2 KiB for each token that was asked for.

        So a long answer is not refused for its length, while what brings no content earns nothing.
        """
        return _BYTES_PER_CHARACTER * min(self.progress, _CHARACTERS_PER_TOKEN * max_tokens)

    @property
    def is_stopped(self) -> bool:
        """Whether one of our stop strings ended the answer."""
        return self._stop.matched is not None

    @property
    def written(self) -> str:
        """Everything that the model wrote, as far as it was let through."""
        return "".join(self._written)

    def take(self, data: bytes) -> list[Text | ReasoningText | ToolCall]:
        """Take the bytes of one read and return what they hold: of text that follows upon text, one event.

        Where the server tells an error or breaks the protocol, `fault` is set, and what came before it is returned.
        """
        found: list[Text | ReasoningText | ToolCall] = []
        try:
            for event in self._events.feed(data):
                if event.data == _DONE:
                    self.is_done = True
                    break
                if event.name == b"error":
                    raise UpstreamReportError(json_value(event.data))  # noqa: TRY301 - kept until all before it is told
                found.extend(self._decoder.feed(event.data))
            else:
                self.fault = self._events.fault
        except (ModelProtocolError, UpstreamReportError) as fault:
            self.fault = fault
        events = self._merged(found)
        if self.is_stopped:
            # What comes after a stop string does not matter.
            self.fault = None
        self.is_accepted = self.is_accepted or self.progress > 0
        if self.fault is not None:
            events.extend(self.rest())
        return events

    def _merged(self, pieces: Sequence[Text | ReasoningText | ToolCall]) -> list[Text | ReasoningText | ToolCall]:
        events: list[Text | ReasoningText | ToolCall] = []
        end, count = 0, len(pieces)
        while end < count and not self.is_stopped:
            start, kind = end, type(pieces[end])
            while end < count and type(pieces[end]) is kind:
                end += 1
            run = pieces[start:end]
            if kind is Text:
                self._show("".join([piece.text for piece in run if isinstance(piece, Text)]), events)
            elif kind is ReasoningText:
                thought = "".join([piece.text for piece in run if isinstance(piece, ReasoningText)])
                self._taken += len(thought)
                events.append(ReasoningText(text=self._noted(thought)))
            else:
                self._taken += 1
                events.extend(run)
        self.is_done = self.is_done or self.is_stopped
        return events

    def rest(self) -> list[Text | ReasoningText | ToolCall]:
        """Return the text that was held back because a tag or a stop string might have come of it."""
        events: list[Text | ReasoningText | ToolCall] = []
        for piece in () if self.is_stopped else self._decoder.rest():
            self.is_accepted = True
            if isinstance(piece, Text):
                self._show(piece.text, events)
            else:
                events.append(ReasoningText(text=self._noted(piece.text)))
        held = self._stop.flush()
        if held:
            events.append(Text(text=self._noted(held)))
        return events

    def ending(self) -> Ending:
        """Return what is known of the end."""
        ending = self._decoder.ending()
        if self.is_stopped:
            return Ending(reason=ModelFinish.STOP, usage=None, matched_stop=self._stop.matched)
        return ending

    def _show(self, text: str, events: list[Text | ReasoningText | ToolCall]) -> None:
        self._taken += len(text)
        shown = self._stop.feed(text)
        if shown:
            events.append(Text(text=self._noted(shown)))

    def _noted(self, text: str) -> str:
        self.characters += len(text)
        self._written.append(text)
        return text

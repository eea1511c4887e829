"""One streamed answer, from bytes to events: decoded, stop strings applied, coalesced per read."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from reasond_server.errors import ModelProtocolError
from reasond_server.llm.model import ModelFinish, ReasoningText, Text
from reasond_server.llm.openai.json_values import json_value
from reasond_server.llm.openai.protocol import Ending, UpstreamReportError
from reasond_server.llm.openai.sse import SseReader
from reasond_server.llm.stopping import StopFilter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    """

    def __init__(self, *, decoder: Decoder, stop: Sequence[str], options: BackendOptions) -> None:
        self._decoder = decoder
        self._stop = StopFilter(stop)
        self._events = SseReader(max_line_bytes=options.max_line_bytes)
        self._written: list[str] = []
        self._fault: ModelProtocolError | UpstreamReportError | None = None
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

    def take(self, data: bytes) -> Iterator[Text | ReasoningText | ToolCall]:
        """Take the bytes of one read and yield what they hold: of text that follows upon text, one event.

        Raises:
            UpstreamReportError: the server tells an error; what came before it was yielded.
            ModelProtocolError: the server broke the protocol; what came before it was yielded.
        """
        yield from self._merged(data)
        self.is_accepted = self.is_accepted or self.progress > 0
        if self._fault is not None:
            yield from self.rest()
            raise self._fault

    def _merged(self, data: bytes) -> Iterator[Text | ReasoningText | ToolCall]:
        for kind, run in groupby(self._pieces(data), type):
            if kind is Text:
                yield from self._shown("".join(piece.text for piece in run if isinstance(piece, Text)))
            elif kind is ReasoningText:
                thought = "".join(piece.text for piece in run if isinstance(piece, ReasoningText))
                self._taken += len(thought)
                yield ReasoningText(text=self._noted(thought))
            else:
                self._taken += 1
                yield from run
            if self.is_stopped:
                self.is_done = True
                return

    def rest(self) -> Iterator[Text | ReasoningText]:
        """Yield the text that was held back because a tag or a stop string might have come of it."""
        for piece in () if self.is_stopped else self._decoder.rest():
            self.is_accepted = True
            if isinstance(piece, Text):
                yield from self._shown(piece.text)
            else:
                yield ReasoningText(text=self._noted(piece.text))
        held = self._stop.flush()
        if held:
            yield Text(text=self._noted(held))

    def ending(self) -> Ending:
        """Return what is known of the end."""
        ending = self._decoder.ending()
        if self.is_stopped:
            return Ending(reason=ModelFinish.STOP, usage=None, matched_stop=self._stop.matched)
        return ending

    def _pieces(self, data: bytes) -> Iterator[Text | ReasoningText | ToolCall]:
        try:
            for event in self._events.feed(data):
                if self.is_done:
                    return
                if event.data == _DONE:
                    self.is_done = True
                    return
                if event.name == b"error":
                    raise UpstreamReportError(json_value(event.data))  # noqa: TRY301 - kept until all before it was yielded
                yield from self._decoder.feed(event.data)
        except (ModelProtocolError, UpstreamReportError) as fault:
            self._fault = fault

    def _shown(self, text: str) -> Iterator[Text]:
        self._taken += len(text)
        shown = self._stop.feed(text)
        if shown:
            yield Text(text=self._noted(shown))

    def _noted(self, text: str) -> str:
        self.characters += len(text)
        self._written.append(text)
        return text

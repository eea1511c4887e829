"""Server-sent events from bytes, however the bytes are split (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

from typing import NamedTuple

from reasond_server.dialects.stream_forms import is_whole
from reasond_server.errors.model import ModelProtocolError

_BOM = b"\xef\xbb\xbf"
_CR = b"\r"
_LF = b"\n"
_ENDS = b"\r\n"
_USUAL_DATA = b"data: "
_USUAL_START = len(_USUAL_DATA)
_END_OF_EVENT = b"\n\n"


class ServerEvent(NamedTuple):
    """One event: the joined lines of its data; `name` is empty if the server sent none."""

    data: bytes
    name: bytes = b""


class SseReader:
    """Reads events from pieces of any size.

    Lines end with CR, LF or CRLF. Comments, fields other than `data` and `event`, and events without data are
    ignored.

    Args:
        max_line_bytes: longest accepted line, in bytes.

    Attributes:
        fault: the error of a longer line, else None; the events before that line were returned.
    """

    def __init__(self, *, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._is_after_cr = False
        self._is_first_line = True
        self._data: list[bytes] = []
        self._name = b""
        self.fault: ModelProtocolError | None = None

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """Take the next bytes and return the events that they complete.

        Raises:
            ModelProtocolError: the `fault` of an earlier piece.
        """
        if self.fault is not None:
            raise self.fault
        events: list[ServerEvent] = []
        is_plain = not (self._data or self._name or self._is_after_cr) and _LF in piece and _CR not in piece
        if not is_plain or self._begun_bytes + len(piece) > self._max_line_bytes:
            self._take_lines(piece, events)
            return events
        if self._begun:
            piece = b"".join((*self._begun, piece))
            self._begun, self._begun_bytes = [], 0
        # The fast path for nearly all servers: single data lines, each followed by a blank line.
        blocks = piece.split(_END_OF_EVENT)
        rest = blocks.pop()
        for block in blocks:
            if block.startswith(_USUAL_DATA) and _LF not in block:
                events.append(ServerEvent(block[_USUAL_START:]))
                self._is_first_line = False
            else:
                self._take_lines(block + _END_OF_EVENT, events)
        if rest:
            self._take_lines(rest, events)
        return events

    def end(self) -> list[ServerEvent]:
        """Return the event that the end of the bytes leaves without a blank line, if its data is whole JSON."""
        events: list[ServerEvent] = []
        if self.fault is None:
            self._take_lines(_END_OF_EVENT, events)
        return [event for event in events if is_whole(event.data)]

    def _take_lines(self, piece: bytes, events: list[ServerEvent]) -> None:
        """Take the next bytes line by line and add the events that they complete."""
        if self._is_after_cr and piece:
            self._is_after_cr = False
            piece = piece.removeprefix(_LF)
        for line in piece.splitlines(keepends=True):
            whole = line.rstrip(_ENDS)
            if self._begun_bytes + len(whole) > self._max_line_bytes:
                self.fault = self._build_error()
                return
            if len(whole) == len(line):
                self._begun.append(line)
                self._begun_bytes += len(line)
                return
            if self._begun or self._is_first_line:
                whole = self._complete_line(whole)
            if whole.startswith(_USUAL_DATA):
                self._data.append(whole[_USUAL_START:])
            elif whole:
                self._take_field(whole)
            elif self._data:
                data, name, self._data, self._name = self._data, self._name, [], b""
                events.append(ServerEvent(data[0] if len(data) == 1 else _LF.join(data), name))
            else:
                self._name = b""
        self._is_after_cr = self._is_after_cr or piece.endswith(_CR)

    def _build_error(self) -> ModelProtocolError:
        return ModelProtocolError(
            f"The model server sent a line of more than {self._max_line_bytes} bytes",
            remedy="Raise max_line_bytes of the backend if such lines are meant.",
            metadata={"max_line_bytes": str(self._max_line_bytes)},
        )

    def _complete_line(self, end: bytes) -> bytes:
        """Return the line that ends with `end`."""
        if self._begun:
            end = b"".join((*self._begun, end))
            self._begun, self._begun_bytes = [], 0
        if self._is_first_line:
            self._is_first_line = False
            end = end.removeprefix(_BOM)
        return end

    def _take_field(self, line: bytes) -> None:
        """Take a complete line that is not empty."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value

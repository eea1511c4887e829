"""Server-sent events from bytes, whichever way the bytes are cut (WHATWG HTML, section 9.2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reasond_server.errors import ModelProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BOM = b"\xef\xbb\xbf"
_CR = b"\r"
_LF = b"\n"
_ENDS = b"\r\n"
_USUAL_DATA = b"data: "


class ServerEvent(NamedTuple):
    """One event: the lines of its data, joined; `name` is empty unless the server gave one."""

    data: bytes
    name: bytes = b""


class SseReader:
    """Reads events from pieces of any size; an event that never ended is not an event.

    Lines end with CR, LF or CRLF. Comments, fields other than `data` and `event`, and events without data are
    passed over.

    Args:
        max_line_bytes: longest line that is taken.
    """

    def __init__(self, *, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._is_after_cr = False
        self._is_first_line = True
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """Take the next bytes and yield the events that they complete; must be read to the end.

        Raises:
            ModelProtocolError: a line is longer than `max_line_bytes`.
        """
        if self._is_after_cr and piece:
            self._is_after_cr = False
            piece = piece.removeprefix(_LF)
        for line in piece.splitlines(keepends=True):
            whole = line.rstrip(_ENDS)
            if self._begun_bytes + len(whole) > self._max_line_bytes:
                raise self._too_long()
            if len(whole) == len(line):
                self._begun.append(line)
                self._begun_bytes += len(line)
                return
            if self._begun or self._is_first_line:
                whole = self._completed(whole)
            if whole.startswith(_USUAL_DATA):
                self._data.append(whole[len(_USUAL_DATA) :])
            elif whole:
                self._field(whole)
            elif self._data:
                data, name, self._data, self._name = self._data, self._name, [], b""
                yield ServerEvent(data[0] if len(data) == 1 else _LF.join(data), name)
            else:
                self._name = b""
        self._is_after_cr = self._is_after_cr or piece.endswith(_CR)

    def _too_long(self) -> ModelProtocolError:
        return ModelProtocolError(
            f"The model server sent a line of more than {self._max_line_bytes} bytes",
            remedy="Raise max_line_bytes of the backend if such lines are meant.",
            metadata={"max_line_bytes": str(self._max_line_bytes)},
        )

    def _completed(self, end: bytes) -> bytes:
        """Return the line that ends with `end`."""
        if self._begun:
            end = b"".join((*self._begun, end))
            self._begun, self._begun_bytes = [], 0
        if self._is_first_line:
            self._is_first_line = False
            end = end.removeprefix(_BOM)
        return end

    def _field(self, line: bytes) -> None:
        """Take a whole line that is not empty."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value

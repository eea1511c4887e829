"""httptools' parser of HTTP/1.1 requests, without protocol upgrades.

httptools stops after the headers of a request that asks for another protocol (`Upgrade` and `Connection: upgrade`). It
skips the body, which uvicorn then reads as the next request. A server may ignore an upgrade (RFC 9110, section 7.8).
`curl --http2` requests an upgrade with its first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import httptools

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

CONNECT = b"CONNECT"


class RequestReader(Protocol):
    """An object with the callbacks of httptools, the parser that calls them, and the state of the current request."""

    parser: httptools.HttpRequestParser
    url: bytes
    headers: list[tuple[bytes, bytes]]


class PlainParser(httptools.HttpRequestParser):
    """Parses requests for `reader`; a request for an upgrade is parsed again without the upgrade.

    The second pass needs a new parser, which replaces this one in `reader`. Callbacks of the first pass come while
    `should_upgrade()` is true, and must be ignored. CONNECT is not parsed again: the data after it is not a request.
    """

    def __init__(self, reader: RequestReader) -> None:
        super().__init__(reader)
        # As in uvicorn: a client may send more data after `Connection: close`.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._reader = reader

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        """Parse `data`.

        Raises:
            httptools.HttpParserError: it is not HTTP.
        """
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.get_method() != CONNECT:
                again = PlainParser(self._reader)
                again_data = self._write_head() + bytes(data)[upgrade.args[0] :]
                self._reader.parser = again
                again.feed_data(again_data)

    def _write_head(self) -> bytes:
        """Return the head of the current request without the header Upgrade."""
        version = self.get_http_version().encode("ascii")
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._reader.url, version)]
        # The lines of a folded value would be parsed as separate headers.
        lines += [
            b"%s: %s" % (name, b" ".join(value.splitlines()))
            for name, value in self._reader.headers
            if name != b"upgrade"
        ]
        return b"\r\n".join((*lines, b"", b""))


def count_hosts(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the number of Host headers; an HTTP/1.1 request has one (RFC 9112, section 3.2)."""
    # Few requests repeat a header, and a dictionary is made without a step of Python for each.
    named = dict(headers)
    if len(named) == len(headers):
        return 1 if b"host" in named else 0
    return [name for name, _ in headers].count(b"host")

"""httptools' parser of HTTP/1.1 requests, without its way out of HTTP/1.1.

httptools stops after the headers of a request that asks for another protocol (`Upgrade` and `Connection: upgrade`). It
skips the body, which uvicorn then reads as the next request. A server may ignore the wish (RFC 9110, section 7.8).
`curl --http2` sends it with its first request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import httptools

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

CONNECT = b"CONNECT"


class RequestReader(Protocol):
    """What has the callbacks of httptools, the parser that calls them, and what it noted of the request so far."""

    parser: httptools.HttpRequestParser
    url: bytes
    headers: list[tuple[bytes, bytes]]


class PlainParser(httptools.HttpRequestParser):
    """Reads requests for `reader`; one that asks for another protocol is read once more, without the wish.

    That needs another parser, which takes the place of this one in `reader`. The callbacks of the first time come while
    `should_upgrade()` holds, and are to be passed over. CONNECT is not read again: what follows it is no request.
    """

    def __init__(self, reader: RequestReader) -> None:
        super().__init__(reader)
        # As uvicorn has it: a client may send more after it has asked to close.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._reader = reader

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        """Read `data`.

        Raises:
            httptools.HttpParserError: it is no HTTP.
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
        """Return the head of the request that was just read, without the header Upgrade."""
        version = self.get_http_version().encode("ascii")
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._reader.url, version)]
        # A value over several lines would be read as headers of their own.
        lines += [
            b"%s: %s" % (name, b" ".join(value.splitlines()))
            for name, value in self._reader.headers
            if name != b"upgrade"
        ]
        return b"\r\n".join((*lines, b"", b""))


def count_hosts(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return how many headers name the host; a request of HTTP/1.1 has one (RFC 9112, section 3.2)."""
    return [name for name, _ in headers].count(b"host")

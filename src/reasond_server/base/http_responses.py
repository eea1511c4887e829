"""Responses of foreign HTTP servers, with a limit that aiohttp lacks. To be imported where aiohttp is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, cast

import aiohttp
from aiohttp.http import HttpProcessingError

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection

MAX_INTERIM: Final = 64
"""Most interim responses (100 to 199) before a response; some servers send one now and then while they work."""

_BAD_GATEWAY: Final = 502
_INTERIM: Final = range(100, 200)


class BoundedResponse(aiohttp.ClientResponse):
    """A response that is an error after more than `MAX_INTERIM` interim ones, which aiohttp would skip for ever.

    For a session's `response_class`. aiohttp itself bounds the lines, the fields and the number of headers of each
    response; the caller bounds the time and the bytes of the body.
    """

    async def start(self, connection: Connection) -> Self:
        """Wait for the headers.

        Raises:
            ClientResponseError: it is not HTTP, or there are too many interim responses.
        """
        await super().start(cast("Connection", _CountedConnection(connection)))
        return self


class _CountedConnection:
    """A connection whose protocol counts what is read; all else is the connection's own."""

    def __init__(self, connection: Connection) -> None:
        self._counted_connection = connection
        # While a response is awaited, a connection has a protocol.
        self.protocol = _CountedProtocol(cast("ResponseHandler", connection.protocol))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a connection has
        return getattr(self._counted_connection, name)


class _CountedProtocol:
    """The protocol of a connection, which gives up after too many interim responses."""

    def __init__(self, protocol: ResponseHandler) -> None:
        self._counted_protocol = protocol
        self._interim = 0

    async def read(self) -> Any:  # noqa: ANN401 - aiohttp's pair of message and payload
        """Return the next response; an error if it is one interim response too many."""
        received = await self._counted_protocol.read()
        self._interim += received[0].code in _INTERIM
        if self._interim > MAX_INTERIM:
            raise HttpProcessingError(code=_BAD_GATEWAY, message="too many interim responses")
        return received

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a protocol has
        return getattr(self._counted_protocol, name)

"""Limits the number of HTTP connections at once."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.http_api.eviction import EvictionQueue

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE_EVERY_S: Final = 60.0
_SPARE_SHARE: Final = 16
_MOST_SPARE: Final = 64
_log = logging.getLogger("reasond.http")


class Closable(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Close the connection at once, whatever it does."""
        ...


class ConnectionCap:
    """Allows at most `most` connections at once, and some in addition for those who need no token, such as probes.

    Who has shown a valid token keeps the connection until the request is answered. All others are strangers: idle
    connections, headers and bodies under way, answers that are not read. One more connection takes the place of a
    stranger: of the oldest one of the network that has the most. A sixteenth of `most`, at least 1 and at most 64,
    are further places that callers with a token cannot take, so that a new connection always finds a place.
    """

    def __init__(self, *, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._spare = max(1, min(_MOST_SPARE, most // _SPARE_SHARE))
        self._monotonic = monotonic
        self._networks: dict[Closable, str] = {}
        self._strangers: EvictionQueue[Closable] = EvictionQueue()
        self._said_s: float | None = None

    def enter(self, connection: Closable, network: str) -> None:
        """Take in `connection`, which comes from `network`, as a stranger."""
        known = len(self._networks) - len(self._strangers)
        if len(self._strangers) >= max(self._most - known, self._spare):
            self._say()
            oldest = self._strangers.pop()
            del self._networks[oldest]
            oldest.evict()
        self._networks[connection] = network
        self._strangers.add(connection, network)

    def admit(self, connection: Closable) -> bool:
        """Note that the caller has shown a valid token; return False if such callers have all places."""
        if connection in self._strangers:
            if len(self._networks) - len(self._strangers) >= self._most:
                self._say()
                return False
            self._strangers.discard(connection)
        return True

    def begin(self, connection: Closable) -> None:
        """Note that a request or an answer begins: from now on the connection is the newest stranger."""
        network = self._networks.get(connection)
        if network is not None:
            self._strangers.discard(connection)
            self._strangers.add(connection, network)

    def leave(self, connection: Closable) -> None:
        """Note that a connection is closed."""
        self._networks.pop(connection, None)
        self._strangers.discard(connection)

    def _say(self) -> None:
        """Log at intervals that no connection is free."""
        now_s = self._monotonic()
        if self._said_s is None or now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            _log.warning(
                "%d HTTP connections are open, as many as [server] max_http_connections allows: new ones take the "
                "place of those without a valid token, and calls beyond that are refused with OVERLOADED",
                self._most,
            )

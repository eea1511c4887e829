"""Limits the number of HTTP connections at once."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE_EVERY_S: Final = 60.0
_log = logging.getLogger("reasond.http")


class Closable(Protocol):
    """A connection."""

    def close_if_idle(self) -> bool:
        """Close the connection at once if it is idle and has no data to send; return whether it is closed."""
        ...


class ConnectionCap:
    """Allows at most `most` connections at once. One more replaces the connection that is idle longest, if any is idle.

    So a caller with many idle connections cannot block others, such as health checks.
    """

    def __init__(self, *, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._monotonic = monotonic
        self._held: set[Closable] = set()
        # In the order of the start of idleness.
        self._idle: dict[Closable, None] = {}
        self._said_s: float | None = None

    def enter(self, connection: Closable) -> bool:
        """Return whether `connection` is accepted; it counts as idle until it begins a request."""
        if len(self._held) >= self._most:
            self._say()
            if not self._close_idle():
                return False
        self._held.add(connection)
        self._idle[connection] = None
        return True

    def begin(self, connection: Closable) -> None:
        """Note that a request is in progress."""
        self._idle.pop(connection, None)

    def rest(self, connection: Closable) -> None:
        """Note that no request is in progress any more."""
        if connection in self._held:
            self._idle[connection] = None

    def leave(self, connection: Closable) -> None:
        """Note that a connection is closed."""
        self._held.discard(connection)
        self._idle.pop(connection, None)

    def _close_idle(self) -> bool:
        for connection in self._idle:
            if connection.close_if_idle():
                self.leave(connection)
                return True
        return False

    def _say(self) -> None:
        """Log at intervals that no connection is free."""
        now_s = self._monotonic()
        if self._said_s is None or now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            _log.warning(
                "%d HTTP connections are open, as many as [server] max_http_connections allows: idle ones are closed "
                "for new ones, and where none is idle new ones are refused with 503",
                self._most,
            )

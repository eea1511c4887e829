"""Limits the number of HTTP connections at once, and decides who goes first of those who have shown no valid token."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")


class EvictionQueue(Generic[T]):
    """Items by the network that they come from; each has a weight, such as its bytes.

    The first to go is the oldest item of the network whose items weigh most, so that a caller with many connections
    pushes out its own before those of others.
    """

    def __init__(self) -> None:
        self.weight = 0
        self._weights: dict[T, int] = {}
        self._networks: dict[T, str] = {}
        # In the order of their arrival.
        self._items: dict[str, dict[T, None]] = {}
        self._sums: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._weights)

    def __contains__(self, item: T) -> bool:
        """Return whether `item` waits here."""
        return item in self._weights

    def add(self, item: T, network: str, weight: int = 1) -> None:
        """Add `item` as the newest of `network`."""
        self._networks[item], self._weights[item] = network, 0
        self._items.setdefault(network, {})[item] = None
        self.grow(item, weight)

    def grow(self, item: T, weight: int) -> None:
        """Add to the weight of `item`, if it is still here."""
        if item in self._weights:
            network = self._networks[item]
            self._weights[item] += weight
            self._sums[network] = self._sums.get(network, 0) + weight
            self.weight += weight

    def discard(self, item: T) -> None:
        """Remove `item`, if it is still here."""
        self.grow(item, -self._weights.get(item, 0))
        network = self._networks.pop(item, None)
        if network is not None:
            del self._weights[item], self._items[network][item]
            if not self._items[network]:
                del self._items[network], self._sums[network]

    def pop(self) -> T:
        """Remove the first to go and return it.

        Raises:
            ValueError: there is none.
        """
        network = max(self._sums, key=self._sums.__getitem__)
        item = next(iter(self._items[network]))
        self.discard(item)
        return item


_LINE_EVERY_S: Final = 60.0
_SPARE_SHARE: Final = 16
_MOST_SPARE: Final = 64
_log = logging.getLogger("reasond.http")


class Closable(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Close the connection at once, whatever it does."""


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
        self._logged_s: float | None = None

    def enter(self, connection: Closable, network: str) -> None:
        """Take in `connection`, which comes from `network`, as a stranger."""
        known = len(self._networks) - len(self._strangers)
        if len(self._strangers) >= max(self._most - known, self._spare):
            self._log_fullness()
            oldest = self._strangers.pop()
            del self._networks[oldest]
            oldest.evict()
        self._networks[connection] = network
        self._strangers.add(connection, network)

    def admit(self, connection: Closable) -> bool:
        """Note that the caller has shown a valid token; return False if such callers have all places."""
        if connection in self._strangers:
            if len(self._networks) - len(self._strangers) >= self._most:
                self._log_fullness()
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

    def _log_fullness(self) -> None:
        """Log at intervals that no connection is free."""
        now_s = self._monotonic()
        if self._logged_s is None or now_s - self._logged_s >= _LINE_EVERY_S:
            self._logged_s = now_s
            _log.warning(
                "%d HTTP connections are open, as many as [server] max_http_connections allows: new ones take the "
                "place of those without a valid token, and calls beyond that are refused with OVERLOADED",
                self._most,
            )

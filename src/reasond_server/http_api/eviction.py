"""Decides who goes first when there is no room for more of those who have not shown a valid token."""

from __future__ import annotations

from typing import Generic, TypeVar

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

from __future__ import annotations

import pytest

from reasond_server.http_api.connection_cap import EvictionQueue


def test_the_oldest_of_the_network_that_holds_most_goes_first() -> None:
    queue: EvictionQueue[str] = EvictionQueue()
    for item, network in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")):
        queue.add(item, network)
    assert [queue.pop() for _ in range(4)] == ["b1", "a1", "b2", "c1"]
    assert (len(queue), queue.weight) == (0, 0)


def test_what_has_grown_weighs_more_than_many_small_ones() -> None:
    queue: EvictionQueue[str] = EvictionQueue()
    for item in ("a1", "a2", "a3"):
        queue.add(item, "a")
    queue.add("b1", "b")
    queue.grow("b1", 3)
    assert queue.weight == 7
    assert queue.pop() == "b1"


def test_what_has_left_counts_no_more() -> None:
    queue: EvictionQueue[str] = EvictionQueue()
    queue.add("a1", "a", 5)
    queue.add("b1", "b", 2)
    for _ in range(2):
        queue.discard("a1")
        queue.grow("a1", 9)
    assert ([item for item in ("a1", "b1") if item in queue], queue.weight) == (["b1"], 2)
    assert queue.pop() == "b1"
    with pytest.raises(ValueError, match="empty"):
        queue.pop()

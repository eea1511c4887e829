from __future__ import annotations

from reasond_server.access.throttle import Throttle


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_after_the_allowed_failures_a_key_waits_until_the_first_is_over() -> None:
    clock = Monotonic()
    throttle = Throttle(most=2, window_s=60, monotonic=clock)
    throttle.failed("crawler")
    assert throttle.wait_s("crawler") == 0
    clock.now_s += 10
    throttle.failed("crawler")
    assert throttle.wait_s("crawler") == 50
    assert throttle.wait_s("other") == 0
    clock.now_s += 50
    assert throttle.wait_s("crawler") == 0


def test_success_forgets_what_went_before() -> None:
    throttle = Throttle(most=1, window_s=60, monotonic=Monotonic())
    throttle.failed("crawler")
    throttle.succeeded("crawler")
    assert throttle.wait_s("crawler") == 0


def test_the_table_is_bounded_and_forgets_the_oldest_first() -> None:
    throttle = Throttle(most=1, window_s=60, monotonic=Monotonic(), most_keys=2)
    for key in ("one", "two", "one", "three"):
        throttle.failed(key)
    assert [throttle.wait_s(key) > 0 for key in ("one", "two", "three")] == [True, False, True]


def test_a_key_whose_failures_are_over_is_forgotten() -> None:
    clock = Monotonic()
    throttle = Throttle(most=1, window_s=60, monotonic=clock, most_keys=1)
    throttle.failed("crawler")
    clock.now_s += 60
    assert throttle.wait_s("crawler") == 0
    throttle.failed("other")
    assert throttle.wait_s("other") == 60

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.openai.backend_options import RetryPolicy
from reasond_server.llm.openai.retries import Breaker, BreakerPermit, BreakerState, CallHealth

POLICY = RetryPolicy(breaker_window=4, breaker_ratio=0.5, breaker_cooldown_s=10.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def tell(breaker: Breaker, *outcomes: CallHealth) -> None:
    for outcome in outcomes:
        permit = breaker.admit()
        assert permit is not None
        breaker.report(permit, outcome)


def open_breaker(clock: Clock) -> Breaker:
    breaker = Breaker(policy=POLICY, monotonic=clock)
    tell(breaker, CallHealth.UNHEALTHY, CallHealth.UNHEALTHY)
    assert breaker.state is BreakerState.OPEN
    return breaker


def test_half_of_the_last_calls_failing_opens_it() -> None:
    breaker = Breaker(policy=POLICY, monotonic=Clock())
    tell(breaker, CallHealth.UNHEALTHY, *[CallHealth.HEALTHY] * 3, CallHealth.UNHEALTHY, *[CallHealth.UNKNOWN] * 9)
    assert breaker.state is BreakerState.CLOSED
    tell(breaker, CallHealth.UNHEALTHY)
    assert breaker.admit() is None
    assert breaker.compute_wait_s() == 10.0


def test_after_the_cooldown_one_call_at_a_time_is_let_through() -> None:
    clock = Clock()
    breaker = open_breaker(clock)
    clock.now = 10.0
    assert breaker.state is BreakerState.HALF_OPEN
    permit = breaker.admit()
    assert permit is not None
    assert breaker.admit() is None
    assert breaker.compute_wait_s() == 10.0
    breaker.report(permit, CallHealth.UNKNOWN)
    assert breaker.admit() is not None


@pytest.mark.parametrize(
    ("outcome", "state"), [(CallHealth.HEALTHY, BreakerState.CLOSED), (CallHealth.UNHEALTHY, BreakerState.OPEN)]
)
def test_the_probe_closes_the_breaker_or_opens_it_again(outcome: CallHealth, state: BreakerState) -> None:
    clock = Clock()
    breaker = open_breaker(clock)
    clock.now = 10.0
    tell(breaker, outcome)
    assert breaker.state is state


def test_calls_from_before_a_change_are_not_counted() -> None:
    clock = Clock()
    breaker = Breaker(policy=POLICY, monotonic=clock)
    old = [permit for _ in range(5) if (permit := breaker.admit())]
    tell(breaker, CallHealth.UNHEALTHY, CallHealth.UNHEALTHY)
    clock.now = 10.0
    tell(breaker, CallHealth.HEALTHY)
    for permit in old:
        breaker.report(permit, CallHealth.UNHEALTHY)
    assert breaker.state is BreakerState.CLOSED


STEPS = st.lists(
    st.one_of(
        st.just("admit"),
        st.tuples(st.integers(0, 5), st.sampled_from(list(CallHealth))),
        st.floats(0, 15),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_it_never_stays_shut_and_never_lets_two_probes_through(steps: list[object]) -> None:
    clock = Clock()
    breaker = Breaker(policy=POLICY, monotonic=clock)
    held: list[BreakerPermit] = []
    for step in steps:
        if step == "admit":
            state, permit = breaker.state, breaker.admit()
            assert (permit is None) if state is BreakerState.OPEN else (permit is not None or _probes(held, breaker))
            if permit is not None:
                assert permit.is_probe == (state is BreakerState.HALF_OPEN)
                held.append(permit)
        elif isinstance(step, tuple):
            if held:
                breaker.report(held.pop(step[0] % len(held)), step[1])
        elif isinstance(step, float):
            clock.now += step
        assert _probes(held, breaker) <= 1
    for permit in held:
        breaker.report(permit, CallHealth.HEALTHY)
    clock.now += 100.0
    tell(breaker, CallHealth.HEALTHY)
    assert breaker.state is BreakerState.CLOSED


def _probes(held: list[BreakerPermit], breaker: Breaker) -> int:
    return sum(permit.is_probe and permit.era == breaker._era for permit in held)

from __future__ import annotations

import pytest

import reasond
from reasond import ReconnectPolicy
from reasond.progress import Progress, policy_of
from reasond.requests import resume_request


class CountedCall:
    """A call that counts how often it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> bool:
        self.cancelled += 1
        return True


def progress() -> Progress:
    return Progress(start=resume_request("e1", after_sequence=0, include_deltas=False), policy=None, timeout_s=None)


def test_waits_double_up_to_the_longest_and_jitter_halves_at_most() -> None:
    steady = ReconnectPolicy(initial_backoff_s=0.5, max_backoff_s=3.0, jitter=lambda: 0.0)
    jittery = ReconnectPolicy(initial_backoff_s=0.5, max_backoff_s=3.0, jitter=lambda: 1.0)
    assert [steady.wait_s(n, None) for n in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [jittery.wait_s(n, None) for n in range(5)] == [0.25, 0.5, 1.0, 1.5, 1.5]


def test_a_longer_wait_that_the_server_asks_for_is_kept_up_to_a_minute() -> None:
    steady = ReconnectPolicy(initial_backoff_s=0.5, jitter=lambda: 0.0)
    assert steady.wait_s(0, 10.0) == 10.0
    assert steady.wait_s(0, 0.1) == 0.5
    assert steady.wait_s(0, 1e9) == 60.0


def test_reconnect_is_a_flag_or_a_policy() -> None:
    own = ReconnectPolicy(max_attempts=1)
    assert policy_of(own) is own
    assert policy_of(reconnect=False) is None
    assert policy_of(reconnect=True) == ReconnectPolicy()


def test_a_call_that_opens_after_the_stream_was_closed_is_cancelled() -> None:
    late = CountedCall()
    stream = progress()
    stream.close()
    assert stream.adopt(late) is late
    assert late.cancelled == 1
    with pytest.raises(reasond.CallCancelledError):
        stream.next_request()


def test_without_a_deadline_there_is_no_end_of_time() -> None:
    assert progress().remaining_s() is None

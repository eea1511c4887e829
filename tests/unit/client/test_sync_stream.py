from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest

import reasond
from reasond import Client, ReasonIterationsResponse, ReconnectPolicy, sync_calls
from reasond.v1.execution_pb2 import ExecutionStarted, Iteration, Reasoning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.client.conftest import Failure, ScriptedServer

NEVER = threading.Event()
LIMIT_S = 180.0
MAIN_THREAD = threading.main_thread().ident or 0
QUICK = ReconnectPolicy(max_attempts=3, initial_backoff_s=0.01, max_backoff_s=0.02)
STARTED = ReasonIterationsResponse(execution_id="e1", sequence=1, started=ExecutionStarted(strategy="react"))
STEP = ReasonIterationsResponse(execution_id="e1", sequence=2, iteration=Iteration(index=0))
DONE = ReasonIterationsResponse(execution_id="e1", sequence=3, completed=Reasoning(execution_id="e1", answer="42"))


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[Client]:
    with Client(server.target) as made:
        yield made


def main_thread_waits() -> bool:
    """Return whether the main thread waits for an answer, outside grpc, whose locks an interrupt would leave taken."""
    return sys._current_frames()[MAIN_THREAD].f_code is sync_calls._take.__code__


def test_a_stream_tells_how_far_it_came(server: ScriptedServer, client: Client) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, DONE])
    with client.reason_iterations("why?") as events:
        assert (events.execution_id, events.last_sequence, events.result) == ("", 0, None)
        assert next(events) == STARTED
        assert (events.execution_id, events.last_sequence) == ("e1", 1)
        assert list(events) == [STEP, DONE]
    assert (events.last_sequence, events.result) == (3, DONE.completed)


def test_breaking_out_of_a_plain_loop_cancels_the_call_though_the_stream_is_still_held(
    server: ScriptedServer, client: Client
) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    for _ in stream:
        break
    assert server.calls[0].ended.wait(LIMIT_S)
    assert stream.execution_id == "e1"


def test_an_error_in_a_plain_loop_cancels_the_call(server: ScriptedServer, client: Client) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    with contextlib.suppress(ZeroDivisionError):
        for event in client.reason_iterations("why?"):
            event.sequence // 0
    assert server.calls[0].ended.wait(LIMIT_S)


def test_a_stream_that_is_dropped_after_next_cancels_the_call(server: ScriptedServer, client: Client) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    next(stream)
    del stream
    assert server.calls[0].ended.wait(LIMIT_S)


def test_inside_a_context_the_loop_may_be_left_and_entered_again(server: ScriptedServer, client: Client) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, NEVER])
    with client.reason_iterations("why?") as events:
        for event in events:
            assert event == STARTED
            break
        assert next(iter(events)) == STEP
        assert not server.calls[0].ended.is_set()
    assert server.calls[0].ended.wait(LIMIT_S)


def test_closing_a_stream_that_another_thread_reads_ends_that_thread_with_an_error(
    server: ScriptedServer, client: Client
) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        server.nth(0)
        stream.close()
        with pytest.raises(reasond.CallCancelledError):
            reading.result(5.0)
    assert server.calls[0].ended.wait(LIMIT_S)


def test_closing_the_client_ends_a_waiting_call_with_an_error(server: ScriptedServer, client: Client) -> None:
    server.answers("Reason", NEVER)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.reason, "why?")
        server.nth(0)
        client.close()
        with pytest.raises(reasond.CallCancelledError):
            waiting.result(5.0)


@pytest.mark.parametrize("method", ["reason", "reason_iterations"])
def test_ctrl_c_cancels_the_call_on_the_server(server: ScriptedServer, client: Client, method: str) -> None:
    def interrupt() -> None:
        server.nth(0)
        while not main_thread_waits():
            NEVER.wait(0.01)
        _thread.interrupt_main()

    server.answers("Reason", NEVER)
    server.answers("ReasonIterations", [NEVER])
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(client.reason_iterations("why?")) if method == "reason_iterations" else client.reason("why?")
    thread.join()
    assert server.calls[0].ended.wait(LIMIT_S)


def test_a_cut_in_mid_stream_is_an_error_that_names_the_execution(server: ScriptedServer, client: Client) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?", keep_running=True)
    with stream as events:
        next(events)
        server.stop()
        with pytest.raises(reasond.UnavailableError) as caught:
            next(events)
    assert caught.value.execution_id == "e1"


def test_reconnecting_resumes_after_the_last_event_on_the_restarted_server(
    server: ScriptedServer, client: Client
) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, NEVER], [DONE])
    seen = []
    patient = ReconnectPolicy(max_attempts=50, initial_backoff_s=0.05, max_backoff_s=0.1)
    for event in client.reason_iterations("why?", keep_running=True, reconnect=patient):
        seen.append(event)
        if event == STEP:
            server.stop()
            server.start(server.target)
    assert seen == [STARTED, STEP, DONE]
    resumed = server.calls[1].request.resume
    assert (resumed.execution_id, resumed.after_sequence) == ("e1", 2)


def test_reconnecting_gives_up_after_so_many_attempts_without_an_event(
    server: ScriptedServer, client: Client, failure: type[Failure]
) -> None:
    broken = failure(code=grpc.StatusCode.UNAVAILABLE, message="gone")
    server.answers("ReasonIterations", [STARTED, broken], *[[broken]] * 20)
    with pytest.raises(reasond.UnavailableError, match="gone"):
        list(client.resume("e1", reconnect=QUICK))


def test_a_stream_closed_before_it_began_calls_nothing(server: ScriptedServer, client: Client) -> None:
    stream = client.reason_iterations("why?")
    stream.close()
    assert list(stream) == []
    assert server.calls == []


def test_a_closed_client_calls_nothing(server: ScriptedServer, client: Client) -> None:
    client.close()
    client.close()
    for call in (lambda: client.reason("why?"), client.get_agent_card, lambda: list(client.resume("e1"))):
        with pytest.raises(RuntimeError, match="the client is closed"):
            call()
    assert server.calls == []

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

import reasond
from reasond import AsyncClient, FinishReason, ReasonIterationsResponse, ReconnectPolicy
from reasond.v1.execution_pb2 import ExecutionStarted, Iteration, Reasoning, TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.client.conftest import Failure, Received, ScriptedServer

NEVER = threading.Event()
LIMIT_S = 180.0
QUICK = ReconnectPolicy(max_attempts=3, initial_backoff_s=0.01, max_backoff_s=0.02)
STARTED = ReasonIterationsResponse(execution_id="e1", sequence=1, started=ExecutionStarted(strategy="react"))
STEP = ReasonIterationsResponse(execution_id="e1", sequence=2, iteration=Iteration(index=0))
DELTA = ReasonIterationsResponse(execution_id="e1", sequence=2, delta=TextDelta(text="so"))
DONE = ReasonIterationsResponse(execution_id="e1", sequence=3, completed=Reasoning(execution_id="e1", answer="42"))


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.target) as made:
        yield made


async def wait_for_end(call: Received) -> bool:
    """Return whether `call` ends on the server within LIMIT_S."""
    return await asyncio.to_thread(call.ended.wait, LIMIT_S)


async def test_a_stream_tells_how_far_it_came(server: ScriptedServer, client: AsyncClient) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, DELTA, DONE])
    async with client.reason_iterations("why?") as events:
        assert (events.execution_id, events.last_sequence, events.result) == ("", 0, None)
        assert await anext(events) == STARTED
        assert (events.execution_id, events.last_sequence) == ("e1", 1)
        assert [event async for event in events] == [STEP, DELTA, DONE]
    assert (events.last_sequence, events.result) == (3, DONE.completed)
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_nothing_is_called_before_the_first_event_is_asked_for(
    server: ScriptedServer, client: AsyncClient
) -> None:
    async with client.reason_iterations("why?"):
        pass
    await client.get_execution("e1")
    assert [call.method for call in server.calls] == ["GetExecution"]


async def test_breaking_out_of_a_plain_loop_cancels_the_call_though_the_stream_is_still_held(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    async for _ in stream:
        break
    assert await wait_for_end(server.calls[0])
    assert stream.execution_id == "e1"


async def test_returning_out_of_a_plain_loop_cancels_the_call(server: ScriptedServer, client: AsyncClient) -> None:
    async def first() -> ReasonIterationsResponse:
        async for event in client.reason_iterations("why?"):
            return event
        raise AssertionError("no event came")

    server.answers("ReasonIterations", [STARTED, NEVER])
    assert await first() == STARTED
    assert await wait_for_end(server.calls[0])


async def test_an_error_in_a_plain_loop_cancels_the_call(server: ScriptedServer, client: AsyncClient) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    with contextlib.suppress(ZeroDivisionError):
        async for event in client.reason_iterations("why?"):
            event.sequence // 0
    assert await wait_for_end(server.calls[0])


async def test_a_stream_that_is_dropped_after_anext_cancels_the_call(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    await anext(stream)
    del stream
    assert await wait_for_end(server.calls[0])


async def test_inside_a_context_the_loop_may_be_left_and_entered_again(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, NEVER])
    async with client.reason_iterations("why?") as events:
        async for event in events:
            assert event == STARTED
            break
        async for event in events:
            assert event == STEP
            break
        assert not server.calls[0].ended.is_set()
    assert await wait_for_end(server.calls[0])


async def test_cancelling_the_task_cancels_the_call_and_propagates(server: ScriptedServer, client: AsyncClient) -> None:
    async def follow() -> None:
        async for _ in client.reason_iterations("why?"):
            pass

    server.answers("ReasonIterations", [STARTED, NEVER])
    task = asyncio.create_task(follow())
    await asyncio.to_thread(server.nth, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_for_end(server.calls[0])


async def test_cancelling_a_unary_call_cancels_it_on_the_server_and_propagates(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("Reason", NEVER)
    task = asyncio.create_task(client.reason("why?"))
    await asyncio.to_thread(server.nth, 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wait_for_end(server.calls[0])


async def test_a_timeout_of_the_caller_is_its_own_and_cancels_the_call(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("Reason", NEVER)

    async def ask() -> None:
        async with asyncio.timeout(None) as limit:
            arrived = asyncio.get_running_loop().run_in_executor(None, server.nth, 0)
            arrived.add_done_callback(lambda _: limit.reschedule(0))
            await client.reason("why?")

    with pytest.raises(TimeoutError):
        await ask()
    assert await wait_for_end(server.calls[0])


@pytest.mark.parametrize("method", ["reason", "reason_iterations"])
async def test_closing_the_client_during_a_call_is_an_error_and_no_cancellation_of_the_task(
    server: ScriptedServer, client: AsyncClient, method: str
) -> None:
    async def follow() -> None:
        if method == "reason":
            await client.reason("why?")
        async for _ in client.reason_iterations("why?"):
            pass

    server.answers("Reason", NEVER)
    server.answers("ReasonIterations", [STARTED, NEVER])
    task = asyncio.create_task(follow())
    await asyncio.to_thread(server.nth, 0)
    await client.close()
    with pytest.raises(reasond.CallCancelledError, match="closed during the call"):
        await task


async def test_closing_a_stream_that_another_task_reads_ends_that_task_with_an_error(
    server: ScriptedServer, client: AsyncClient
) -> None:
    async def follow() -> None:
        async for _ in stream:
            pass

    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?")
    task = asyncio.create_task(follow())
    await asyncio.to_thread(server.nth, 0)
    await stream.aclose()
    with pytest.raises(reasond.CallCancelledError):
        await task
    assert await wait_for_end(server.calls[0])


async def test_a_failed_run_shows_its_partial_result_before_its_error(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    failed = Reasoning(execution_id="e1", answer="4", finish_reason=FinishReason.FINISH_REASON_FAILED)
    last = ReasonIterationsResponse(execution_id="e1", sequence=2, completed=failed)
    error = failure(code=grpc.StatusCode.ABORTED, reason="MODEL_FAILED", violations=[("a", "b")])
    server.answers("ReasonIterations", [STARTED, last, error])
    stream = client.reason_iterations("why?")
    with pytest.raises(reasond.ModelError) as caught:
        async for _ in stream:
            pass
    assert stream.result == failed
    assert (caught.value.execution_id, caught.value.violations) == ("e1", [("a", "b")])


async def test_a_cut_in_mid_stream_is_an_error_that_names_the_execution(
    server: ScriptedServer, client: AsyncClient
) -> None:
    async def follow() -> None:
        async for _ in stream:
            await asyncio.to_thread(server.stop)

    server.answers("ReasonIterations", [STARTED, NEVER])
    stream = client.reason_iterations("why?", keep_running=True)
    with pytest.raises(reasond.UnavailableError) as caught:
        await follow()
    assert (caught.value.execution_id, stream.last_sequence) == ("e1", 1)


async def test_reconnecting_resumes_after_the_last_event_on_the_restarted_server(
    server: ScriptedServer, client: AsyncClient
) -> None:
    server.answers("ReasonIterations", [STARTED, STEP, DELTA, NEVER], [DONE])
    seen = []
    patient = ReconnectPolicy(max_attempts=50, initial_backoff_s=0.05, max_backoff_s=0.1)
    async for event in client.reason_iterations("why?", keep_running=True, include_deltas=True, reconnect=patient):
        seen.append(event)
        if event == DELTA:
            await asyncio.to_thread(server.stop)
            server.start(server.target)
    assert seen == [STARTED, STEP, DELTA, DONE]
    resumed = server.calls[1].request
    assert (resumed.resume.execution_id, resumed.resume.after_sequence, resumed.include_deltas) == ("e1", 2, True)


async def test_reconnecting_before_the_first_event_repeats_the_start_with_its_request_id(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    down = failure(code=grpc.StatusCode.UNAVAILABLE)
    server.answers("ReasonIterations", *[[down]] * 4, [STARTED, DONE])
    stream = client.reason_iterations("why?", keep_running=True, reconnect=QUICK)
    assert [event async for event in stream] == [STARTED, DONE]
    assert len({call.request.request_id for call in server.calls}) == 1
    assert all(call.request.task.query == "why?" for call in server.calls)


async def test_reconnecting_gives_up_after_so_many_attempts_without_an_event(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    broken = failure(code=grpc.StatusCode.UNAVAILABLE, message="gone")
    server.answers("ReasonIterations", [STARTED, broken], [STEP, broken], *[[broken]] * 20)
    stream = client.reason_iterations("why?", keep_running=True, reconnect=QUICK)
    with pytest.raises(reasond.UnavailableError, match="gone") as caught:
        async for _ in stream:
            pass
    assert (caught.value.execution_id, stream.last_sequence) == ("e1", 2)
    assert {call.request.resume.after_sequence for call in server.calls[2:]} == {2}


async def test_a_stream_whose_status_alone_was_lost_asks_for_it_and_repeats_no_event(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    server.answers("ReasonIterations", [STARTED, DONE, failure(code=grpc.StatusCode.UNAVAILABLE)], [])
    stream = client.reason_iterations("why?", keep_running=True, reconnect=QUICK)
    assert [event async for event in stream] == [STARTED, DONE]
    assert server.calls[1].request.resume.after_sequence == DONE.sequence


async def test_a_slow_consumer_is_taken_up_again(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    slow = failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="SLOW_CONSUMER")
    server.answers("ReasonIterations", [STARTED, slow], [STEP, DONE])
    stream = client.resume("e1", reconnect=QUICK)
    assert [event async for event in stream] == [STARTED, STEP, DONE]


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
async def test_a_stream_that_a_proxy_cut_is_taken_up_again(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure], code: grpc.StatusCode
) -> None:
    server.answers("ReasonIterations", [STARTED, failure(code=code, message="Stream removed")], [STEP, DONE])
    stream = client.resume("e1", reconnect=QUICK)
    assert [event async for event in stream] == [STARTED, STEP, DONE]


async def test_a_fault_of_the_server_itself_is_not_taken_up_again(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    fault = failure(code=grpc.StatusCode.INTERNAL, reason="INTERNAL", metadata={"request_id": "r1"})
    server.answers("ReasonIterations", [STARTED, fault])
    with pytest.raises(reasond.InternalError):
        async for _ in client.resume("e1", reconnect=QUICK):
            pass
    assert len(server.calls) == 1


@pytest.mark.parametrize("reconnect", [False, True])
async def test_other_errors_are_never_taken_up_again(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure], *, reconnect: bool
) -> None:
    expired = failure(code=grpc.StatusCode.OUT_OF_RANGE, reason="CURSOR_EXPIRED")
    server.answers("ReasonIterations", [STARTED, expired])
    with pytest.raises(reasond.NotFoundError):
        async for _ in client.resume("e1", reconnect=reconnect):
            pass
    assert len(server.calls) == 1


async def test_a_failed_run_is_not_taken_up_again_though_its_status_is_unavailable(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    down = failure(code=grpc.StatusCode.UNAVAILABLE, reason="MODEL_UNAVAILABLE", metadata={"request_id": "r1"})
    server.answers("ReasonIterations", [STARTED, DONE, down])
    with pytest.raises(reasond.ModelError):
        async for _ in client.resume("e1", reconnect=QUICK):
            pass
    assert len(server.calls) == 1


async def test_reconnecting_stops_where_the_deadline_would_pass(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    busy = failure(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_after=30.0)
    server.answers("ReasonIterations", [STARTED, busy])
    with pytest.raises(reasond.UnavailableError) as caught:
        async for _ in client.resume("e1", reconnect=QUICK, timeout_s=5.0):
            pass
    assert caught.value.retry_after == 30.0
    assert len(server.calls) == 1


async def test_a_stream_that_was_closed_while_it_waited_begins_no_other_call(
    server: ScriptedServer, client: AsyncClient, failure: type[Failure]
) -> None:
    async def follow() -> None:
        async for _ in stream:
            pass

    patient = ReconnectPolicy(max_attempts=1, initial_backoff_s=0.5, max_backoff_s=0.5, jitter=lambda: 0.0)
    server.answers("ReasonIterations", [STARTED, failure(code=grpc.StatusCode.UNAVAILABLE)])
    stream = client.resume("e1", reconnect=patient)
    task = asyncio.create_task(follow())
    await asyncio.to_thread(server.nth, 0)
    assert await wait_for_end(server.calls[0])
    await stream.aclose()
    with pytest.raises(reasond.CallCancelledError):
        await task
    assert len(server.calls) == 1


async def test_a_closed_stream_and_a_closed_client_call_nothing(server: ScriptedServer, client: AsyncClient) -> None:
    stream = client.reason_iterations("why?")
    await stream.aclose()
    assert [event async for event in stream] == []
    await client.close()
    await client.close()
    with pytest.raises(RuntimeError, match="the client is closed"):
        await client.reason("why?")
    with pytest.raises(RuntimeError, match="the client is closed"):
        await anext(client.reason_iterations("why?"))
    assert server.calls == []


async def test_a_token_may_be_fetched_asynchronously(server: ScriptedServer) -> None:
    async def fetch() -> str:
        await asyncio.sleep(0)
        return "fetched"

    async with AsyncClient(server.target, token=fetch) as client:
        await client.get_execution("e1")
    assert server.calls[0].metadata["authorization"] == "Bearer fetched"


def test_a_client_is_made_without_an_event_loop_and_serves_the_first_that_uses_it(server: ScriptedServer) -> None:
    client = AsyncClient(server.target)

    async def use() -> None:
        await client.get_execution("e1")

    async def use_and_close() -> None:
        await use()
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, use())
        await client.close()

    asyncio.run(use_and_close())
    assert len(server.calls) == 1

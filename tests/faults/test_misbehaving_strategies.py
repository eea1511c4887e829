"""Third-party strategies that break their contract: the server stays up, the client gets an answer, the log ends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, ReasondError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import RateLimitedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.strategies.strategy import Outcome, Step, StrategyEvent, Wrote
from reasond_server.testing import FunctionModel, running_server
from reasond_server.types import CustomStep, FinishReason, Thought
from tests.faults import parts
from tests.faults.parts import METRICS, SOON, Misbehaving, Stepping, outcome, step
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from reasond_server.assembly.app import Listening

    Behaviour = Callable[[Misbehaving], AsyncGenerator[StrategyEvent, None]]

RUNNING = 1


class RudeError(BaseException):
    """An exception that `except Exception` does not catch."""


@asynccontextmanager
async def serve(behaviour: Behaviour) -> AsyncIterator[tuple[AsyncClient, Listening, Misbehaving]]:
    """Serve a strategy that misbehaves and one that does not; the stop of the server has a time limit too."""
    naughty = Misbehaving(behaviour)
    try:
        async with asyncio.timeout(SOON):
            async with (
                running_server(model=FunctionModel(lambda _: "yes"), strategies=[naughty, Stepping()]) as listening,
                AsyncClient(listening.grpc, token=listening.token, timeout_s=SOON) as client,
            ):
                yield client, listening, naughty
    finally:
        naughty.released.set()
        await asyncio.gather(*naughty.tasks)


async def events_of(client: AsyncClient, **options: Any) -> list[Any]:
    return [event async for event in client.reason_iterations("why?", strategy="misbehaving", **options)]


async def all_have_ended(client: AsyncClient) -> bool:
    return all([execution.state != RUNNING async for execution in client.list_executions()])


def raising(error: BaseException) -> Behaviour:
    async def behave(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
        yield step(before="it fails")
        raise error

    return behave


def yielding(*events: Any) -> Behaviour:
    async def behave(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
        for event in events:
            yield event

    return behave


ILL_FORMED: dict[str, Any] = {
    "no event at all": None,
    "text": "hello",
    "a step of no kind": Step(detail={"a": 1}, answer_found=False, metrics=METRICS),  # type: ignore[arg-type]  # wrong on purpose
    "metrics of no kind": Step(detail=Thought(text="x"), answer_found=False, metrics="fast"),  # type: ignore[arg-type]  # likewise
    "a step with half a character": step(text="\ud800"),
    "a thought with half a character": Step(detail=Thought(text="\ud800"), answer_found=False, metrics=METRICS),
    "a key that is no text": Step(detail=CustomStep(data={(1, 2): 3}), answer_found=False, metrics=METRICS),  # type: ignore[dict-item]  # likewise
    "a fragment with half a character": Wrote(text="\ud800"),
    "a fragment that is no text": Wrote(text=5),  # type: ignore[arg-type]  # likewise
    "an answer with half a character": outcome("\ud800"),
    "an answer that is none": outcome(None),  # type: ignore[arg-type]  # likewise
    "warnings that are no texts": Outcome(
        answer="x",
        finish_reason=FinishReason.ANSWERED,
        metrics=METRICS,
        warnings=[1],  # type: ignore[list-item]  # likewise
    ),
    "an unknown reason": Outcome(answer="x", finish_reason="bored", metrics=METRICS),  # type: ignore[arg-type]  # likewise
    "a failure that is no error": Outcome(answer="x", finish_reason=FinishReason.FAILED, metrics=METRICS),
    "final metrics of no kind": Outcome(answer="x", finish_reason=FinishReason.ANSWERED, metrics=3),  # type: ignore[arg-type]  # likewise
}


@pytest.mark.parametrize("what", ILL_FORMED)
async def test_values_that_no_wire_can_carry_end_the_run_with_an_internal_error(what: str) -> None:
    async with serve(yielding(ILL_FORMED[what], outcome())) as (client, listening, _):
        with pytest.raises(ReasondError) as unary:
            await client.reason("why?", strategy="misbehaving")
        with pytest.raises(ReasondError) as streamed:
            await events_of(client, include_deltas=True)
        async with make_http_client() as http:
            answer = await http.post(
                f"{listening.http}/api/v1/jsonrpc",
                headers={"authorization": f"Bearer {listening.token}"},
                json={
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "reasoning.execute",
                    "params": {"query": "why?", "strategy": "misbehaving"},
                },
            )
        error = answer.json()["error"]
        assert {unary.value.reason, streamed.value.reason, error["data"]["reason"]} == {"INTERNAL"}
        assert error["message"] == "internal error"
        assert await all_have_ended(client)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        RudeError("secret"),
        BaseExceptionGroup("several", [asyncio.CancelledError(), RudeError()]),
        asyncio.CancelledError(),
        MemoryError(),
        StopAsyncIteration(),
        TimeoutError(),
    ],
    ids=repr,
)
async def test_whatever_a_strategy_raises_the_server_lives_and_the_log_ends(error: BaseException) -> None:
    async with serve(raising(error)) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await events_of(client)
        assert (caught.value.reason, caught.value.message) == ("INTERNAL", "internal error")
        assert await all_have_ended(client)
        assert (await client.reason("1", strategy="stepping")).answer == "done"


async def test_a_strategy_that_cancels_its_own_task_is_no_cancelled_run() -> None:
    async def behave(_self: Misbehaving) -> AsyncGenerator[StrategyEvent, None]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        yield outcome()

    async with serve(behave) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await client.reason("why?", strategy="misbehaving")
    assert caught.value.reason == "INTERNAL"


async def test_an_error_that_no_status_can_hold_reaches_the_client_as_far_as_it_can() -> None:
    odd = ModelFailedError("\ud800 broke", remedy="\ud801", metadata={"\ud800": 5}, retry_after_s=float("nan"))  # type: ignore[dict-item]  # wrong on purpose
    async with serve(raising(odd)) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await events_of(client)
    assert (caught.value.reason, caught.value.message) == ("MODEL_FAILED", "? broke. ?")


async def test_an_infinite_retry_time_is_not_sent() -> None:
    async with serve(raising(RateLimitedError("slow down", retry_after_s=float("inf")))) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await client.reason("why?", strategy="misbehaving")
    assert (caught.value.reason, caught.value.retry_after) == ("RATE_LIMITED", None)


async def test_a_strategy_that_says_not_found_does_not_leave_its_log_open() -> None:
    async with serve(raising(ExecutionNotFoundError("no such page"))) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await client.reason("why?", strategy="misbehaving")
        assert caught.value.reason == "EXECUTION_NOT_FOUND"
        assert await all_have_ended(client)


@pytest.mark.parametrize("behaviour", [parts.more_after_the_outcome, parts.leaving_tasks_behind])
async def test_events_after_the_outcome_do_not_change_it(behaviour: Behaviour) -> None:
    async with serve(behaviour) as (client, _, _):
        answer = await client.reason("why?", strategy="misbehaving")
    assert answer.answer in {"first", "done"}


@pytest.mark.parametrize("behaviour", [parts.deaf_at_the_end, parts.never_ending_clean_up])
async def test_an_answer_does_not_wait_for_ever_for_its_strategy_to_clean_up(behaviour: Behaviour) -> None:
    async with serve(behaviour) as (client, _, _):
        answer = await client.reason("why?", strategy="misbehaving")
        assert answer.answer == "done"
        assert await all_have_ended(client)


@pytest.mark.parametrize("behaviour", [parts.deaf, parts.deaf_and_busy])
async def test_a_strategy_that_swallows_cancellation_is_left_behind_with_a_warning(behaviour: Behaviour) -> None:
    async with serve(behaviour) as (client, _, _):
        stream = client.reason_iterations("why?", strategy="misbehaving", keep_running=True)
        execution_id = (await anext(aiter(stream))).execution_id
        await client.cancel_execution(execution_id)
        assert await all_have_ended(client)
        found = await client.get_execution(execution_id)
        last = found.reasoning.warnings[-1:] if behaviour is parts.deaf else []
    assert list(last) in ([], ["The work did not stop when it was told to and was left behind."])


@pytest.mark.parametrize("behaviour", [parts.deaf, parts.never_yielding])
async def test_a_deadline_ends_a_strategy_that_ignores_it(behaviour: Behaviour) -> None:
    async with serve(behaviour) as (client, _, _):
        with pytest.raises(ReasondError) as caught:
            await client.reason("why?", strategy="misbehaving", timeout_s=0.5)
        assert caught.value.reason in {"MODEL_TIMEOUT", "DEADLINE_EXCEEDED"}


async def test_a_strategy_that_never_waits_lets_others_work_and_writes_no_more_than_one_log_may_hold() -> None:
    async with serve(parts.endless_steps) as (client, _, _):
        endless = asyncio.create_task(client.reason("why?", strategy="misbehaving"))
        assert (await client.reason("1", strategy="stepping")).answer == "done"
        with pytest.raises(ReasondError) as caught:
            await endless
        assert caught.value.reason == "STORE_FULL"


async def test_endless_text_lets_others_work_and_ends_with_its_reader() -> None:
    async with serve(parts.endless_text) as (client, _, naughty):
        endless = asyncio.create_task(events_of(client))
        await naughty.has_begun.wait()
        assert (await client.reason("1", strategy="stepping")).answer == "done"
        endless.cancel()
        await asyncio.wait([endless])
        async with asyncio.timeout(SOON):
            while not await all_have_ended(client):
                pass

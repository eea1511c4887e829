"""Two runners on one store: the second resumes or ends the executions that the first left."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.errors.limits import DrainingError
from reasond_server.runs.run import Subscribers
from reasond_server.storage.transactions import Job
from reasond_server.types import (
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Result,
    StreamEvent,
    TextDelta,
)
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted
from tests.unit.runs.servers import (
    LIMITS,
    Replayable,
    Servers,
    end_of,
    held_after,
    recover_run,
)
from tests.unit.telemetry.parts import metrics, values

REATTACH_S = 1.0


async def test_a_run_whose_process_died_goes_on_where_it_stopped(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    before = await servers.log(execution)
    await servers.die(first)
    result, other, log = await recover_run(servers, execution)
    assert (result.answer, result.finish_reason) == ("one two six", FinishReason.ANSWERED)
    assert log[: len(before)] == before
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 3, Result]
    assert result.metrics.usage.model_calls == 3
    assert other.calls == 1
    assert result.metrics.execution_time_s >= 20


async def take_over_and_die(servers: Servers, execution: Execution) -> None:
    """Let another process go on with the execution until it waits for its model, and end like one that is killed."""
    model = EchoModel()
    model.gate.clear()
    other = servers.server(model)
    await other._recoverer.lease_keeper.round()
    await model.waited.wait()
    assert other.find_live(execution.execution_id) is not None
    await servers.die(other)


async def test_a_run_that_ended_two_processes_that_went_on_with_it_ends_as_failed(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    await take_over_and_die(servers, execution)
    await take_over_and_die(servers, execution)
    result, other, log = await recover_run(servers, execution)
    assert result.error is not None
    assert (result.finish_reason, result.error.reason) == (FinishReason.FAILED, "NOT_RESUMABLE")
    assert "2 servers that went on with it ended before it got any further" in result.error.message
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 2, Result]
    assert other.calls == 0


async def test_a_run_that_got_further_between_two_deaths_goes_on(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 1)
    await servers.die(first)
    await take_over_and_die(servers, execution)
    further = EchoModel()
    servers.strategy = Replayable(
        Script(words=("one", "two", "six"), before_step=lambda index: further.gate.clear() if index == 2 else None)
    )
    second = servers.server(further)
    await second._recoverer.lease_keeper.round()
    await further.waited.wait()
    run = second.find_live(execution.execution_id)
    assert run is not None
    await run.log.flush()
    await servers.die(second)
    await take_over_and_die(servers, execution)
    result, _, _ = await recover_run(servers, execution)
    assert (result.answer, result.finish_reason) == ("one two six", FinishReason.ANSWERED)


async def test_a_run_that_is_handed_over_in_order_again_and_again_goes_on(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    for _ in range(4):
        waiting = EchoModel()
        waiting.gate.clear()
        server = servers.server(waiting)
        await server._recoverer.lease_keeper.round()
        await waiting.waited.wait()
        await server.drain(grace_s=0.01)
    result, _, _ = await recover_run(servers, execution)
    assert (result.answer, result.finish_reason) == ("one two six", FinishReason.ANSWERED)


async def test_nobody_takes_over_what_is_alive(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    other = servers.server(EchoModel())
    for _ in range(4):
        servers.time.advance(10)
        await first._recoverer.lease_keeper.round()
        await other._recoverer.lease_keeper.round()
    assert other.find_live(execution.execution_id) is None
    model.gate.set()


async def test_who_was_taken_for_dead_stops_and_writes_nothing_more(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    result, _, _ = await recover_run(servers, execution)
    model.gate.set()
    await first._recoverer.lease_keeper.round()
    await end_of(first, execution)
    assert first.find_live(execution.execution_id) is None
    assert (await servers.log(execution))[-1] == result


async def test_a_run_that_differs_from_its_log_keeps_its_steps_goes_on_and_says_so(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six"), extra="something else"))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    result, other, log = await recover_run(servers, execution)
    assert result.finish_reason is FinishReason.ANSWERED
    assert [warning for warning in result.warnings if "after 2 steps" in warning]
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 3, Result]
    assert [event.index for event in log if isinstance(event, Iteration)] == [0, 1, 2]
    assert result.metrics.usage.model_calls == 2 + other.calls


async def test_a_run_that_ends_sooner_than_its_log_keeps_its_steps_and_says_so(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one",)))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    result, _, log = await recover_run(servers, execution)
    assert result.finish_reason is FinishReason.ANSWERED
    assert [warning for warning in result.warnings if "after 2 steps" in warning]
    assert [type(event) for event in log] == [ExecutionStarted, Iteration, Iteration, Result]


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_a_strategy_that_cannot_go_on_ends_as_failed_with_what_it_has(
    servers: Servers,
    model: EchoModel,
    is_enabled: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    servers.strategy = Scripted(Script()) if is_enabled else None
    result, other, log = await recover_run(servers, execution)
    assert result.error is not None
    assert "'replayable' is not enabled here any more" in result.error.message
    assert (result.finish_reason, len(log), other.calls) == (FinishReason.FAILED, 4, 0)
    assert result.metrics.usage.model_calls >= 2


async def test_a_strategy_that_is_not_replayable_ends_as_failed(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    model.gate.clear()
    execution = await first.start(servers.assignment(strategy=Scripted(Script())))
    await model.waited.wait()
    await servers.die(first)
    result, _, log = await recover_run(servers, execution)
    assert result.error is not None
    assert "the strategy 'scripted' cannot go on from its steps" in result.error.message
    assert isinstance(log[0], ExecutionStarted)


async def test_a_run_that_nobody_can_come_back_for_ends_at_once(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1, is_unary=True, keep_running=False)
    await servers.die(first)
    result, other, _ = await recover_run(servers, execution)
    assert result.error is not None
    assert "nobody could have come back" in result.error.message
    assert other.calls == 0


async def test_the_time_limit_counts_from_the_first_beginning(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2, time_limit_s=10)
    await servers.die(first)
    result, other, _ = await recover_run(servers, execution)
    assert (result.finish_reason, other.calls) == (FinishReason.BUDGET_EXHAUSTED, 0)


async def test_a_run_that_nobody_asked_to_keep_is_cancelled_when_nobody_comes(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(waits_for=asyncio.Event()))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.die(first)
    result, _, _ = await recover_run(servers, execution, reattach_s=0.01)
    assert result.finish_reason is FinishReason.CANCELLED


async def test_a_follower_in_a_third_process_keeps_a_run_alive(servers: Servers, model: EchoModel) -> None:
    released = asyncio.Event()
    servers.strategy = Replayable(Script(words=("one", "two", "six"), waits_for=released))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.die(first)
    third = servers.server(EchoModel())
    seen: list[StreamEvent] = []
    has_begun = asyncio.Event()

    async def follow() -> None:
        events = servers.follower(third, 0.01).follow(execution, after=0, include_deltas=False)
        async with aclosing(events):
            async for event in events:
                has_begun.set()
                seen.append(event)

    following = asyncio.create_task(follow())
    await has_begun.wait()
    other = servers.server(EchoModel(), replace(LIMITS, reattach_s=REATTACH_S))
    await other._recoverer.lease_keeper.round()
    run = other.find_live(execution.execution_id)
    assert run is not None
    announced = asyncio.Event()

    class Heard(Subscribers):
        __slots__ = ()

        def await_one(self, *, within_s: float) -> None:
            super().await_one(within_s=within_s)
            announced.set()

    run.subscribers.__class__ = Heard  # to know when it was announced
    for _ in range(3):
        await asyncio.sleep(REATTACH_S / 2)
        announced.clear()
        await announced.wait()
    released.set()
    await following
    assert [e.sequence for e in seen if isinstance(e.event, ExecutionStarted | Iteration | Result)] == [1, 2, 3, 4, 5]
    assert isinstance(seen[-1].event, Result)
    assert seen[-1].event.finish_reason is FinishReason.ANSWERED


async def test_an_observer_in_a_third_process_sees_a_run_given_up(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six"), waits_for=asyncio.Event()))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.die(first)
    observer = servers.follower(servers.server(EchoModel()), 0.01).follow(
        execution, after=0, include_deltas=False, is_observer=True
    )
    async with aclosing(observer):
        assert isinstance((await anext(observer)).event, ExecutionStarted)
        other = servers.server(EchoModel(), replace(LIMITS, reattach_s=0.1))
        await other._recoverer.lease_keeper.round()
        seen = [event.event async for event in observer]
    assert isinstance(seen[-1], Result)
    assert seen[-1].finish_reason is FinishReason.CANCELLED


async def test_a_follower_here_goes_on_when_its_run_comes_here(servers: Servers, model: EchoModel) -> None:
    gate = asyncio.Event()
    servers.strategy = Replayable(Script(words=("one", "two", "six"), waits_for=gate))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    other = servers.server(EchoModel())
    events = servers.follower(other).follow(execution, after=1, include_deltas=True)
    async with aclosing(events):
        seen = [await anext(events), await anext(events)]
        await other._recoverer.lease_keeper.round()
        gate.set()
        seen += [event async for event in events]
    logged = [event.sequence for event in seen if not isinstance(event.event, TextDelta)]
    assert logged == [2, 3, 4, 5]
    deltas = [event.event for event in seen if isinstance(event.event, TextDelta)]
    assert "".join(delta.text for delta in deltas) in {"six", ""}
    assert {delta.iteration_index for delta in deltas} <= {2}


async def test_a_server_that_ends_hands_its_runs_over_and_tells_their_followers(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1, keep_running=False)
    events = servers.follower(first).follow(execution, after=0, include_deltas=False)
    seen = [await anext(events), await anext(events)]
    await first.drain(grace_s=0.01)
    with pytest.raises(DrainingError) as told:
        await anext(events)
    assert told.value.execution_id == execution.execution_id
    assert [event.sequence for event in seen] == [1, 2]
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING
    result, other, log = await recover_run(servers, execution)
    assert (result.answer, other.calls, len(log)) == ("one two six", 2, 5)
    # The call that was interrupted was paid for too, as far as the server knows.
    assert result.metrics.usage.model_calls == 4


async def test_a_retry_of_a_cancelled_run_does_not_pay_again(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 2, request_id="r1", digest="d")
    run = first.find_live(execution.execution_id)
    assert run is not None
    run.cancel()
    await run.wait_for_end()
    model.gate.set()
    cancelled = await servers.store.find("acme", execution.execution_id)
    other_model = EchoModel()
    other = servers.server(other_model)
    script = Script(words=("one", "two", "six"))
    again = await other.start(servers.assignment(script, request_id="r1", digest="d"))
    await end_of(other, again)
    assert again.execution_id != execution.execution_id
    log = await servers.log(again)
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 3, Result]
    result = log[-1]
    assert isinstance(result, Result)
    assert other_model.calls == 1
    assert result.metrics.usage.model_calls == cancelled.usage.model_calls + 1
    assert result.warnings[-1].startswith(f"This request was begun as execution {execution.execution_id}")
    assert (await servers.store.find_claim("acme", "r1")) is not None


async def test_what_becomes_of_a_run_is_told_by_each_process_that_had_it(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first, second = metrics(), metrics()
    leaving = servers.server(model, observer=first)
    execution = await held_after(servers, leaving, model, 2)
    await leaving.stop()
    heir = servers.server(EchoModel(), observer=second)
    servers.time.advance(20)
    await heir._recoverer.lease_keeper.round()
    await end_of(heir, execution)
    left, ended = values(first), values(second)
    assert left["reasond_executions_left_total handed_over"] == 1
    assert (left["reasond_steps_total other"], ended["reasond_steps_total other"]) == (2, 1)
    assert "reasond_executions_total answered other" not in left
    assert ended["reasond_executions_total answered other"] == 1
    assert ended["reasond_recoveries_total resumed"] == 1
    assert ended["reasond_tokens_total input other other"] == 10


async def test_a_run_that_cannot_be_gone_on_with_is_told_to_be_written_off(servers: Servers, model: EchoModel) -> None:
    execution = await held_after(servers, (first := servers.server(model)), model, 1)
    await servers.die(first)
    servers.strategy, counted = None, metrics()
    other = servers.server(EchoModel(), observer=counted)
    await other._recoverer.lease_keeper.round()
    await end_of(other, execution)
    assert values(counted)["reasond_recoveries_total written_off"] == 1


async def test_a_run_whose_event_loop_ends_without_a_stop_goes_on_elsewhere(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    first.begin()
    execution = await held_after(servers, first, model, 1)
    run = first.find_live(execution.execution_id)
    assert run is not None
    # `asyncio.run` does this at its end.
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await run.wait_for_end()
    assert not any(isinstance(event, Result) for event in await servers.log(execution))
    servers.time.advance(20)
    result, other, _ = await recover_run(servers, execution)
    assert (result.answer, result.finish_reason) == ("one two six", FinishReason.ANSWERED)
    assert other.calls == 2


@pytest.fixture(params=["sqlite", "postgres"])
async def stored(
    request: pytest.FixtureRequest, servers: Servers, time: ManualClock, tmp_path: Path
) -> AsyncGenerator[Callable[[], Awaitable[None]], None]:
    """A database behind the servers; the function ends the leases of processes that died."""
    url = f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir="",
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**7,
            max_agents=1,
        )
    )
    servers.store = stores.executions  # type: ignore[assignment]  # a store of another class, with the same port

    def expire() -> Job[None]:
        yield "UPDATE executions SET lease_until = :past WHERE state = 'running'", {"past": 0.0}

    async def expire_leases() -> None:
        assert stores.transactions is not None
        await stores.transactions.change(expire)

    yield expire_leases
    for runner in servers.runners:
        await runner.stop()
    await stores.aclose()


async def test_a_run_that_ended_two_processes_ends_as_failed_on_a_database_too(
    servers: Servers, model: EchoModel, stored: Callable[[], Awaitable[None]]
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    for _ in range(2):
        await stored()
        await take_over_and_die(servers, execution)
    await stored()
    result, other, log = await recover_run(servers, execution)
    assert result.error is not None
    assert (result.finish_reason, result.error.reason) == (FinishReason.FAILED, "NOT_RESUMABLE")
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 2, Result]
    assert other.calls == 0
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.FAILED

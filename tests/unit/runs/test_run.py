"""The live side of an execution: the notices to its subscribers, and when it stops because nobody follows it."""

import asyncio
from collections.abc import Callable

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.mailbox import Mailbox
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.phase import Trigger
from reasond_server.runs.run import Run
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import FinishReason, TextDelta
from tests.unit.eventlog.test_writer import SlowStore
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, in_virtual_time, passed_s

Assign = Callable[..., ReasoningWork]


async def start_run(store: SlowStore, assign: Assign, *, keep_running: bool = True) -> Run:
    """Return a run whose strategy waits; its first event is appended."""
    limits = RunnerLimits(max_concurrent=3, retention_s=60)
    runner = Runner(store=store, model=EchoModel(), clock=ManualClock().clock(), limits=limits)
    assignment = assign(Script(waits_for=asyncio.Event()), keep_running=keep_running)
    run = runner.find_live((await runner.start(assignment)).execution_id)
    assert run is not None
    return run


async def take_all(mailbox: Mailbox) -> list[TextDelta | None]:
    """Return the current content of the mailbox."""
    items: list[TextDelta | None] = []
    while True:
        try:
            items.append(await mailbox.take(timeout_s=0))
        except TimeoutError:
            return items


def delta(step: int, text: str) -> TextDelta:
    return TextDelta(iteration_index=step, text=text)


@in_virtual_time
async def test_text_is_held_until_the_steps_before_it_are_committed(assign: Assign) -> None:
    store = SlowStore()
    store.gate.clear()
    run = await start_run(store, assign)
    mailbox = Mailbox(wants_deltas=True)
    run.subscribers.attach(mailbox)
    run.subscribers.publish(0, "a")
    run.subscribers.publish(0, "b")
    assert await take_all(mailbox) == [None]
    store.gate.set()
    await run.log.wait_for_commit()
    assert await take_all(mailbox) == [None, delta(0, "ab")]
    run.subscribers.publish(0, "c")
    assert await take_all(mailbox) == [delta(0, "c")]
    run.cancel()
    await run.wait_for_end()


@in_virtual_time
async def test_text_of_a_step_that_is_over_meanwhile_is_left_out(assign: Assign) -> None:
    store = SlowStore()
    store.gate.clear()
    run = await start_run(store, assign)
    mailbox = Mailbox(wants_deltas=True)
    run.subscribers.attach(mailbox)
    run.subscribers.publish(0, "old")
    run.subscribers.forget_written()
    store.gate.set()
    await run.log.wait_for_commit()
    assert await take_all(mailbox) == [None]
    store.gate.clear()
    run.log.append(run.log.events.read_after(0)[0].event, now=ManualClock().now(), usage=run.accounts.usage)  # type: ignore[index]  # it is in memory
    run.subscribers.publish(1, "of step 1")
    run.subscribers.publish(2, "of step 2")
    store.gate.set()
    await run.log.wait_for_commit()
    assert await take_all(mailbox) == [None, delta(1, "of step 1"), delta(2, "of step 2")]
    run.cancel()
    await run.wait_for_end()


@in_virtual_time
async def test_text_goes_to_those_alone_who_want_it(assign: Assign) -> None:
    store = SlowStore()
    store.gate.clear()
    run = await start_run(store, assign)
    steps_only, reader = Mailbox(wants_deltas=False), Mailbox(wants_deltas=True)
    run.subscribers.attach(steps_only)
    run.subscribers.publish(0, "held, ")
    run.subscribers.attach(reader)
    run.subscribers.publish(0, "read")
    store.gate.set()
    await run.log.wait_for_commit()
    assert await take_all(reader) == [None, delta(0, "held, read")]
    run.subscribers.detach(reader)
    run.subscribers.publish(0, "unread")
    assert await take_all(reader) == []
    assert await take_all(steps_only) == [None]
    run.cancel()
    await run.wait_for_end()


@in_virtual_time
async def test_who_reads_from_the_start_gets_what_the_steps_in_progress_have_written(assign: Assign) -> None:
    run = await start_run(SlowStore(), assign)
    await run.log.wait_for_commit()
    for index, text in ((3, "one "), (4, "other "), (3, "goes on")):
        run.subscribers.publish(index, text)
    late, again, steps_only = Mailbox(wants_deltas=True), Mailbox(wants_deltas=True), Mailbox(wants_deltas=False)
    run.subscribers.attach(late, is_observer=True, is_from_start=True)
    run.subscribers.attach(again, is_observer=True)
    run.subscribers.attach(steps_only, is_from_start=True)
    run.subscribers.publish(4, "ends")
    assert await take_all(late) == [None, delta(3, "one goes on"), delta(4, "other ends")]
    assert await take_all(again) == [None, delta(4, "ends")]
    assert await take_all(steps_only) == [None]
    run.cancel()
    await run.wait_for_end()


@in_virtual_time
async def test_what_is_kept_is_bounded_and_the_last_of_it(assign: Assign) -> None:
    store = SlowStore()
    store.gate.clear()
    run = await start_run(store, assign)
    mailbox = Mailbox(wants_deltas=True)
    run.subscribers.attach(mailbox)
    for text in ("x" * 65_000, "y" * 536, "z", "!"):
        run.subscribers.publish(0, text)
    store.gate.set()
    await run.log.wait_for_commit()
    assert await take_all(mailbox) == [None, delta(0, "z!")]
    run.cancel()
    await run.wait_for_end()


@in_virtual_time
async def test_who_is_awaited_keeps_a_run_alive_for_as_long_and_no_longer(assign: Assign) -> None:
    run = await start_run(SlowStore(), assign, keep_running=False)
    run.subscribers.await_one(within_s=10)
    await asyncio.sleep(6)
    run.subscribers.await_one(within_s=10)
    mailbox = Mailbox(wants_deltas=False)
    run.subscribers.attach(mailbox)
    run.subscribers.await_one(within_s=1)
    run.subscribers.detach(mailbox)
    await run.wait_for_end()
    assert run.is_cancelled
    assert passed_s() == pytest.approx(16)


@in_virtual_time
async def test_a_run_that_is_kept_is_not_stopped_when_the_last_follower_leaves(assign: Assign) -> None:
    run = await start_run(SlowStore(), assign, keep_running=False)
    mailbox = Mailbox(wants_deltas=False)
    run.subscribers.attach(mailbox)
    run.subscribers.await_one(within_s=1)
    run.subscribers.keep()
    run.subscribers.detach(mailbox)
    await asyncio.sleep(5)
    assert run.cause is None
    run.cancel()
    run.stop(Trigger.LOSE)
    await run.wait_for_end()
    assert run.cause is Trigger.CANCEL


@in_virtual_time
async def test_what_fails_because_a_run_was_stopped_is_not_why_it_ends(assign: Assign) -> None:
    run = await start_run(SlowStore(), assign)
    run.cancel()
    assert not run.report_end(InternalError("too late"), trigger=Trigger.FAIL)
    await run.wait_for_end()
    assert run.log.execution.finish_reason is FinishReason.CANCELLED

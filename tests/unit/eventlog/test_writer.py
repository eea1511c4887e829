import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count

import pytest

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.eventlog.log import MAX_PENDING, RunLog
from reasond_server.eventlog.store import Append, Creation, Lease, LeaseLostError, Record
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.eventlog.writer import LogWriter
from reasond_server.telemetry.observers import Observer
from reasond_server.types import (
    CustomStep,
    Execution,
    ExecutionState,
    FinishReason,
    Iteration,
    Metrics,
    Result,
    StrategySource,
    Usage,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LEASE = Lease(owner="p", seconds=15)
_NUMBERS = count(1)


class SlowStore(MemoryExecutionStore):
    """A memory store that waits for the test before it commits, and fails on request."""

    def __init__(self) -> None:
        super().__init__(max_bytes=10**8, now=lambda: NOW, monotonic=lambda: 0.0)
        self.gate = asyncio.Event()
        self.gate.set()
        self.batches: list[Sequence[Append]] = []
        self.failures: list[Exception] = []
        self.loses_answers = False

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        self.batches.append(batch)
        await self.gate.wait()
        if self.failures:
            if self.loses_answers:
                await super().append(batch)
            raise self.failures.pop(0)
        return await super().append(batch)


def step(text: str = "x") -> Iteration:
    return Iteration(index=0, answer_found=False, usage=Usage(), elapsed_s=0, detail=CustomStep(data={"text": text}))


def result() -> Result:
    return Result(
        execution_id="e",
        answer="yes",
        strategy_used="s",
        strategy_source=StrategySource.SYSTEM,
        finish_reason=FinishReason.ANSWERED,
        metrics=Metrics(usage=Usage(), execution_time_s=0),
        warnings=(),
        model="m",
    )


class Told(Observer):
    """Keeps the reports about commits."""

    def __init__(self) -> None:
        self.committed_entries: list[int] = []
        self.failures: list[str] = []

    def commit_ended(self, entries: int, duration_s: float) -> None:
        assert duration_s >= 0
        self.committed_entries.append(entries)

    def commit_failed(self, reason: str) -> None:
        self.failures.append(reason)


@pytest.fixture
async def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
async def writer(store: SlowStore) -> LogWriter:
    return LogWriter(store=store, random=lambda: 0.0)


async def new_log(store: SlowStore, writer: LogWriter, *, is_open: bool = True) -> RunLog:
    execution = Execution(
        execution_id=f"e{next(_NUMBERS)}",
        tenant="acme",
        state=ExecutionState.RUNNING,
        strategy="s",
        strategy_source=StrategySource.SYSTEM,
        model="m",
        create_time=NOW,
    )
    await store.create(execution, digest="", plan="", lease=LEASE)
    log = RunLog(execution=execution, submit=writer.submit)
    log.is_open = is_open
    return log


def end(log: RunLog) -> None:
    log.end(
        result(),
        now=NOW,
        usage=Usage(),
        finish_reason=FinishReason.ANSWERED,
        expire_time=NOW.replace(year=2027),
    )


def add(log: RunLog, *texts: str) -> None:
    for text in texts:
        log.append(step(text), now=NOW, usage=Usage())


def sequences(log: RunLog, after: int = 0) -> list[int] | None:
    events = log.events.read_after(after)
    return None if events is None else [event.sequence for event in events]


async def test_what_is_appended_during_a_commit_goes_into_the_next_for_all_logs(
    store: SlowStore, writer: LogWriter
) -> None:
    one, other = await new_log(store, writer), await new_log(store, writer)
    store.gate.clear()
    add(one, "a")
    await asyncio.sleep(0)
    add(one, "b", "c")
    add(other, "d")
    store.gate.set()
    await one.wait_for_commit()
    await other.wait_for_commit()
    assert [[len(part.entries) for part in batch] for batch in store.batches] == [[1], [2, 1]]
    assert [event.sequence for event in await store.read("acme", one.execution.execution_id)] == [1, 2, 3]


async def test_followers_see_nothing_before_it_is_committed(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    told: list[int] = []
    log.on_change = lambda: told.append(log.events.committed)
    store.gate.clear()
    add(log, "a", "b")
    await asyncio.sleep(0)
    assert (sequences(log), log.execution.last_sequence, told) == ([], 2, [])
    everything = log.events.read_all()
    assert everything is not None
    assert [event.sequence for event in everything] == [1, 2]
    store.gate.set()
    await log.wait_for_commit()
    assert (sequences(log), told) == ([1, 2], [2])
    assert sequences(log, 1) == [2]
    assert sequences(log, 2) == []


async def test_a_run_waits_while_too_many_entries_or_bytes_wait(store: SlowStore, writer: LogWriter) -> None:
    for texts in (["x"] * (MAX_PENDING + 1), ["x" * 300_000]):
        log = await new_log(store, writer)
        store.gate.clear()
        add(log, *texts[1:])
        await log.wait_for_room()
        add(log, texts[0])
        waiting = asyncio.create_task(log.wait_for_room())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        store.gate.set()
        await waiting


async def test_the_memory_of_a_log_is_bounded_and_says_where_it_ends(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    for _ in range(300):
        add(log, "x")
        await log.wait_for_commit()
    assert sequences(log) is None
    assert sequences(log, 43) is None
    assert sequences(log, 44) == [*range(45, 301)]
    assert log.events.read_all() is None
    big = await new_log(store, writer)
    for _ in range(4):
        add(big, "x" * 100_000)
        await big.wait_for_commit()
    assert (sequences(big), sequences(big, 2)) == (None, [3, 4])


async def test_a_log_whose_store_knows_less_is_kept_in_memory_whole(store: SlowStore, writer: LogWriter) -> None:
    whole = await new_log(store, writer)
    log = RunLog(execution=whole.execution, submit=writer.submit, store_as=lambda _: step(""))
    for _ in range(300):
        add(log, "secret")
        await log.wait_for_commit()
    assert sequences(log) == [*range(1, 301)]
    events = log.events.read_after(0)
    assert events is not None
    assert "secret" in repr(events[0])
    assert "secret" not in repr(await store.read("acme", log.execution.execution_id))


@pytest.mark.parametrize("loses_answers", [False, True])
async def test_a_store_out_of_reach_is_asked_again_until_it_takes_what_waits_once(
    store: SlowStore,
    writer: LogWriter,
    loses_answers: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    log = await new_log(store, writer)
    store.failures = [StoreUnavailableError("gone", retry_after_s=2.0)] * 2
    store.loses_answers = loses_answers
    add(log, "a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError, match="gone") as refused:
        writer.require_store()
    assert refused.value.retry_after_s == 2.0
    add(log, "b")
    end(log)
    await log.wait_for_commit()
    writer.require_store()
    assert log.error is None
    assert [event.sequence for event in await store.read("acme", log.execution.execution_id)] == [1, 2, 3]
    assert store.batches[0] == store.batches[1] == store.batches[2]


async def test_a_store_that_does_not_answer_takes_no_new_executions_until_it_does(store: SlowStore) -> None:
    writer = LogWriter(store=store, random=lambda: 0.0, hangs_after_s=0.0)
    log = await new_log(store, writer)
    store.gate.clear()
    add(log, "a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.batches
    with pytest.raises(StoreUnavailableError, match="The store has not answered for 0 s") as refused:
        writer.require_store()
    assert refused.value.retry_after_s == 3.0
    store.gate.set()
    await log.wait_for_commit()
    writer.require_store()


async def test_a_lease_that_was_taken_ends_the_log_here(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    log.fence = 7
    add(log, "a")
    with pytest.raises(LeaseLostError):
        await log.flush()
    assert log.execution.last_sequence == log.events.committed == 0
    add(log, "b")
    log.record(Record(key="k", body="b"), usage=Usage())
    assert log.is_committed
    with pytest.raises(LeaseLostError):
        await log.wait_for_room()


async def test_one_log_that_is_refused_keeps_no_other_from_being_written(store: SlowStore, writer: LogWriter) -> None:
    gone, kept = await new_log(store, writer), await new_log(store, writer)
    await store.delete("acme", gone.execution.execution_id)
    add(gone, "a")
    add(kept, "b")
    await kept.flush()
    assert isinstance(gone.error, ExecutionNotFoundError)


async def test_an_execution_that_cannot_be_begun_for_a_fault_of_its_own_keeps_no_other_from_beginning(
    store: SlowStore, writer: LogWriter
) -> None:
    taken = await new_log(store, writer)
    log = RunLog(execution=taken.execution, submit=writer.submit)
    log.creation = Creation(plan="", lease=LEASE)
    add(log, "a")
    await log.wait_for_commit()
    assert isinstance(log.error, InternalError)
    writer.require_store()


async def test_a_fault_of_the_store_ends_the_logs_and_not_the_writer(store: SlowStore, writer: LogWriter) -> None:
    log, later = await new_log(store, writer), await new_log(store, writer)
    store.failures = [ZeroDivisionError()]
    add(log, "a")
    await log.wait_for_commit()
    assert log.error is not None
    assert log.error.message == "internal error"
    add(later, "b")
    await later.flush()


async def test_every_failure_of_the_store_is_counted_once_with_its_reason(store: SlowStore) -> None:
    told = Told()
    writer = LogWriter(store=store, random=lambda: 0.0, observer=told)
    log, other = await new_log(store, writer), await new_log(store, writer)
    store.failures = [StoreUnavailableError("gone"), StoreUnavailableError("gone"), ZeroDivisionError()]
    add(log, "a", "b")
    await log.wait_for_commit()
    assert told.failures == ["STORE_UNAVAILABLE", "STORE_UNAVAILABLE", "INTERNAL"]
    add(other, "c")
    await other.flush()
    assert told.failures[3:] == []
    assert told.committed_entries[-1] == 1


async def test_a_log_that_is_full_can_be_opened_again_for_its_end(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    log.close(StoreFullError("full"))
    with pytest.raises(StoreFullError):
        await log.wait_for_room()
    end(log)
    await log.flush()
    assert (await store.find("acme", log.execution.execution_id)).state is ExecutionState.SUCCEEDED


async def test_a_log_that_is_suspended_is_over_here_and_a_late_record_is_dropped(
    store: SlowStore, writer: LogWriter
) -> None:
    log = await new_log(store, writer)
    add(log, "a")
    wake_time = NOW.replace(year=2027)
    log.suspend(step("waits"), now=NOW, usage=Usage(input_tokens=7), wake_time=wake_time)
    assert (log.is_suspended, log.has_ended) == (True, False)
    log.record(Record(key="k", body="{}"), usage=Usage())
    await log.flush()
    found = await store.find("acme", log.execution.execution_id)
    assert found == log.execution
    assert (found.state, found.wake_time, found.last_sequence) == (ExecutionState.SUSPENDED, wake_time, 2)
    assert found.usage == Usage(input_tokens=7)
    add(log, "too late")
    await log.wait_for_commit()
    assert isinstance(log.error, LeaseLostError)


async def test_a_suspension_that_was_refused_suspends_nothing(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    log.suspend(step("waits"), now=NOW, usage=Usage(), wake_time=NOW)
    log.close(StoreFullError("full"))
    assert not log.is_suspended
    assert (log.execution.wake_time, log.execution.last_sequence) == (None, 0)


async def test_nothing_is_written_of_an_execution_that_is_not_in_the_store_yet(
    store: SlowStore, writer: LogWriter
) -> None:
    log = await new_log(store, writer, is_open=False)
    add(log, "a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert store.batches == []
    log.open()
    await log.flush()
    assert log.events.committed == 1


async def test_records_stand_between_the_events_and_are_no_events(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    add(log, "a")
    log.record(Record(key="k", body="{}"), usage=Usage(input_tokens=3, model_calls=1))
    add(log, "b")
    await log.flush()
    assert sequences(log) == [1, 2]
    assert [record.key for record in (await store.read_checkpoint("acme", log.execution.execution_id)).records] == ["k"]


async def test_closing_the_writer_commits_what_it_can_and_waits_no_longer(store: SlowStore, writer: LogWriter) -> None:
    log = await new_log(store, writer)
    await writer.aclose(within_s=1)
    store.failures = [StoreUnavailableError("gone")] * 100
    add(log, "a")
    await writer.aclose(within_s=0.01)
    assert not log.is_committed


async def test_who_begins_something_waits_while_a_slow_store_has_more_than_it_takes_at_once(
    store: SlowStore, writer: LogWriter
) -> None:
    logs = [await new_log(store, writer) for _ in range(600)]
    store.gate.clear()
    add(logs[0], "under way")
    await asyncio.sleep(0)
    for log in logs[1:]:
        add(log, "waits")
    coming = asyncio.create_task(writer.wait_for_capacity())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not coming.done()
    store.gate.set()
    await coming
    await logs[-1].wait_for_commit()
    await writer.wait_for_capacity()


async def test_who_waits_for_a_store_that_fails_meanwhile_is_refused(store: SlowStore, writer: LogWriter) -> None:
    logs = [await new_log(store, writer) for _ in range(600)]
    store.gate.clear()
    add(logs[0], "under way")
    await asyncio.sleep(0)
    for log in logs[1:]:
        add(log, "waits")
    coming = asyncio.create_task(writer.wait_for_capacity())
    await asyncio.sleep(0)
    writer.report(StoreUnavailableError("gone"))
    with pytest.raises(StoreUnavailableError, match="gone"):
        await coming
    store.gate.set()
    await logs[-1].wait_for_commit()

from dataclasses import replace
from datetime import timedelta

import pytest

from reasond_server.errors import CursorExpiredError, ExecutionNotFoundError, InternalError, StoreFullError
from reasond_server.executions.memory import MemoryExecutionStore
from reasond_server.executions.store import ExecutionFilter
from reasond_server.types import (
    CustomStep,
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    LoggedEvent,
    Metrics,
    Result,
    StrategySource,
    Usage,
)
from tests.unit.executions.conftest import ManualClock

EVERYTHING = ExecutionFilter()


class Book:
    """Writes executions into a store."""

    def __init__(self, store: MemoryExecutionStore, time: ManualClock) -> None:
        self.store = store
        self.time = time

    async def begin(self, name: str, *, tenant: str = "acme", strategy: str = "s", request_id: str = "") -> Execution:
        self.time.advance(1)
        execution = Execution(
            execution_id=name,
            tenant=tenant,
            state=ExecutionState.RUNNING,
            strategy=strategy,
            strategy_source=StrategySource.SYSTEM,
            model="m",
            create_time=self.time.now(),
            request_id=request_id,
        )
        await self.store.create(execution, digest="d")
        started = ExecutionStarted(strategy=strategy, strategy_source=StrategySource.SYSTEM, model="m", config={})
        return await self.add(execution, started)

    async def add(self, execution: Execution, event: ExecutionStarted | Iteration | Result) -> Execution:
        sequence = execution.last_sequence + 1
        execution = replace(execution, last_sequence=sequence)
        logged = LoggedEvent(sequence=sequence, create_time=self.time.now(), event=event)
        await self.store.append(execution, logged)
        return execution

    async def step(self, execution: Execution, text: str) -> Execution:
        detail = CustomStep(data={"text": text, "list": ["x"]})
        return await self.add(
            execution, Iteration(index=0, answer_found=False, usage=Usage(), elapsed_s=0, detail=detail)
        )

    async def end(self, execution: Execution, reason: FinishReason = FinishReason.ANSWERED) -> Execution:
        execution = replace(
            execution,
            state=ExecutionState.SUCCEEDED,
            finish_reason=reason,
            expire_time=self.time.now() + timedelta(seconds=60),
        )
        result = Result(
            execution_id=execution.execution_id,
            answer="yes",
            strategy_used="s",
            strategy_source=StrategySource.SYSTEM,
            finish_reason=reason,
            metrics=Metrics(usage=Usage(), execution_time_s=0),
            warnings=(),
            model="m",
        )
        return await self.add(execution, result)

    async def names(self, wanted: ExecutionFilter = EVERYTHING, *, tenant: str = "acme") -> list[str]:
        page = await self.store.page(tenant, wanted, size=100, before=None)
        return [execution.execution_id for execution in page]


@pytest.fixture
def book(store: MemoryExecutionStore, time: ManualClock) -> Book:
    return Book(store, time)


async def test_events_are_read_back_from_any_place(book: Book) -> None:
    execution = await book.end(await book.step(await book.begin("a"), "hello"))
    assert [logged.sequence for logged in await book.store.read("acme", "a")] == [1, 2, 3]
    assert [logged.sequence for logged in await book.store.read("acme", "a", after=2)] == [3]
    assert await book.store.find("acme", "a") == execution


async def test_a_gap_in_the_log_is_refused(book: Book) -> None:
    execution = await book.begin("a")
    with pytest.raises(InternalError, match="event 3 does not continue"):
        await book.step(replace(execution, last_sequence=2), "x")


async def test_nothing_follows_the_result(book: Book) -> None:
    execution = await book.end(await book.begin("a"))
    with pytest.raises(InternalError, match="event 3 does not continue"):
        await book.step(execution, "x")


async def test_another_tenants_execution_is_not_found(book: Book) -> None:
    await book.begin("a")
    with pytest.raises(ExecutionNotFoundError, match="Execution not found: 'a'"):
        await book.store.find("other", "a")
    with pytest.raises(ExecutionNotFoundError):
        await book.store.read("other", "a")
    with pytest.raises(ExecutionNotFoundError):
        await book.store.delete("other", "a")
    assert await book.names(tenant="other") == []


async def test_lists_are_newest_first_and_filtered(book: Book) -> None:
    await book.end(await book.begin("a", strategy="x"))
    await book.begin("b")
    await book.end(await book.begin("c", strategy="x"), FinishReason.TRUNCATED)
    assert await book.names() == ["c", "b", "a"]
    assert await book.names(ExecutionFilter(strategy="x")) == ["c", "a"]
    assert await book.names(ExecutionFilter(finish_reason=FinishReason.TRUNCATED)) == ["c"]
    middle = await book.store.find("acme", "b")
    after = await book.store.page("acme", EVERYTHING, size=5, before=(middle.create_time.timestamp(), "b"))
    assert [execution.execution_id for execution in after] == ["a"]


async def test_what_ended_is_forgotten_after_its_time_and_says_so(book: Book, time: ManualClock) -> None:
    await book.end(await book.begin("a"))
    running = await book.begin("b")
    time.advance(61)
    with pytest.raises(CursorExpiredError, match="'a' is no longer kept"):
        await book.store.find("acme", "a")
    with pytest.raises(ExecutionNotFoundError):
        await book.store.find("other", "a")
    assert await book.store.find("acme", "b") == running


async def test_deleting_forgets_the_execution_and_its_request_id(book: Book) -> None:
    await book.begin("a", request_id="r")
    await book.store.delete("acme", "a")
    with pytest.raises(ExecutionNotFoundError):
        await book.store.find("acme", "a")
    await book.begin("b", request_id="r")
    assert await book.names() == ["b"]


async def test_a_released_request_id_belongs_to_the_next_and_stays_with_it(book: Book) -> None:
    await book.begin("a", request_id="r")
    await book.store.release("acme", "a")
    second = await book.begin("b", request_id="r")
    await book.store.release("acme", "a")
    await book.store.delete("acme", "a")
    claim = await book.store.create(replace(second, execution_id="c"), digest="")
    assert claim.execution_id == "b"


async def test_a_request_id_is_held_per_tenant(book: Book) -> None:
    first = await book.begin("a", request_id="r")
    held = await book.store.create(replace(first, execution_id="b"), digest="other")
    assert (held.execution_id, held.digest) == ("a", "d")
    other = await book.store.create(replace(first, execution_id="c", tenant="other"), digest="d")
    assert other.execution_id == "c"


async def test_the_oldest_ended_execution_makes_room(time: ManualClock) -> None:
    book = Book(MemoryExecutionStore(max_executions=2, max_bytes=10**6, now=time.now), time)
    await book.begin("running")
    await book.end(await book.begin("ended"))
    await book.begin("new")
    assert await book.names() == ["new", "running"]
    with pytest.raises(StoreFullError, match="holds 2 running executions"):
        await book.begin("one more")


async def test_bytes_are_bounded_but_a_running_log_is_never_cut(time: ManualClock) -> None:
    book = Book(MemoryExecutionStore(max_executions=9, max_bytes=6000, now=time.now), time)
    await book.end(await book.begin("old"))
    running = await book.step(await book.begin("big"), "x" * 2000)
    assert await book.names() == ["big"]
    await book.end(running)
    assert [logged.sequence for logged in await book.store.read("acme", "big")] == [1, 2, 3]


async def test_only_the_last_forgotten_ids_are_remembered(time: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasond_server.executions.memory._FORGOTTEN_KEPT", 1)
    book = Book(MemoryExecutionStore(max_executions=1, max_bytes=10**6, now=time.now), time)
    for name in ("a", "b", "c"):
        await book.end(await book.begin(name))
    with pytest.raises(ExecutionNotFoundError):
        await book.store.find("acme", "a")
    with pytest.raises(CursorExpiredError):
        await book.store.find("acme", "b")


async def test_a_log_stops_growing_at_its_limit_and_can_still_end(book: Book) -> None:
    execution = await book.begin("a")
    execution = await book.step(execution, "x" * 15_000_000)
    with pytest.raises(StoreFullError, match="67108864 bytes that one log may hold"):
        await book.step(execution, "x" * 15_000_000)
    ended = await book.end(execution)
    assert (await book.store.find("acme", "a")).last_sequence == ended.last_sequence == 3

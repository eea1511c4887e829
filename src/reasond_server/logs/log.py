"""The growing end of one log, as its only writer holds it: what waits for a commit, and the last of what was committed.

A run appends without waiting; `logs.writer` takes what is pending, commits it and says how that went. Followers
see committed events only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from reasond_server.errors import ExecutionNotFoundError, StoreFullError, StoreUnavailableError
from reasond_server.logs.sizes import size_of
from reasond_server.logs.store import Append, LeaseLostError, Record
from reasond_server.types import Execution, ExecutionState, LoggedEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.errors import ReasondError
    from reasond_server.logs.store import Creation
    from reasond_server.types import Event, FinishReason, Usage

MAX_PENDING = 64
MAX_PENDING_BYTES = 1024 * 1024
_MAX_TAIL = 256
_MAX_TAIL_BYTES = 1024 * 1024
# More than any transport takes in one answer.
_ANSWER_BYTES = 8 * 1024 * 1024
_ANSWER_WAITS_S = 10.0


class _Pending(NamedTuple):
    """An entry that is not committed; `event` is what followers will see of it, None for a record.

    `size` is that of what they will see, `stored_size` that of the entry.
    """

    entry: LoggedEvent | Record
    event: LoggedEvent | None
    size: int
    stored_size: int


class LogEvents:
    """Entries that wait for a commit, and the last of the events that were committed.

    Attributes:
        committed: sequence of the last event that is in the store.
        is_for_one_answer: nobody reads the events before the end: the last 8 MiB of them are kept in memory, and as
            much may wait for a commit.
        pending: what waits for a commit, in order, of `pending_bytes`.
    """

    __slots__ = ("_tail", "_tail_bytes", "_tail_sizes", "committed", "is_for_one_answer", "pending", "pending_bytes")

    def __init__(self, *, committed: int) -> None:
        self.committed = committed
        self.is_for_one_answer = False
        # Lists, because an empty deque takes 600 bytes and most logs are short; what is taken from the front is a few.
        self.pending: list[_Pending] = []
        self.pending_bytes = 0
        self._tail: list[LoggedEvent] = []
        self._tail_sizes: list[int] = []
        self._tail_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether more waits for a commit than should."""
        if self.is_for_one_answer:
            return self.pending_bytes > _ANSWER_BYTES
        return len(self.pending) > MAX_PENDING or self.pending_bytes > MAX_PENDING_BYTES

    def read_after(self, sequence: int) -> Sequence[LoggedEvent] | None:
        """Return the committed events above `sequence`; None where they reach back further than what is in memory."""
        return _select_above(sequence, self._tail, last=self.committed)

    def read_all(self) -> Sequence[LoggedEvent] | None:
        """Return all events, committed or not; None where some of them are in the store only."""
        events = self.read_recent()
        return _select_above(0, events, last=events[-1].sequence if events else self.committed)

    def read_recent(self) -> Sequence[LoggedEvent]:
        """Return the events that are in memory, committed or not: the last ones."""
        return [*self._tail, *[each.event for each in self.pending if each.event is not None]]

    def confirm(self, count: int, *, keeps_all: bool) -> None:
        """Note that the first `count` entries are committed; with `keeps_all` no event leaves the memory."""
        committed, self.pending = self.pending[:count], self.pending[count:]
        for entry in committed:
            self.pending_bytes -= entry.size
            if entry.event is not None:
                self.committed = entry.event.sequence
                self._tail.append(entry.event)
                self._tail_sizes.append(entry.size)
                self._tail_bytes += entry.size
        if not keeps_all:
            self._forget_the_first()

    def drop(self) -> None:
        """Let go of what waits."""
        self.pending = []
        self.pending_bytes = 0

    def _forget_the_first(self) -> None:
        """Let go of the events that are over the bounds, but for the last one."""
        most, most_bytes = (len(self._tail), _ANSWER_BYTES) if self.is_for_one_answer else (_MAX_TAIL, _MAX_TAIL_BYTES)
        left = len(self._tail)
        if left <= most and self._tail_bytes <= most_bytes:
            return
        for size in self._tail_sizes[:-1]:
            self._tail_bytes -= size
            left -= 1
            if left <= most and self._tail_bytes <= most_bytes:
                break
        del self._tail[:-left], self._tail_sizes[:-left]


class _Waiters:
    """Who waits until something was committed or refused."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Else everybody who asks while the store takes nothing would leave one behind.
            if waiter in self._futures:
                self._futures.remove(waiter)
            raise

    def wake(self) -> None:
        """Wake everybody."""
        futures, self._futures = self._futures, []
        for waiter in futures:
            if not waiter.done():
                waiter.set_result(None)


class RunLog:
    """What is appended to one log by this process.

    `submit` is called whenever there is something to commit. With `store_as` what is stored of an event differs from
    what followers see; then all events are kept in memory, else the last 256 or 1 MiB of them.

    Attributes:
        events: what waits for a commit, and what of the log is in memory.
        error: why nothing can be appended any more; None while it can.
        on_change: called after every commit, and when `error` is set.
        is_open: whether what is pending is submitted; before that it is gathered.
        creation: what creates the execution with the first commit; None where the store knows it.
        fence: the fencing token of its lease.
        keeps_records: whether the records of a run that is cancelled outlive it.
    """

    __slots__ = (
        "_execution",
        "_last_sequence",
        "_store_as",
        "_submit",
        "_taken",
        "_usage",
        "_version",
        "_waiters",
        "creation",
        "error",
        "events",
        "fence",
        "is_open",
        "keeps_records",
        "on_change",
    )

    def __init__(
        self,
        *,
        execution: Execution,
        submit: Callable[[RunLog], None],
        version: int = 0,
        fence: int = 1,
        store_as: Callable[[Event], Event] | None = None,
    ) -> None:
        self._execution = execution
        self._last_sequence = execution.last_sequence
        self._usage = execution.usage
        self.fence = fence
        self.events = LogEvents(committed=execution.last_sequence)
        self.error: ReasondError | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.is_open = True
        self.creation: Creation | None = None
        self.keeps_records = False
        self._submit = submit
        self._version = version
        self._store_as = store_as
        self._taken: Append | None = None
        self._waiters = _Waiters()

    @property
    def execution(self) -> Execution:
        """The execution as it will be once all is committed."""
        known = self._execution
        if known.last_sequence != self._last_sequence or known.usage is not self._usage:
            self._execution = known = _change(
                known,
                state=known.state,
                last_sequence=self._last_sequence,
                usage=self._usage,
                finish_reason=known.finish_reason,
                end_time=known.end_time,
                expire_time=known.expire_time,
                wake_time=known.wake_time,
            )
        return known

    @property
    def last_sequence(self) -> int:
        """Sequence of the last event, committed or not."""
        return self._last_sequence

    @property
    def is_committed(self) -> bool:
        """Whether nothing waits for a commit, or never will be committed."""
        return self.error is not None or not self.events.pending

    @property
    def has_ended(self) -> bool:
        """Whether the last event was appended, committed or not."""
        return self._execution.end_time is not None

    @property
    def is_suspended(self) -> bool:
        """Whether the execution was suspended: once that is committed, the log is over in this process."""
        return self._execution.state is ExecutionState.SUSPENDED

    @property
    def is_created(self) -> bool:
        """Whether the store knows the execution."""
        return self.creation is None

    @property
    def has_room(self) -> bool:
        """Whether `wait_for_room` returns at once."""
        return self.error is None and not self.events.is_full

    def append(self, event: Event, *, now: datetime, usage: Usage) -> None:
        """Append `event`, which is not the last one."""
        sequence = self._last_sequence + 1
        shown = stored = LoggedEvent(sequence=sequence, create_time=now, event=event)
        size = stored_size = size_of(shown)
        if self._store_as is not None:
            stored = LoggedEvent(sequence=sequence, create_time=now, event=self._store_as(event))
            stored_size = size_of(stored)
        self._last_sequence, self._usage = sequence, usage
        self._add(_Pending(entry=stored, event=shown, size=size, stored_size=stored_size))

    def end(
        self, event: Event, *, now: datetime, usage: Usage, finish_reason: FinishReason, expire_time: datetime
    ) -> None:
        """Append the last event: the execution ended for `finish_reason`, and its log is kept until `expire_time`.

        A log takes its end also where what came before it was refused for want of room.
        """
        if isinstance(self.error, StoreFullError) and self.is_created:
            self.error = None
        self._execution = _change(
            self._execution,
            state=ExecutionState.after(finish_reason),
            last_sequence=self._last_sequence + 1,
            usage=usage,
            finish_reason=finish_reason,
            end_time=now,
            expire_time=expire_time,
        )
        self.append(event, now=now, usage=usage)

    def suspend(self, event: Event, *, now: datetime, usage: Usage, wake_time: datetime | None) -> None:
        """Append `event` and give the lease up with it, until `wake_time` or a call: the store takes nothing more."""
        self._execution = _change(
            self._execution,
            state=ExecutionState.SUSPENDED,
            last_sequence=self._last_sequence + 1,
            usage=usage,
            wake_time=wake_time,
        )
        self.append(event, now=now, usage=usage)

    def record(self, record: Record, *, usage: Usage) -> None:
        """Append a record of a call; nothing happens to a log that has ended or is suspended."""
        if self._execution.state is ExecutionState.RUNNING:
            self._usage = usage
            size = size_of(record)
            self._add(_Pending(entry=record, event=None, size=size, stored_size=size))

    def open(self) -> None:
        """Let what is pending, and what is appended from now on, be committed."""
        self.is_open = True
        if self.events.pending:
            self._submit(self)

    async def wait_for_room(self) -> None:
        """Wait until little enough is pending; where the log is for one answer, not for ever.

        Raises:
            ReasondError: nothing can be appended any more.
            StoreUnavailableError: the answer cannot wait any longer.
        """
        if self.events.is_full:
            await _wait_while_full(self.events, self._waiters)
        if self.error is not None:
            raise self.error.copy()

    async def flush(self) -> None:
        """Wait until everything that was appended is committed. Raises as `wait_for_room`."""
        await self.wait_for_commit()
        if self.error is not None:
            raise self.error.copy()

    async def wait_for_commit(self) -> None:
        """Wait until everything that was appended is committed, or never will be."""
        while not self.is_committed:
            await self._waiters.wait()

    def take(self) -> Append | None:
        """Return what is to be committed next; None where there is nothing."""
        pending = self.events.pending
        if not pending or self.error is not None:
            return None
        if self._taken is None:
            self._taken = Append(
                execution=self.execution,
                entries=tuple([each.entry for each in pending]),
                version=self._version,
                fence=self.fence,
                size=sum([each.stored_size for each in pending]),
                keeps_records=self.keeps_records and self._execution.state is ExecutionState.CANCELLED,
                creation=self.creation,
            )
        return self._taken

    def confirm(self) -> None:
        """Note that what was taken is in the store."""
        count = 0 if self._taken is None else len(self._taken.entries)
        self._taken = self.creation = None
        self._version += count
        self.events.confirm(count, keeps_all=self._store_as is not None)
        if self.events.pending:
            self._submit(self)
        self._waiters.wake()
        self.on_change()

    def close(self, error: ReasondError) -> None:
        """Append nothing more, because of `error`; what is pending is dropped, whether it was taken or not."""
        self._taken = None
        self.events.drop()
        self._last_sequence = self.events.committed
        self._execution = _change(
            self._execution, state=ExecutionState.RUNNING, last_sequence=self._last_sequence, usage=self._usage
        )
        if self.error is None:
            self.error = error
        self._waiters.wake()
        self.on_change()

    def _add(self, pending: _Pending) -> None:
        if self.error is None:
            self.events.pending.append(pending)
            self.events.pending_bytes += pending.size
            if self.is_open:
                self._submit(self)


async def _wait_while_full(events: LogEvents, waiters: _Waiters) -> None:
    try:
        async with asyncio.timeout(_ANSWER_WAITS_S if events.is_for_one_answer else None):
            while events.is_full:
                await waiters.wait()
    except TimeoutError:
        raise StoreUnavailableError(
            f"The store took nothing for {_ANSWER_WAITS_S:g} s, and {_ANSWER_BYTES} bytes wait for it",
            remedy="Ask for less, or stream the task with keep_running and resume it later.",
            retry_after_s=_ANSWER_WAITS_S,
        ) from None


def is_gone(error: ReasondError) -> bool:
    """Return whether `error` tells that the log is somebody else's, or nobody's: its run stops and says nothing."""
    return isinstance(error, LeaseLostError | ExecutionNotFoundError)


def _select_above(sequence: int, events: Sequence[LoggedEvent], *, last: int) -> Sequence[LoggedEvent] | None:
    if sequence >= last:
        return ()
    if not events or events[0].sequence > sequence + 1:
        return None
    return tuple(events[sequence + 1 - events[0].sequence :])


def _change(
    known: Execution,
    *,
    state: ExecutionState,
    last_sequence: int,
    usage: Usage,
    finish_reason: FinishReason | None = None,
    end_time: datetime | None = None,
    expire_time: datetime | None = None,
    wake_time: datetime | None = None,
) -> Execution:
    """Return `known` after another event; `replace` would take three times as long, for every one of them."""
    return Execution(
        execution_id=known.execution_id,
        tenant=known.tenant,
        state=state,
        strategy=known.strategy,
        strategy_source=known.strategy_source,
        model=known.model,
        create_time=known.create_time,
        end_time=end_time,
        expire_time=expire_time,
        finish_reason=finish_reason,
        last_sequence=last_sequence,
        request_id=known.request_id,
        usage=usage,
        kind=known.kind,
        wake_time=wake_time,
    )

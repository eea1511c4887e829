"""The end of one log in the memory of its only writer: the pending entries, and the last committed events.

A run appends without waiting. `logs.writer` takes the pending entries, commits them and reports the outcome. Followers
see committed events only.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.eventlog.contents import estimate_size
from reasond_server.eventlog.store import Append, Creation, LeaseLostError, Record, SessionEnd
from reasond_server.types import Event, Execution, ExecutionState, FinishReason, LastEvent, LoggedEvent, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.errors.base import ReasondError

MAX_PENDING = 64
MAX_PENDING_BYTES = 1024 * 1024
_MAX_TAIL = 256
_MAX_TAIL_BYTES = 1024 * 1024
# More than any transport accepts in one response.
_ANSWER_BYTES = 8 * 1024 * 1024
_ANSWER_WAITS_S = 10.0


class _Pending(NamedTuple):
    """An entry that is not committed; `event` is what followers will see (None for a record), and `size` its bytes."""

    entry: LoggedEvent | Record
    event: LoggedEvent | None
    size: int


class LogEvents:
    """The entries that wait for a commit, and the last committed events.

    Attributes:
        committed: sequence of the last event that is in the store.
        is_for_one_answer: nobody reads the events before the end; the last 8 MiB of them stay in memory, and up to
            8 MiB may wait for a commit.
        pending: the entries that wait for a commit, in order; `pending_bytes` is their size.
    """

    def __init__(self, *, committed: int) -> None:
        self.committed = committed
        self.is_for_one_answer = False
        # Lists, because an empty deque takes 600 bytes, most logs are short and few items are taken from the front.
        self.pending: list[_Pending] = []
        self.pending_bytes = 0
        self._tail: list[LoggedEvent] = []
        self._tail_sizes: list[int] = []
        self._tail_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the pending entries exceed their limit."""
        if self.is_for_one_answer:
            return self.pending_bytes > _ANSWER_BYTES
        return len(self.pending) > MAX_PENDING or self.pending_bytes > MAX_PENDING_BYTES

    def read_after(self, sequence: int) -> Sequence[LoggedEvent] | None:
        """Return the committed events above `sequence`; None if some of them are no longer in memory."""
        return _select_above(sequence, self._tail, last=self.committed)

    def read_all(self) -> Sequence[LoggedEvent] | None:
        """Return all events, committed or not; None if the oldest are no longer in memory."""
        events = self.read_recent()
        return _select_above(0, events, last=events[-1].sequence if events else self.committed)

    def read_recent(self) -> Sequence[LoggedEvent]:
        """Return the events in memory, committed or not; they are the last events of the log."""
        return [*self._tail, *[each.event for each in self.pending if each.event is not None]]

    def confirm(self, count: int, *, keeps_all: bool) -> None:
        """Mark the first `count` entries as committed; with `keeps_all` all events stay in memory."""
        committed, self.pending = self.pending[:count], self.pending[count:]
        for _, event, size in committed:
            self.pending_bytes -= size
            if event is not None:
                self.committed = event.sequence
                self._tail_bytes += size
                self._tail.append(event)
                self._tail_sizes.append(size)
        if not keeps_all:
            self._forget_the_first()

    def drop(self) -> None:
        """Drop the pending entries."""
        self.pending = []
        self.pending_bytes = 0

    def _forget_the_first(self) -> None:
        """Drop the oldest events that exceed the bounds, but always keep the last one."""
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
    """The tasks that wait until something was committed or refused."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            # Otherwise every cancelled wait would leave a future behind while the store accepts nothing.
            if waiter in self._futures:
                self._futures.remove(waiter)
            raise

    def wake(self) -> None:
        """Wake all waiting tasks."""
        futures, self._futures = self._futures, []
        for waiter in futures:
            if not waiter.done():
                waiter.set_result(None)


class RunLog:
    """The part of one log that this process appends.

    `submit` is called whenever there is something to commit. With `store_as` the stored event differs from the event
    that followers see; then all events stay in memory, otherwise the last 256 events and at most 1 MiB of them.

    Attributes:
        events: the entries that wait for a commit, and the events that are in memory.
        error: why nothing can be appended any more; None while the log accepts entries.
        on_change: called after every commit, and when `error` is set.
        is_open: whether pending entries are submitted at once; before that they are collected.
        creation: creates the execution with the first commit; None if the store has it already.
        fence: the fencing token of its lease.
        last_sequence: the sequence of the last event, committed or not.
        keeps_records: whether the records are kept when the run is cancelled.
        keeps_calls: whether they are kept however it ends, because they have the model calls.
        keeps_plan: whether the plan is kept when the run has ended.
        session_end: what its last event leaves in the session; to be set before that event, None if it leaves nothing.
    """

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
        self.last_sequence = execution.last_sequence
        self._usage = execution.usage
        self.fence = fence
        self.events = LogEvents(committed=execution.last_sequence)
        self.error: ReasondError | None = None
        self.on_change: Callable[[], None] = lambda: None
        self.is_open = True
        self.creation: Creation | None = None
        self.keeps_plan = self.keeps_records = self.keeps_calls = False
        self.session_end: SessionEnd | None = None
        self._submit = submit
        self._version = version
        self._store_as = store_as
        self._taken: Append | None = None
        self._waiters = _Waiters()

    @property
    def execution(self) -> Execution:
        """The execution as it will be once all entries are committed."""
        known = self._execution
        if known.last_sequence != self.last_sequence or known.usage is not self._usage:
            self._execution = replace(known, last_sequence=self.last_sequence, usage=self._usage)
        return self._execution

    @property
    def is_committed(self) -> bool:
        """Whether no entry waits for a commit; also true if the log was closed by an error."""
        return self.error is not None or not self.events.pending

    @property
    def has_ended(self) -> bool:
        """Whether the last event was appended, committed or not."""
        return self._execution.end_time is not None

    @property
    def is_suspended(self) -> bool:
        """Whether the execution was suspended; once that is committed, this process writes nothing more to the log."""
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
        sequence = self.last_sequence + 1
        shown = stored = LoggedEvent(sequence=sequence, create_time=now, event=event)
        if self._store_as is not None:
            stored = LoggedEvent(sequence=sequence, create_time=now, event=self._store_as(event))
        self.last_sequence, self._usage = sequence, usage
        self._add(_Pending(stored, shown, estimate_size(shown)))

    def end(
        self, event: Event, *, now: datetime, usage: Usage, finish_reason: FinishReason, expire_time: datetime
    ) -> None:
        """Append the last event: the execution ended for `finish_reason`, and its log is kept until `expire_time`.

        The log accepts its last event even if the store refused earlier entries for lack of room.
        """
        if isinstance(self.error, StoreFullError) and self.is_created:
            self.error = None
        # Of what is stored: where no content is kept, the line has none.
        kept = event if self._store_as is None else self._store_as(event)
        self._execution = replace(
            self._execution,
            state=ExecutionState.after(finish_reason),
            last_sequence=self.last_sequence + 1,
            usage=usage,
            finish_reason=finish_reason,
            end_time=now,
            expire_time=expire_time,
            wake_time=None,
            outcome=kept.headline if isinstance(kept, LastEvent) else self._execution.outcome,
        )
        self.append(event, now=now, usage=usage)

    def suspend(self, event: Event, *, now: datetime, usage: Usage, wake_time: datetime | None) -> None:
        """Append `event` and release the lease with it; the log accepts nothing until `wake_time` or a wake call."""
        self._execution = replace(
            self._execution,
            state=ExecutionState.SUSPENDED,
            last_sequence=self.last_sequence + 1,
            usage=usage,
            wake_time=wake_time,
        )
        self.append(event, now=now, usage=usage)

    def record(self, record: Record, *, usage: Usage) -> None:
        """Append a record of a call; does nothing if the log has ended or is suspended."""
        if self._execution.state is ExecutionState.RUNNING:
            self._usage = usage
            self._add(_Pending(record, None, estimate_size(record)))

    def open(self) -> None:
        """Submit the pending entries for commit, and from now on every further entry."""
        self.is_open = True
        if self.events.pending:
            self._submit(self)

    async def wait_for_room(self) -> None:
        """Wait while too many entries are pending (back-pressure); a log for one answer waits 10 seconds at most.

        Raises:
            ReasondError: nothing can be appended any more.
            StoreUnavailableError: the answer cannot wait any longer.
        """
        if self.events.is_full:
            await _wait_while_full(self.events, self._waiters)
        if self.error is not None:
            raise self.error.copy()

    async def flush(self) -> None:
        """Wait until all appended entries are committed. Raises as `wait_for_room`."""
        await self.wait_for_commit()
        if self.error is not None:
            raise self.error.copy()

    async def wait_for_commit(self) -> None:
        """Wait until all appended entries are committed, or an error has closed the log."""
        while not self.is_committed:
            await self._waiters.wait()

    def take(self) -> Append | None:
        """Return the entries to commit next; None if there are none."""
        pending = self.events.pending
        if not pending or self.error is not None:
            return None
        if self._taken is None:
            self._taken = Append(
                execution=self.execution,
                entries=tuple([each.entry for each in pending]),
                version=self._version,
                fence=self.fence,
                keeps_records=self.keeps_calls
                or (self.keeps_records and self._execution.state is ExecutionState.CANCELLED),
                keeps_plan=self.keeps_plan,
                creation=self.creation,
                session_end=self.session_end,
            )
        return self._taken

    def confirm(self) -> None:
        """Record that the entries that `take` returned are in the store."""
        count = 0 if self._taken is None else len(self._taken.entries)
        self._taken = self.creation = None
        self._version += count
        self.events.confirm(count, keeps_all=self._store_as is not None)
        if self.events.pending:
            self._submit(self)
        self._waiters.wake()
        self.on_change()

    def close(self, error: ReasondError) -> None:
        """Accept no more entries, because of `error`, and drop all pending ones, taken or not."""
        self._taken = None
        self.events.drop()
        self.last_sequence = self.events.committed
        self._execution = replace(
            self._execution,
            state=ExecutionState.RUNNING,
            last_sequence=self.last_sequence,
            usage=self._usage,
            finish_reason=None,
            end_time=None,
            expire_time=None,
            wake_time=None,
            outcome="",
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
    """Return whether `error` means that another process has the log or it is deleted; the run then stops silently."""
    return isinstance(error, LeaseLostError | ExecutionNotFoundError)


def _select_above(sequence: int, events: Sequence[LoggedEvent], *, last: int) -> Sequence[LoggedEvent] | None:
    if sequence >= last:
        return ()
    if not events or events[0].sequence > sequence + 1:
        return None
    return tuple(events[sequence + 1 - events[0].sequence :])

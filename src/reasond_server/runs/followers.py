"""A subscriber's view of one execution: the events of its log after a cursor, then new events until it ends."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from reasond_server.errors.base import InternalError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.eventlog.contents import estimate_size
from reasond_server.eventlog.mailbox import FlushTimer, Mailbox
from reasond_server.eventlog.store import Change, ExecutionStore
from reasond_server.runs.admission import build_draining_error
from reasond_server.runs.phase import Trigger
from reasond_server.runs.work import build_failure
from reasond_server.types import Event, Execution, Heartbeat, LastEvent, LoggedEvent, StreamEvent, TextDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.runs.run import Run
    from reasond_server.runs.runner import Runner

# A stream whose client does not read keeps one page of a log in memory; therefore a page of large events is short.
_FIRST_PAGE, _LARGEST_PAGE, _PAGE_BYTES = 4, 64, 128 * 1024
_RETRY_S = 0.5


@dataclass(eq=False, kw_only=True)
class Follower:
    """Reads events from the log, so that a lost or slow stream never loses one.

    Text is joined and waits `flush_interval_s` seconds at most; events of the log are never delayed.
    """

    store: ExecutionStore
    runner: Runner
    clock: Clock
    heartbeat_interval_s: float
    flush_interval_s: float = 0.03

    def __post_init__(self) -> None:
        self._flush_timer = FlushTimer(interval_s=self.flush_interval_s)

    async def follow(
        self, execution: Execution, *, after: int, include_deltas: bool, is_observer: bool = False
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events with a sequence above `after`; closing the iterator does not affect other followers.

        The run may be active in this process, in another process or in none, and that may change meanwhile. An observer
        does not keep it running, and does not end it by leaving. After 0 comes all that the step in progress has
        written; who goes on after an event may have read some of it, and gets what is written from now on.

        Raises:
            ReasondError: the execution failed; raised after its last event, with `execution_id` set.
            ExecutionNotFoundError: it was deleted meanwhile.
            DrainingError: this process is shutting down and another one resumes the run; `execution_id` is set.
            StoreUnavailableError: this process lost its store and has left the run to others; `execution_id` is set.
            StoreFullError: the store has no room for the end of the run; `execution_id` is set.
        """
        mailbox = Mailbox(wants_deltas=include_deltas, flush_timer=self._flush_timer)
        source = EventSource(
            store=self.store,
            runner=self.runner,
            execution=execution,
            mailbox=mailbox,
            announce_every_s=self.heartbeat_interval_s,
            is_observer=is_observer,
            is_from_start=not after,
        )
        with source:
            while True:
                item, is_silent = await self._wait_for_next(mailbox, source)
                if item is not None:
                    # What an event that was delivered has said already comes too late.
                    if item.after_sequence >= after:
                        yield self._build_unlogged(execution, after, item)
                    continue
                has_news = False
                while events := await source.read(after):
                    has_news = True
                    for logged in events:
                        after = logged.sequence
                        yield StreamEvent(
                            execution_id=execution.execution_id,
                            sequence=logged.sequence,
                            create_time=logged.create_time,
                            event=logged.event,
                        )
                        if isinstance(logged.event, LastEvent):
                            source.end_with(logged.event)
                if source.has_ended:
                    return
                if is_silent and not has_news:
                    yield self._build_unlogged(execution, after, None)

    async def _wait_for_next(self, mailbox: Mailbox, source: EventSource) -> tuple[TextDelta | None, bool]:
        """Return the next item of the mailbox and False; None and True if nothing came within the timeout."""
        timeout_s = self.heartbeat_interval_s
        if source.is_out_of_reach:
            timeout_s = min(timeout_s, _RETRY_S)
        try:
            return await mailbox.take(timeout_s=timeout_s), False
        except TimeoutError:
            return None, True

    def _build_unlogged(self, execution: Execution, after: int, delta: TextDelta | None) -> StreamEvent:
        """Return a heartbeat or a delta, which has the form of its kind of work."""
        event: Event | TextDelta | Heartbeat
        event = Heartbeat() if delta is None else self.runner.shape_delta(execution, delta)
        return StreamEvent(
            execution_id=execution.execution_id, sequence=after, create_time=self.clock.now(), event=event
        )


class EventSource:
    """The present source of the events of one execution: the memory of its run, or the store."""

    def __init__(
        self,
        *,
        store: ExecutionStore,
        runner: Runner,
        execution: Execution,
        mailbox: Mailbox,
        announce_every_s: float,
        is_observer: bool = False,
        is_from_start: bool = False,
    ) -> None:
        self._is_observer = is_observer
        self._is_from_start = is_from_start
        self._store = store
        self._runner = runner
        self._tenant = execution.tenant
        self._id = execution.execution_id
        self._mailbox = mailbox
        self._announce_every_s = announce_every_s
        self._announced_s: float | None = None
        self._run: Run | None = None
        self._last_run: Run | None = None
        self._watching: ExitStack | None = None
        self._page = _FIRST_PAGE
        self.has_ended = False
        self.is_out_of_reach = False

    def __enter__(self) -> Self:
        self._attach()
        return self

    def __exit__(self, *_: object) -> None:
        self._mailbox.close()
        if self._watching is not None:
            self._watching.close()
        self._leave()

    async def read(self, after: int) -> Sequence[LoggedEvent]:
        """Return some of the events above `after`; empty if there are none yet, or if the log `has_ended` there.

        Raises:
            ReasondError: as `Follower.follow`.
        """
        if self.has_ended:
            return ()
        self._attach()
        # What a run keeps of its log in memory also serves followers that lag behind its end.
        known = None if self._last_run is None else self._last_run.log.events.read_after(after)
        if known:
            return known
        run = self._run
        if run is not None and self._runner.find_live(self._id) is not run:
            self._leave()
            if run.cause is Trigger.FENCE:
                raise _fence_error(self._id)
            if isinstance(run.log.error, StoreFullError):
                raise _build_unkept_error(self._id)
            self._watch()
        elif run is not None and known is not None:
            return known
        try:
            events = await self._read_store(after)
        except StoreUnavailableError:
            self.is_out_of_reach = True
            return ()
        self.is_out_of_reach = False
        return events

    def end_with(self, result: LastEvent) -> None:
        """Record that the log has ended with `result`; if the execution failed, raise its error.

        This is the original error if it is still in memory, otherwise one made from its stored form.
        """
        self.has_ended = True
        if result.error is not None:
            error = None if self._last_run is None else self._last_run.error
            raise build_failure(result.error, result.execution_id, error=error)

    async def _read_store(self, after: int) -> Sequence[LoggedEvent]:
        events = await self._store.read(self._tenant, self._id, after=after, limit=self._page)
        self._page = _size_next_page(events)
        if events:
            return events
        if self._run is None:
            await self._look_for_the_end(after)
        return ()

    async def _look_for_the_end(self, after: int) -> None:
        """Check whether the log ends at `after`; if it goes on, tell its writer that it has a reader.

        A suspended execution has no writer: the follower waits until it is woken and ends.
        """
        found = await self._store.find(self._tenant, self._id)
        if not found.state.has_ended:
            await self._announce()
        elif found.last_sequence <= after:
            self.has_ended = True
            last = await self._store.read(self._tenant, self._id, after=after - 1, limit=1)
            result = last[-1].event if last else None
            if not isinstance(result, LastEvent):
                raise InternalError("the execution ended without a result")
            self.end_with(result)
        else:
            self._mailbox.notify_growth()

    async def _announce(self) -> None:
        if self._runner.is_draining:
            error = build_draining_error()
            error.execution_id = self._id
            raise error
        if self._is_observer:
            return
        now_s = asyncio.get_running_loop().time()
        if self._announced_s is None or now_s - self._announced_s >= self._announce_every_s:
            self._announced_s = now_s
            await self._store.announce(self._tenant, self._id)

    def _attach(self) -> None:
        """Follow the run if it is active in this process, otherwise the store."""
        live = self._runner.find_live(self._id)
        if live is not None and live is not self._run:
            self._leave()
            self._run = self._last_run = live
            live.subscribers.attach(self._mailbox, is_observer=self._is_observer, is_from_start=self._is_from_start)
        if self._run is None:
            self._watch()

    def _leave(self) -> None:
        if self._run is not None:
            self._run.subscribers.detach(self._mailbox)
            self._run = None

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = ExitStack()
            self._watching.enter_context(self._store.watch(self._id, self._take_change))
            self._watching.enter_context(self._runner.runs.await_run(self._id, self._mailbox))

    def _take_change(self, change: Change) -> None:
        if change is Change.GREW:
            self._mailbox.notify_growth()


def _fence_error(execution_id: str) -> StoreUnavailableError:
    """Return the error for followers of a run that stopped because this process lost contact with the store."""
    error = StoreUnavailableError(
        "The server was out of touch with its store for longer than it may work alone, and has left the execution",
        remedy="Resume it: this server or another one on the same store goes on with it.",
    )
    error.execution_id = execution_id
    return error


def _build_unkept_error(execution_id: str) -> StoreFullError:
    """Return the error for followers of a run whose end does not fit into the full store."""
    error = StoreFullError(
        "The store has no room for what the execution did last",
        remedy="Free space, or raise the bound in [store]; then resume it: a server goes on from what is kept.",
    )
    error.execution_id = execution_id
    return error


def _size_next_page(events: Sequence[LoggedEvent]) -> int:
    """Return how many events to read next, estimated from the size of the last ones."""
    if not events:
        return _FIRST_PAGE
    last = events[-_FIRST_PAGE:]
    mean = sum(map(estimate_size, last)) / len(last)
    return int(min(max(_PAGE_BYTES / mean, 1), 2 * len(events), _LARGEST_PAGE))

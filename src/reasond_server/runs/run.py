"""One active execution: its work, its log, its subscribers, its phase, and how it is stopped."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.eventlog.log import RunLog, is_gone
from reasond_server.eventlog.mailbox import StepText, Subscriber
from reasond_server.eventlog.store import Record
from reasond_server.runs.phase import CANCELS, Phase, Trigger, advance
from reasond_server.runs.work import RunEnding, WorkRequest, cancel_with
from reasond_server.types import AnswerPlace, Event, Json, LastEvent, StrategySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.leases import Tenure
    from reasond_server.runs.accounts import Accounts
    from reasond_server.runs.admission import Place
    from reasond_server.runs.effects import Effects
    from reasond_server.runs.run_journal import RepeatedSteps, RunJournal
    from reasond_server.runs.run_trace import RunTrace

SEGMENT_KEY = "leg::1"
"""The key of a record: the trace context of the life that suspended the execution."""
_MAX_KEPT_CHARACTERS = 65_536
# If the caller repeats its request at another process, that process announces it within this time. A later retry finds
# the recorded calls.
_RETURN_S = 1.0


class AnswerDraft:
    """What was written so far of the answer in the step in progress; `life` counts those of the execution, or leg."""

    def __init__(self, life: int) -> None:
        self._edition = 2 * (life - 1)
        self._thinking = ""
        self._pieces: list[str] = []
        self._characters = 0

    def add(self, text: str, thinking: Sequence[str]) -> AnswerPlace:
        """Add text after `thinking`, and return its place."""
        if not self._pieces:
            self._thinking = "".join(thinking)
        place = AnswerPlace(at=self._characters, thinking=self._thinking, edition=self._edition)
        self._pieces.append(text)
        self._characters += len(text)
        return place

    def settle(self, text: str, thinking: str) -> int:
        """Return the edition of the answer `text` after `thinking`, and begin another draft."""
        shown, thought = "".join(self._pieces).strip(), self._thinking.strip()
        self._pieces, self._thinking, self._characters = [], "", 0
        is_kept = not shown or (text.strip().startswith(shown) and thinking.strip() == thought)
        return self._edition + (not is_kept)


@dataclass(eq=False, kw_only=True)
class Subscribers:
    """The subscribers of a run, and whether anybody still wants it.

    `on_unwanted` is called when nobody wants the run any more, `on_error` when the `log` accepts no more entries.

    A run is unwanted when its last subscriber has left, unless a caller asked to keep it running, a subscriber is
    expected within some time, or one follows it from another process. Observers are told as subscribers are, but do not
    count: they neither keep a run nor end it.

    Attributes:
        keeps_running: whether the run continues without subscribers.
        finishes_open_calls: when the last subscriber leaves, no new call begins, and the run is abandoned once its open
            calls are recorded, so that a retry of the request pays for none of them twice.
        written: what each step in progress has written since the last event, 65,536 characters of one at most.
        draft: the answer in the step in progress.
        patience_s: how many seconds a run with `finishes_open_calls` but no `journal` waits for a new subscriber.
        grace_s: how many seconds one with a `journal` waits, once its open calls have ended.
    """

    log: RunLog
    journal: RunJournal | None
    keeps_running: bool
    finishes_open_calls: bool
    on_unwanted: Callable[[], None] | None
    on_error: Callable[[], None]

    def __post_init__(self) -> None:
        self.patience_s = 0.0
        self.grace_s = 0.0
        # Whether each counts. A dict keeps the order of arrival, so that a simulation can be repeated.
        self._all: dict[Subscriber, bool] = {}
        self._has_readers = False
        self.written: dict[int, StepText] = {}
        self._are_told_late = False
        self.draft = AnswerDraft(self.log.fence)
        self._awaited_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_any(self) -> bool:
        """Whether there are subscribers that count."""
        return any(self._all.values())

    def attach(self, subscriber: Subscriber, *, is_observer: bool = False, is_from_start: bool = False) -> None:
        """Add `subscriber`, which receives all notices from now on; `is_from_start`: what is `written` as well."""
        self._all[subscriber] = not is_observer
        self._has_readers = self._has_readers or subscriber.wants_deltas
        if is_from_start and not self._are_told_late:
            self._tell_written(subscriber)
        if not is_observer:
            self._decide()

    def detach(self, subscriber: Subscriber) -> None:
        """Remove `subscriber`; abandon the run if nobody wants it any more."""
        is_observer = self._all.pop(subscriber, True) is False
        self._has_readers = self._has_readers and any(one.wants_deltas for one in self._all)
        if is_observer:
            return
        if self.finishes_open_calls and self.journal is None and not self.are_any:
            self.await_one(within_s=self.patience_s)
        else:
            self._decide()

    def lose_first(self, *, may_return: bool) -> None:
        """Decide without the caller, who left before it subscribed.

        If it `may_return` with its request id, the run waits for it as after a `detach`; no call begins until then.
        """
        self.finishes_open_calls = self.finishes_open_calls or may_return
        self._decide()

    def expect_return(self) -> None:
        """From now on whoever leaves may come back: open calls are finished, and the run waits `patience_s` seconds."""
        self.finishes_open_calls, self.grace_s = True, self.patience_s

    def keep(self) -> None:
        """Continue without subscribers from now on; this cannot be revoked."""
        self.keeps_running = True
        self._decide()

    def await_one(self, *, within_s: float) -> None:
        """Keep the run for `within_s` seconds: a subscriber may come, or follows from another process."""
        now_s = asyncio.get_running_loop().time()
        self._awaited_until_s = max(self._awaited_until_s, now_s + within_s)
        if not self.are_any:
            self._decide()

    def publish(self, index: int, text: str, *, thinking: Sequence[str] | None = None) -> None:
        """Send the `text` of step `index` to the subscribers that want deltas, once all earlier steps are committed.

        With `thinking` it is text of an answer; see `Wrote`.
        """
        if not text:
            return
        place = None if thinking is None else self.draft.add(text, thinking)
        after, kept = self.log.last_sequence, self.written.get(index)
        if kept is None or kept.characters + len(text) > _MAX_KEPT_CHARACTERS or not kept.add(index, text, place):
            self.written[index] = StepText(index, text, after_sequence=after, place=place)
        if self.log.events.committed != after:
            self._are_told_late = True
        elif self._has_readers:
            for one in self._all:
                one.add_text(index, text, after_sequence=after, place=place)

    def forget_written(self) -> None:
        """Drop the text of the steps in progress: an event follows, and that of a step carries its text."""
        self.written, self._are_told_late = {}, False

    def notify(self) -> None:
        """Notify all subscribers that the log has changed."""
        if self.log.error is not None:
            self.on_error()
        are_told = self._are_told_late and self.log.events.committed == self.log.last_sequence
        self._are_told_late = self._are_told_late and not are_told
        for one in self._all:
            one.notify_growth()
            if are_told:
                self._tell_written(one)

    def _tell_written(self, subscriber: Subscriber) -> None:
        if subscriber.wants_deltas:
            for one in self.written.values():
                subscriber.add_text(one.iteration_index, one.text, after_sequence=one.after_sequence, place=one.place)

    def stop_deciding(self) -> None:
        """Never call `on_unwanted` from now on: the end of the run is decided, or it suspends."""
        self.on_unwanted = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Notify all subscribers that the run has left the process, and release the run."""
        self.notify()
        self.stop_deciding()
        # Breaks a reference cycle, which would keep the run in memory until garbage collection.
        self.log.on_change = self.on_error = _do_nothing

    def _decide(self) -> None:
        if self.on_unwanted is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.journal is not None:
            self.journal.release_calls()
        if self.are_any or self.keeps_running:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._awaited_until_s:
            self._timer = loop.call_at(self._awaited_until_s, self._decide)
        elif self.finishes_open_calls and self.journal is not None:
            self.journal.hold_calls(when_idle=self._give_up_soon)
        else:
            self.on_unwanted()

    def _give_up_soon(self) -> None:
        if self.on_unwanted is not None:
            self._timer = asyncio.get_running_loop().call_later(max(_RETURN_S, self.grace_s), self.on_unwanted)


class Work(Protocol):
    """What one execution does: the port of each kind of work. An instance serves one life of the execution.

    Attributes:
        kind: the name of its registered kind.
        name: its name in labels, spans and lists, such as that of the strategy.
        source: who chose that name.
        agent: the agent that does the work; empty if the request named none.
        request: the request that the work is for.
        steps: the steps so far.
        may_suspend: whether it may suspend; then even a store in memory has to store what is needed to resume it.
        metrics: what it measured so far, for the observer.
    """

    kind: str
    name: str
    source: StrategySource
    agent: str
    request: WorkRequest
    steps: RepeatedSteps
    may_suspend: bool
    metrics: Any

    @property
    def obstacle(self) -> str:
        """Why no other process could resume it, in words for the caller; empty if one can."""

    def describe(self) -> Json:
        """Return what another process needs besides the request to restore it."""

    def begin(self, run: Run) -> Event:
        """Return the first event of the log."""

    async def work(self, run: Run) -> None:
        """Do the work: append events, then report the end (`Run.report_end`) or suspend, and clean up.

        It is cancelled if the run is stopped from outside. In a later life of the execution it either makes the same
        calls again, which are replayed from the log, or continues after the logged events; its kind decides which.

        Raises:
            ReasondError: the work failed.
        """

    def conclude(self, run: Run, ending: RunEnding) -> LastEvent:
        """Return the last event of the log."""

    def leave(self, run: Run) -> None:
        """Report this life to the observer of its kind, once it is over in this process; quick, and never raises.

        It is the last call. What refers to `run` is dropped, because reference cycles stay in memory until a garbage
        collection, which is rare.
        """


@dataclass(eq=False, kw_only=True)
class Run:
    """One life of an execution: from its start or takeover in this process until it ends, suspends or leaves.

    Attributes:
        work: what it does.
        log: the end of its log, to which it appends.
        identity: the execution at the start of this life; its ids and names never change.
        accounts: its limits and its usage.
        journal: replays completed calls from the log; None if nobody can resume the run.
        effects: its effects, which must not happen twice.
        tenure: how long this process may act for the run; None if no other process can take it over.
        mark: the first nonce for the fences of its prompts, which runs share whose prompts begin alike.
        trace: its spans and the ids in its log lines.
        subscribers: its subscribers.
        phase: what it is doing.
        cause: the trigger that decided how this life ends; None until then.
        ending: how its work ended, or the error that ended it; after the last event is written, the ending in it.
            An error before the work begins forbids it to begin.
        result: the last event; callers may get it before it is committed.
        driver: the task that executes it, later the task that finishes it; None before and after.
        on_over: called at once if it is stopped, fails or runs out of time while its work is executed.
        leaves_at_checkpoint: the trigger that stops it at its next checkpoint; None if it does not stop there.
        place: its place among the runs of the process.
    """

    work: Work
    log: RunLog
    accounts: Accounts
    effects: Effects
    mark: str
    trace: RunTrace
    journal: RunJournal | None = None
    tenure: Tenure | None = None

    def __post_init__(self) -> None:
        request = self.work.request
        self.identity = self.log.execution
        self.phase = Phase.QUEUED
        self.cause: Trigger | None = None
        self.ending: RunEnding | ReasondError | None = None
        self.result: LastEvent | None = None
        self.driver: asyncio.Task[None] | None = None
        self.place: Place | None = None
        self.on_over: Callable[[], None] = _do_nothing
        self.leaves_at_checkpoint: Trigger | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._left: asyncio.Event | None = None
        self.subscribers = Subscribers(
            log=self.log,
            journal=self.journal,
            keeps_running=request.keep_running,
            finishes_open_calls=request.is_unary and bool(request.request_id),
            on_unwanted=partial(self.stop, Trigger.ABANDON),
            on_error=self._give_up,
        )
        self.log.on_change = self.subscribers.notify

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled it, or its last subscriber has left."""
        return self.cause in CANCELS

    @property
    def error(self) -> ReasondError | None:
        """Why it failed, once the last event is written; None before that and if it did not fail."""
        return self.ending.error if isinstance(self.ending, RunEnding) else None

    def append(self, event: Event, *, now: datetime) -> None:
        """Append an event of the work to the log, which assigns the next sequence number."""
        self.subscribers.forget_written()
        self.log.append(event, now=now, usage=self.accounts.usage)

    def reach_checkpoint(self) -> bool:
        """Return whether the work has to stop here because this process ends; if so, the run is stopped."""
        trigger = self.leaves_at_checkpoint
        if trigger is Trigger.CANCEL:
            self.report_end(cancel_with("The server was shut down; the steps until then are kept."))
        elif trigger is not None:
            self.stop(trigger)
        return trigger is not None

    def report_end(self, ending: RunEnding | ReasondError, *, trigger: Trigger = Trigger.FINISH) -> bool:
        """Record how the work ended and return True; return False if the end was already decided.

        Afterwards nothing that the work does is recorded, and it has `accounts.cleanup_s` seconds to clean up.
        """
        if not self.advance(trigger):
            return False
        # A copy without traceback: its frames refer to the run, and the cycle would last until garbage collection.
        self.ending = ending.copy() if isinstance(ending, ReasondError) else ending
        if self.journal is not None:
            self.journal.close()
        self.accounts.set_timer(self.accounts.cleanup_s, self._be_over)
        return True

    def suspend(self, event: Event, *, now: datetime, wake_time: datetime | None) -> bool:
        """Append `event` and suspend the execution in the store until `wake_time` or a wake call; return True.

        Return False if the end of this life was already decided. Afterwards the work has to clean up and return.

        Raises:
            InternalError: nobody could resume the execution.
        """
        if self.journal is None:
            raise InternalError("an execution with which nobody can go on cannot be suspended")
        if not self.advance(Trigger.SUSPEND):
            return False
        self.journal.close()
        self.subscribers.forget_written()
        if self.trace.text:
            self.log.record(
                Record(key=SEGMENT_KEY, body=json.dumps({"trace": self.trace.text})), usage=self.accounts.usage
            )
        self.log.suspend(event, now=now, usage=self.accounts.usage, wake_time=wake_time)
        self.accounts.set_timer(self.accounts.cleanup_s, self._be_over)
        return True

    def cancel(self) -> None:
        """Stop the run at once; what it did is kept. Does nothing if its end is already decided."""
        self.stop(Trigger.CANCEL)

    def stop(self, trigger: Trigger) -> None:
        """Stop the run at once, because of `trigger`. Does nothing if its end is already decided."""
        if self.advance(trigger):
            if self.journal is not None:
                self.journal.begin_to_close()
            self._be_over()

    def fence(self) -> None:
        """Stop the run because another process may be executing it, unless an effect is in progress.

        An effect in progress cannot be undone, and its result is stored if no process has taken the run over.
        """
        if self.journal is None or not self.journal.is_acting:
            self.stop(Trigger.FENCE)

    def advance(self, trigger: Trigger) -> bool:
        """Move to the phase that follows `trigger`; return whether the phase changed. Only this method changes it."""
        phase = advance(self.phase, trigger)
        if phase is self.phase:
            return False
        if self.phase is not Phase.QUEUED and self.phase is not Phase.STOPPING:
            self.cause = trigger
            self.subscribers.stop_deciding()
        self.phase = phase
        return True

    def conclude(self, result: LastEvent) -> None:
        """Set the `result` and wake the caller that waits for it."""
        self.result = result
        self._wake_waiter()

    async def wait_for_result(self) -> LastEvent | None:
        """Wait for the last event; None if the run leaves this process without one. For one caller only."""
        if self.result is None and self.driver is not None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.result

    async def wait_for_end(self) -> None:
        """Wait until the log has its last event, or the run has left this process."""
        if self.driver is not None:
            self._left = self._left or asyncio.Event()
            await self._left.wait()

    def end(self) -> None:
        """Mark the run as over in this process."""
        if self.tenure is not None:
            self.tenure.close()
        self.driver = None
        self.accounts.close()
        self._wake_waiter()
        if self._left is not None:
            self._left.set()
        self.subscribers.close()
        self.on_over = _do_nothing

    def _be_over(self) -> None:
        on_over, self.on_over = self.on_over, _do_nothing
        on_over()

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up(self) -> None:
        """Stop the run because the log accepts no more entries."""
        error = self.log.error
        if error is None or is_gone(error):
            self.stop(Trigger.LOSE)
        elif self.report_end(error, trigger=Trigger.REFUSE):
            self._be_over()


def _do_nothing() -> None:
    """Do nothing: the run is over, or its work is not being executed."""

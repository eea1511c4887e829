"""One execution at work: what it does, its log, its subscribers, its phase, and how it can be stopped."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from reasond_server.errors import InternalError, ReasondError
from reasond_server.logs.log import is_gone
from reasond_server.runs.phase import CANCELS, Phase, Trigger, advance
from reasond_server.runs.work import RunEnding, cancel_with
from reasond_server.types import TextDelta

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.logs.leases import Tenure
    from reasond_server.logs.log import RunLog
    from reasond_server.logs.mailbox import Subscriber
    from reasond_server.runs.accounts import Accounts
    from reasond_server.runs.admission import Place
    from reasond_server.runs.effects import Effects
    from reasond_server.runs.run_journal import RunJournal
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.runs.work import WorkRequest
    from reasond_server.types import Event, Json, LastEvent, StrategySource

_MAX_HELD_CHARACTERS = 65_536
# Another process that was asked again says so within that; who comes later finds the calls on record.
_RETURN_S = 1.0


class Subscribers:
    """Who follows a run, and whether anybody still wants it.

    `on_unwanted` is called when nobody does, `on_error` when the `log` takes nothing more.

    That is when the last one has left, unless somebody asked to keep it running, or somebody may come within a while,
    or follows it from another process.

    Attributes:
        keeps_running: whether it goes on though nobody follows it.
        finishes_open_calls: when the last one leaves, no call begins any more, and the run is given up once those under
            way are on record: who asks again pays for none of them twice.
        held: text of the step in progress that waits until the steps before it are committed.
        patience_s: how long one that finishes its calls waits for a subscriber instead where it has no `journal`.
    """

    __slots__ = (
        "_all",
        "_awaited_until_s",
        "_has_readers",
        "_journal",
        "_log",
        "_on_error",
        "_on_unwanted",
        "_timer",
        "finishes_open_calls",
        "held",
        "keeps_running",
        "patience_s",
    )

    def __init__(
        self,
        *,
        log: RunLog,
        journal: RunJournal | None,
        keeps_running: bool,
        finishes_open_calls: bool,
        on_unwanted: Callable[[], None],
        on_error: Callable[[], None],
    ) -> None:
        self._log = log
        self._on_error = on_error
        self._journal = journal
        self._on_unwanted: Callable[[], None] | None = on_unwanted
        self.keeps_running = keeps_running
        self.finishes_open_calls = finishes_open_calls
        self.patience_s = 0.0
        # In the order in which they came, so that a simulation can be repeated.
        self._all: dict[Subscriber, None] = {}
        self._has_readers = False
        self.held: TextDelta | None = None
        self._awaited_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, subscriber: Subscriber) -> None:
        """Let `subscriber` hear of everything from now on."""
        self._all[subscriber] = None
        self._has_readers = self._has_readers or subscriber.wants_deltas
        self._decide()

    def detach(self, subscriber: Subscriber) -> None:
        """Forget `subscriber`; give the run up if nobody is left who wants it."""
        self._all.pop(subscriber, None)
        self._has_readers = any(one.wants_deltas for one in self._all)
        if self.finishes_open_calls and self._journal is None and not self._all:
            self.await_one(within_s=self.patience_s)
        else:
            self._decide()

    def lose_first(self, *, may_return: bool) -> None:
        """Decide without the caller, who left before it could follow.

        Where it `may_return` by its request id it is waited for as if it had followed, and no call begins until then.
        """
        self.finishes_open_calls = self.finishes_open_calls or may_return
        self._decide()

    def keep(self) -> None:
        """Go on even when nobody follows; that cannot be taken back."""
        self.keeps_running = True
        self._decide()

    def await_one(self, *, within_s: float) -> None:
        """Somebody may come within `within_s` seconds, or follows from another process: do not stop before that."""
        now_s = asyncio.get_running_loop().time()
        self._awaited_until_s = max(self._awaited_until_s, now_s + within_s)
        if not self._all:
            self._decide()

    def publish(self, index: int, text: str) -> None:
        """Tell who wants it the `text` of step `index`, once they can have read all steps before it."""
        if not self._has_readers or not text:
            return
        held, log = self.held, self._log
        if log.events.committed == log.last_sequence:
            for one in self._all:
                one.add_text(index, text)
        elif held is None or held.iteration_index != index:
            self.held = TextDelta(iteration_index=index, text=text)
        elif len(held.text) + len(text) <= _MAX_HELD_CHARACTERS:
            self.held = TextDelta(iteration_index=index, text=held.text + text)

    def notify(self) -> None:
        """Tell everybody that the log has changed."""
        if self._log.error is not None:
            self._on_error()
        for one in self._all:
            one.notify_growth()
        if self.held is not None and self._log.events.committed == self._log.last_sequence:
            held, self.held = self.held, None
            self.publish(held.iteration_index, held.text)

    def stop_deciding(self) -> None:
        """Wait for nobody any more: how the run ends is decided, or it suspends."""
        self._on_unwanted = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Tell everybody that the run has left the process, and let go of it."""
        self.notify()
        self.stop_deciding()
        # Else these hold each other, and what they hold stays until the collector comes.
        self._log.on_change = self._on_error = _do_nothing

    def _decide(self) -> None:
        if self._on_unwanted is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._journal is not None:
            self._journal.release_calls()
        if self._all or self.keeps_running:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._awaited_until_s:
            self._timer = loop.call_at(self._awaited_until_s, self._decide)
        elif self.finishes_open_calls and self._journal is not None:
            self._journal.hold_calls(when_idle=self._give_up_soon)
        else:
            self._on_unwanted()

    def _give_up_soon(self) -> None:
        if self._on_unwanted is not None:
            self._timer = asyncio.get_running_loop().call_later(_RETURN_S, self._on_unwanted)


class Work(Protocol):
    """What one execution does: the port of each kind of work. It is made for one life of the execution alone.

    Attributes:
        kind: which of the registered kinds it is.
        name: what it is called in labels, spans and lists, such as the strategy.
        source: who chose that name.
        agent: the agent that works; empty where the request named none.
        request: who asks.
        step_count: steps so far, in all lives of the execution.
        new_step_count: those of this life.
        may_suspend: whether it may suspend, so that even a store in memory has to keep what goes on with it.
        metrics: what it measured so far, for the observer.
    """

    kind: str
    name: str
    source: StrategySource
    agent: str
    request: WorkRequest
    step_count: int
    new_step_count: int
    may_suspend: bool
    metrics: Any

    @property
    def obstacle(self) -> str:
        """Why no other process could go on with it, in words for the caller; empty where one can."""
        ...

    def describe(self) -> Json:
        """Return what another process needs to make it again, beside the request."""
        ...

    def begin(self, run: Run) -> Event:
        """Return the first event of the log."""
        ...

    async def work(self, run: Run) -> None:
        """Do it: append events, then report the end (`Run.report_end`) or suspend, and clean up.

        It is cancelled where the run is stopped from outside. In a later life of the execution it makes the same calls
        again, which are answered from the log, or begins from the events that are logged, as its kind decides.

        Raises:
            ReasondError: it failed.
        """
        ...

    def conclude(self, run: Run, ending: RunEnding) -> LastEvent:
        """Return the last event of the log."""
        ...


class Run:
    """One life of an execution in this process. Its driver works on it; subscribers come and go.

    Attributes:
        work: what it does.
        log: the growing end of its log.
        identity: the execution as this life of it began: its ids and names, which never change.
        accounts: what it may take and has taken.
        journal: answers completed calls from the log; None where nobody can go on with the run.
        effects: what it does that must not happen twice.
        tenure: how long this process may act for the run; None where no other process can go on with it.
        nonce: the first one that the run draws.
        trace: its place in a trace and in the log of the server.
        subscribers: who follows it.
        phase: what it is doing.
        cause: what decided how this life of it ends; None while nothing did.
        ending: how its work ended, or the error that ended it; once it is written down, what was written.
        result: the last event, as callers may be told it before it is committed.
        driver: the task that works on it, later the one that sees it out; None before and after.
        on_over: called at once when it is stopped, fails or has no time left while its work goes on.
        leaves_at_checkpoint: how it stops at its next checkpoint, if it does.
        place: its place among the runs of the process.
    """

    __slots__ = (
        "_left",
        "_waiter",
        "accounts",
        "cause",
        "driver",
        "effects",
        "ending",
        "identity",
        "journal",
        "leaves_at_checkpoint",
        "log",
        "nonce",
        "on_over",
        "phase",
        "place",
        "result",
        "subscribers",
        "tenure",
        "trace",
        "work",
    )

    def __init__(
        self,
        *,
        work: Work,
        log: RunLog,
        accounts: Accounts,
        effects: Effects,
        nonce: str,
        trace: RunTrace,
        journal: RunJournal | None = None,
        tenure: Tenure | None = None,
    ) -> None:
        request = work.request
        self.work = work
        self.log = log
        self.identity = log.execution
        self.accounts = accounts
        self.journal = journal
        self.effects = effects
        self.tenure = tenure
        self.nonce = nonce
        self.trace = trace
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
            log=log,
            journal=journal,
            keeps_running=request.keep_running,
            finishes_open_calls=request.is_unary and bool(request.request_id),
            on_unwanted=partial(self.stop, Trigger.ABANDON),
            on_error=self._give_up,
        )
        log.on_change = self.subscribers.notify

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody wanted it to stop, or nobody wanted it to go on."""
        return self.cause in CANCELS

    @property
    def error(self) -> ReasondError | None:
        """Why it failed, once that is written down."""
        return self.ending.error if isinstance(self.ending, RunEnding) else None

    def append(self, event: Event, *, now: datetime) -> None:
        """Append an event of the work to the log, where it gets the next sequence number."""
        # Text of the step that is over now is not told any more: the step carries it.
        self.subscribers.held = None
        self.log.append(event, now=now, usage=self.accounts.usage)

    def reach_checkpoint(self) -> bool:
        """Return whether the work is to stop here, because this process ends; the run is stopped then."""
        trigger = self.leaves_at_checkpoint
        if trigger is Trigger.CANCEL:
            self.report_end(cancel_with("The server was shut down; the steps until then are kept."))
        elif trigger is not None:
            self.stop(trigger)
        return trigger is not None

    def report_end(self, ending: RunEnding | ReasondError, *, trigger: Trigger = Trigger.FINISH) -> bool:
        """Note how the work ended, and return True; False where something else decided that before.

        From now on nothing counts that the work does, and it has a while to clean up.
        """
        if not self.advance(trigger):
            return False
        # Frames of the error that was raised hold the run: each would keep the other until the collector comes.
        self.ending = ending.copy() if isinstance(ending, ReasondError) else ending
        if self.journal is not None:
            self.journal.close()
        self.accounts.set_timer(self.accounts.cleanup_s, self._be_over)
        return True

    def suspend(self, event: Event, *, now: datetime, wake_time: datetime | None) -> bool:
        """Append `event` and let the execution wait in the store until `wake_time` or a call; return whether it does.

        False where something else decided before how this life ends. From now on the work cleans up and returns.

        Raises:
            InternalError: nobody could go on with it.
        """
        if self.journal is None:
            raise InternalError("an execution with which nobody can go on cannot be suspended")
        if not self.advance(Trigger.SUSPEND):
            return False
        self.journal.close()
        self.subscribers.held = None
        self.log.suspend(event, now=now, usage=self.accounts.usage, wake_time=wake_time)
        self.accounts.set_timer(self.accounts.cleanup_s, self._be_over)
        return True

    def cancel(self) -> None:
        """Stop the run at once; what it did is kept. Does nothing once it is decided how it ends."""
        self.stop(Trigger.CANCEL)

    def stop(self, trigger: Trigger) -> None:
        """Stop the run at once, because of `trigger`. Does nothing once it is decided how it ends."""
        if self.advance(trigger):
            if self.journal is not None:
                self.journal.begin_to_close()
            self._be_over()

    def fence(self) -> None:
        """Stop the run because another process may be at work on it; not while an effect is under way.

        What a tool has begun it does anyhow, and its result is kept if nobody has taken the run over.
        """
        if self.journal is None or not self.journal.is_acting:
            self.stop(Trigger.FENCE)

    def advance(self, trigger: Trigger) -> bool:
        """Move to the phase that `trigger` leads to; return whether there is one. Only this changes the phase."""
        phase = advance(self.phase, trigger)
        if phase is self.phase:
            return False
        if self.phase is not Phase.QUEUED and self.phase is not Phase.STOPPING:
            self.cause = trigger
            self.subscribers.stop_deciding()
        self.phase = phase
        return True

    def conclude(self, result: LastEvent) -> None:
        """Let whoever waits for the `result` have it."""
        self.result = result
        self._wake_waiter()

    async def wait_for_result(self) -> LastEvent | None:
        """Return the last event; None where the run leaves this process without one. For one caller only."""
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
        """Note that the run is over in this process."""
        if self.tenure is not None:
            self.tenure.close()
        self.driver = None
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
        """Stop because nothing can be appended any more."""
        error = self.log.error
        if error is None or is_gone(error):
            self.stop(Trigger.LOSE)
        elif self.report_end(error, trigger=Trigger.REFUSE):
            self._be_over()


def _do_nothing() -> None:
    """Do nothing: the run is over, or not at work."""

"""One execution at work: its log, its followers, and how it can be stopped."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from reasond_server.errors import ReasondError
from reasond_server.logs.log import is_gone
from reasond_server.types import TextDelta
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.llm.metering import MeteredModel
    from reasond_server.logs.leases import Tenure
    from reasond_server.logs.log import RunLog
    from reasond_server.logs.mailbox import Subscriber
    from reasond_server.runs.admission import Place
    from reasond_server.runs.endings import Ending
    from reasond_server.runs.replay.journal import Journal
    from reasond_server.runs.replay.spending import Spending
    from reasond_server.runs.tracing import RunTrace
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
    from reasond_server.telemetry.scope import Scope
    from reasond_server.types import Execution, Json, Result, StrategyMetrics, StrategySource, Task, Usage

_MAX_HELD_CHARACTERS = 65_536
# Another process that was asked again says so within that; who comes later finds the calls on record.
_RETURN_S = 1.0


@value
class Assignment:
    """What to run, for whom, and how: everything is decided and checked.

    Attributes:
        shown_config: the configuration as callers are told it.
        request_id: what the caller calls the request; empty where it cannot be asked again.
        digest: what tells the request that `request_id` stands for from any other.
        keep_running: whether the run goes on when nobody follows it.
        time_limit_s: a bound from outside the task's own budget, such as the caller's deadline.
        is_unary: the caller is told nothing before the end, not even the id of the execution: without a request id it
            cannot come back for it, and with one it can only ask again.
        trace: where in a trace the caller stands (`TraceContext.text`).
        permit: the name of the right by which the caller was admitted.
    """

    tenant: str
    subject: str = ""
    task: Task
    strategy: ReasoningStrategy[Any]
    strategy_source: StrategySource
    config: StrategyConfig
    shown_config: Json
    request_id: str = ""
    digest: str = ""
    keep_running: bool = False
    time_limit_s: float | None = None
    is_unary: bool = False
    trace: str = ""
    permit: str = ""

    @property
    def limit_s(self) -> float | None:
        """The seconds that the caller and the budget allow; None where neither sets a bound."""
        own, allowed = self.task.budget.max_elapsed_s, self.time_limit_s
        if own is None or allowed is None:
            return allowed if own is None else own
        return min(own, allowed)

    @property
    def can_be_resumed(self) -> bool:
        """Whether anybody could come back for the run."""
        return bool(self.request_id) or self.keep_running or not self.is_unary


class Stop(StrEnum):
    """Why a run is stopped from outside: only the first ends its log, with the others another process may go on.

    FENCED: this process cannot know any more whether one has, because it is out of touch with the store.
    """

    CANCELLED = "cancelled"
    HANDED_OVER = "handed_over"
    LOST = "lost"
    FENCED = "fenced"


class Run:
    """The live side of an execution. The driver works on it; followers attach and detach.

    When the last follower leaves, the run is cancelled, unless somebody asked to keep it running or somebody follows it
    in another process.

    Attributes:
        identity: the execution as this life of it began: its ids and names, which never change.
        journal: what answers completed calls from the log; None where nobody can go on with the run.
        tenure: until when this process may act for the run; None where no other process can go on with it.
        known: digests of the steps that are logged from an earlier life.
        inherited: what was taken over from another execution, in words for the caller.
        links: places in the traces of the executions whose place it takes.
        spares_calls: when its last follower leaves, no call begins any more, and the run is cancelled once those under
            way are on record: who asks again pays for none of them twice.
        patience_s: how long one that spares calls waits for a follower instead where there is no `journal`.
        driver: the task that works on the run, later the one that sees it out; None before and after.
        on_over: called at once when the run is stopped, fails or has no time left while its strategy is at work.
        told: the outcome or the error by which the strategy's work ended.
        is_ending: how the run ends is settled: nothing that happens from now on changes it.
        stops_at_step: why the run stops at its next step, if it does.
        stop_reason: why it was stopped from outside, if it was.
        is_abandoned: it was cancelled because nobody was left who wanted it.
        is_free_failure: it failed before anything was spent or done, so its request id may be given back.
        result: what callers may be told, before it is committed.
    """

    __slots__ = (
        "_awaited_until_s",
        "_followers",
        "_has_readers",
        "_held",
        "_left",
        "_limit",
        "_spending",
        "_timer",
        "_waiter",
        "assignment",
        "began_s",
        "driver",
        "error",
        "has_tools",
        "identity",
        "inherited",
        "is_abandoned",
        "is_ending",
        "is_free_failure",
        "is_takeover",
        "journal",
        "keeps_running",
        "known",
        "links",
        "log",
        "metrics",
        "model",
        "new_nonce",
        "on_over",
        "patience_s",
        "place",
        "result",
        "scope",
        "spares_calls",
        "step_count",
        "stop_reason",
        "stops_at_step",
        "tenure",
        "told",
        "trace",
    )

    def __init__(
        self,
        *,
        assignment: Assignment,
        log: RunLog,
        model: MeteredModel,
        spending: Spending,
        new_nonce: Callable[[], str],
        began_s: float,
        journal: Journal | None = None,
        tenure: Tenure | None = None,
        known: Sequence[bytes] = (),
        inherited: Sequence[str] = (),
        links: Sequence[str] = (),
        is_takeover: bool = False,
    ) -> None:
        self.assignment = assignment
        self.log = log
        self.identity = log.execution
        self.model = model
        self.journal = journal
        self.tenure = tenure
        self.new_nonce = new_nonce
        self.began_s = began_s
        self.known = known
        self.inherited = inherited
        self.links = links
        self.is_takeover = is_takeover
        self.trace: RunTrace | None = None
        self.scope: Scope | None = None
        self.driver: asyncio.Task[None] | None = None
        self.place: Place | None = None
        self.metrics: StrategyMetrics | None = None
        self.step_count = 0
        self.error: ReasondError | None = None
        self.stops_at_step: Stop | None = None
        self.stop_reason: Stop | None = None
        self.is_abandoned = False
        self.is_ending = False
        self.is_free_failure = False
        self.has_tools = False
        self.told: Ending | ReasondError | None = None
        self.on_over: Callable[[], None] = _nothing
        self.result: Result | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._left: asyncio.Event | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._spending = spending
        self.keeps_running = assignment.keep_running
        # In the order in which they came, so that a simulation can be repeated.
        self._followers: dict[Subscriber, None] = {}
        self._has_readers = False
        self.spares_calls = assignment.is_unary and bool(assignment.request_id)
        self.patience_s = 0.0
        self._awaited_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._held: TextDelta | None = None
        log.on_change = self._log_changed

    @property
    def execution(self) -> Execution:
        """The execution, with what is appended and not yet committed."""
        return self.log.execution

    @property
    def usage(self) -> Usage:
        """What was spent so far, in all lives of the run."""
        return self._spending.total

    @property
    def is_at_work(self) -> bool:
        """Whether it has begun, and has not left this process."""
        return self.driver is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody wanted it to stop."""
        return self.stop_reason is Stop.CANCELLED

    @property
    def may_have_had_effects(self) -> bool:
        """Whether a tool may have been called."""
        return self.has_tools if self.journal is None else self.journal.has_tool_calls

    @property
    def is_replaying(self) -> bool:
        """Whether the step in progress is one that is logged already."""
        return self.step_count < len(self.known)

    def attach(self, subscriber: Subscriber) -> None:
        """Let `subscriber` hear of everything from now on."""
        self._followers[subscriber] = None
        self._has_readers = self._has_readers or subscriber.wants_deltas
        self._cancel_if_unwanted()

    def detach(self, subscriber: Subscriber) -> None:
        """Forget `subscriber`; cancel the run if nobody is left who wants it."""
        self._followers.pop(subscriber, None)
        self._has_readers = any(one.wants_deltas for one in self._followers)
        if self.spares_calls and self.journal is None and not self._followers:
            self.await_follower(within_s=self.patience_s)
        else:
            self._cancel_if_unwanted()

    def keep(self) -> None:
        """Go on even when nobody follows; that cannot be taken back."""
        self.keeps_running = True
        self._cancel_if_unwanted()

    def await_follower(self, *, within_s: float) -> None:
        """Somebody may come within `within_s` seconds, or follows from another process: do not stop before that."""
        now_s = asyncio.get_running_loop().time()
        self._awaited_until_s = max(self._awaited_until_s, now_s + within_s)
        if not self._followers:
            self._cancel_if_unwanted()

    def cancel(self) -> None:
        """Stop the run at once; what it did is kept. Does nothing once it is ending."""
        self.stop(Stop.CANCELLED)

    def stop(self, reason: Stop) -> None:
        """Stop the run at once, for `reason`. Does nothing once it is ending."""
        if self.is_ending or self.stop_reason is not None:
            return
        self.stop_reason = reason
        if self.journal is not None:
            self.journal.begin_to_close()
        self._be_over()

    def tell(self, ending: Ending | ReasondError) -> None:
        """Note how the strategy's work ended; what was told first counts, unless the run was stopped or over before."""
        if self.told is None and self.stop_reason is None and not self.is_ending:
            # Frames of the error that was raised hold the run: each would keep the other until the collector comes.
            self.told = ending.again() if isinstance(ending, ReasondError) else ending

    def limit(self, within_s: float | None) -> None:
        """Let the run be over in so many seconds, whatever was said before; None: in its own time."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if within_s is None else asyncio.get_running_loop().call_later(within_s, self._be_over)

    def fence(self) -> None:
        """Stop the run because another process may be at work on it; not while a tool is.

        What a tool has begun it does anyhow, and its result is kept if nobody has taken the run over.
        """
        if self.journal is None or not self.journal.is_acting:
            self.stop(Stop.FENCED)

    def fail(self, error: ReasondError) -> None:
        """End the run because of `error`. Does nothing once it is ending, or was stopped: that came first."""
        if not self.is_ending and self.stop_reason is None:
            self.tell(error)
            self._be_over()

    def conclude(self, result: Result) -> None:
        """Let whoever waits for the `result` have it."""
        self.result = result
        self._tell_waiter()

    async def conclusion(self) -> Result | None:
        """Return the result; None where the run leaves this process without one. For one caller only."""
        if self.result is None and self.is_at_work:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.result

    def wrote(self, text: str) -> None:
        """Tell followers who want it what was written in this step, once they were told of those before."""
        if not self._has_readers or not text or self.is_replaying:
            return
        index, held = self.step_count, self._held
        if self.log.events.committed == self.log.last_sequence:
            self._tell(index, text)
        elif held is None or held.iteration_index != index:
            self._held = TextDelta(iteration_index=index, text=text)
        elif len(held.text) + len(text) <= _MAX_HELD_CHARACTERS:
            self._held = TextDelta(iteration_index=index, text=held.text + text)

    def end(self) -> None:
        """Note that the run is over in this process."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.tenure is not None:
            self.tenure.close()
        self.driver = None
        self._tell_waiter()
        if self._left is not None:
            self._left.set()
        for mailbox in self._followers:
            mailbox.notify_growth()
        # Else these hold each other, and what they hold stays until the collector comes.
        self.log.on_change = self.on_over = _nothing

    async def ended(self) -> None:
        """Wait until the log has its last event, or the run has left this process."""
        if self.is_at_work:
            self._left = self._left or asyncio.Event()
            await self._left.wait()

    def _be_over(self) -> None:
        on_over, self.on_over = self.on_over, _nothing
        on_over()

    def _tell_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _log_changed(self) -> None:
        """Tell the followers that there is something to read, or stop because nothing can be appended any more."""
        error = self.log.error
        if error is not None:
            if is_gone(error):
                self.stop(Stop.LOST)
            else:
                self.fail(error)
        for mailbox in self._followers:
            mailbox.notify_growth()
        if self._held is not None and self.log.events.committed == self.log.last_sequence:
            held, self._held = self._held, None
            if held.iteration_index == self.step_count:
                self._tell(held.iteration_index, held.text)

    def _tell(self, iteration_index: int, text: str) -> None:
        for mailbox in self._followers:
            mailbox.add_text(iteration_index, text)

    def _cancel_if_unwanted(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_ending or self.stop_reason is not None:
            return
        if self.journal is not None:
            self.journal.release()
        if self._followers or self.keeps_running:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._awaited_until_s:
            self._timer = loop.call_at(self._awaited_until_s, self._cancel_if_unwanted)
        elif self.spares_calls and self.journal is not None:
            self.journal.hold(when_idle=self._abandon_soon)
        else:
            self._abandon()

    def _abandon_soon(self) -> None:
        if not self.is_ending:
            self._timer = asyncio.get_running_loop().call_later(_RETURN_S, self._abandon)

    def _abandon(self) -> None:
        self.is_abandoned = self.stop_reason is None
        self.cancel()


def _nothing() -> None:
    """Do nothing: the run is over, or not at work."""

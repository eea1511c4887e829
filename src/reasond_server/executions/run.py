"""One execution at work: its place in the log, its followers, and how it can be stopped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasond_server.types import TextDelta

if TYPE_CHECKING:
    from reasond_server.errors import ReasondError
    from reasond_server.executions.mailbox import Mailbox
    from reasond_server.llm.metering import MeteredModel
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
    from reasond_server.types import Execution, Json, StrategyMetrics, StrategySource, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What to run, for whom, and how: everything is decided and checked.

    `digest` identifies the request that `request_id` stands for. `time_limit_s` bounds the run from outside
    the task's own budget, such as by the caller's deadline.
    """

    tenant: str
    task: Task
    strategy: ReasoningStrategy[Any]
    strategy_source: StrategySource
    config: StrategyConfig
    shown_config: Json
    request_id: str = ""
    digest: str = ""
    keep_running: bool = False
    time_limit_s: float | None = None

    @property
    def limit_s(self) -> float | None:
        """The seconds that the caller and the budget allow; None where neither sets a bound."""
        limits = (self.time_limit_s, self.task.budget.max_elapsed_s)
        return min((limit for limit in limits if limit is not None), default=None)


class Run:
    """The live side of an execution. The runner drives it; followers attach and detach.

    When the last follower leaves, the run is cancelled, unless somebody asked to keep it running.
    """

    def __init__(self, *, assignment: Assignment, execution: Execution, model: MeteredModel) -> None:
        self.assignment = assignment
        self.execution = execution
        self.model = model
        self.driver: asyncio.Task[None] | None = None
        self.metrics: StrategyMetrics | None = None
        self.step_count = 0
        self.error: ReasondError | None = None
        self.has_begun = False
        self.is_cancelled = False
        self.stops_at_step = False
        self.is_ending = False
        self._keeps_running = assignment.keep_running
        self._followers: set[Mailbox] = set()

    def attach(self, mailbox: Mailbox, *, keep_running: bool) -> None:
        """Let `mailbox` hear of everything from now on."""
        self._keeps_running = self._keeps_running or keep_running
        self._followers.add(mailbox)

    def detach(self, mailbox: Mailbox) -> None:
        """Forget `mailbox`; cancel the run if nobody is left who wants it."""
        self._followers.discard(mailbox)
        if not self._followers and not self._keeps_running:
            self.cancel()

    def cancel(self) -> None:
        """Stop the run at once; what it did is kept. Does nothing once it is ending."""
        if self.is_ending or self.is_cancelled:
            return
        self.is_cancelled = True
        # A task that is cancelled before its first step never runs at all: the driver looks at the flag.
        if self.driver is not None and self.has_begun:
            self.driver.cancel()

    def log_grew(self) -> None:
        """Tell the followers that there is something to read."""
        for mailbox in self._followers:
            mailbox.log_grew()

    def wrote(self, text: str) -> None:
        """Tell the followers what was written in the step in progress."""
        if self._followers and text:
            delta = TextDelta(iteration_index=self.step_count, text=text)
            for mailbox in self._followers:
                mailbox.wrote(delta)

    async def ended(self) -> None:
        """Wait until the log has its last event."""
        if self.driver is not None:
            await asyncio.wait([self.driver])

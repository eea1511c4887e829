"""The workflow of a repair: the same run as in one process, over activities that a cluster hands to its workers.

Nothing here reads a clock, chance or the outside but through `workflow`: a worker repeats it from its history.
The names of workflow, activities and queues are stored in clusters; they never change.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from reasond_server.engines.packing import ActivityReply, ActivityRequest, number_batch, pack, pack_batch, unpack
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.llm.metered_model import build_exhausted_error
from reasond_server.repair.search.activities import CandidateOrder, PatchCheck, RepairCandidate, TokenBounds
from reasond_server.repair.search.repair_run import RepairOutcome, RepairRun
from reasond_server.repair.service.assignments import RepairAssignment, read_assignment
from reasond_server.repair.service.engine import RepairBatch, RepairOrder
from reasond_server.runs.recorded_calls import read_error
from reasond_server.types import NOTHING, Budget, Event, FinishReason, LoggedEvent, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.types.repairs import SandboxLevel


_LIMITS: Final = ("max_total_tokens", "max_output_tokens", "max_model_calls")


class BudgetShares:
    """The `budget` of one repair, whose activities run in several processes that know nothing of each other.

    Shares that are not settled and what was spent never exceed the budget together.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._open: list[Budget] = []
        self._spent = NOTHING
        self._lost_tokens = 0

    def reserve(self, most: Budget) -> Budget:
        """Return what an activity may spend: `most`, or less if less is left; None where nothing bounds it.

        Raises:
            TokenBudgetExhaustedError: nothing is left.
        """
        share = Budget(**{name: self._reserve(name, getattr(most, name)) for name in _LIMITS})
        self._open.append(share)
        return share

    def settle(self, share: Budget, usage: Usage, lost_tokens: int) -> None:
        """Replace a share by what was spent of it.

        `lost_tokens` were reserved for attempts that may be billed although they failed.
        """
        self._open.remove(share)
        self._spent += usage
        self._lost_tokens += lost_tokens

    def _reserve(self, name: str, most: int | None) -> int | None:
        limit = getattr(self._budget, name)
        if limit is None:
            return None
        taken = self._count_spent(name) + sum(getattr(share, name) for share in self._open)
        if taken >= limit:
            raise build_exhausted_error(name, limit=limit, spent=taken, needed=1)
        left: int = limit - taken
        return left if most is None else min(most, left)

    def _count_spent(self, name: str) -> int:
        if name == "max_total_tokens":
            return self._spent.total_tokens + self._lost_tokens
        return self._spent.output_tokens if name == "max_output_tokens" else self._spent.model_calls


WORKFLOW: Final = "reasond.repair.v1"
MEASURE_BASELINE: Final = "measureBaseline"
BOUND_TOKENS: Final = "boundTokens"
GENERATE: Final = "generateCandidates"
REFLECT: Final = "reflectCandidates"
SCORE: Final = "scoreCandidates"
VALIDATE: Final = "validatePatch"
FINALIZE: Final = "finalizeSolution"
COMMIT: Final = "commitEvents"

MODELS: Final = "models"
"""The queue of workflows and of calls of models."""
CHECKS: Final = "checks"
"""The queue of what runs checks."""

_START_TO_CLOSE: Final = timedelta(hours=2)
_HEARTBEAT_TIMEOUT: Final = timedelta(seconds=8)
_RETRIES: Final = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=30)
)
"""Of infrastructure only: what fails by the repair itself is a result of its activity."""


@workflow.defn(name=WORKFLOW)
class RepairWorkflow:
    """Works one repair out."""

    @workflow.run
    async def run(self, packed: bytes, queue: str) -> None:
        """Work out the RepairOrder `packed`, and hand its events on batch by batch.

        `queue` begins the names of the queues.

        Raises:
            ApplicationError: the order cannot be read, or its events not be handed on. That ends the workflow; what is
                raised otherwise lets the cluster try again for ever.
        """
        try:
            await self._work(packed, queue)
        except FailureError:
            raise
        except Exception as error:
            workflow.logger.exception("a workflow failed")
            raise ApplicationError("the repair cannot be worked out", non_retryable=True) from error

    async def _work(self, packed: bytes, queue: str) -> None:
        order = unpack(RepairOrder, packed)
        assignment = read_assignment(order.assignment)
        activities = WorkflowActivities(packed, queue, assignment)
        batches = BatchWriter(packed, queue, activities)
        repair = RepairRun(
            parameters=assignment.parameters,
            budget=assignment.task.budget,
            activities=activities,
            emit=batches.add,
            pause=_go_on,
        )
        batches.summarize = lambda: repair.summarize(FinishReason.MAX_ITERATIONS)
        writing = asyncio.create_task(batches.work())
        outcome, failure = RepairOutcome(), None
        try:
            outcome = await repair.work() or outcome
        except ReasondError as error:
            outcome, failure = batches.summarize(), error
        except Exception:  # noqa: BLE001 - a workflow that raises anything else is tried again for ever
            workflow.logger.exception("a repair failed")
            outcome, failure = batches.summarize(), InternalError("internal error")
        writing.cancel()
        await batches.end(outcome, failure)


async def _go_on() -> bool:
    """Return False: a workflow stops only when it is cancelled."""
    return False


class WorkflowActivities:
    """See `RepairActivities`: each is an activity of the cluster.

    `order` is the packed RepairOrder with the `assignment`, `queue` begins the names of the queues.
    """

    def __init__(self, order: bytes, queue: str, assignment: RepairAssignment) -> None:
        self._order = order
        self._queue = queue
        self._parameters = assignment.parameters
        self._is_bounded = assignment.task.budget.max_total_tokens is not None
        self._shares = BudgetShares(assignment.task.budget)
        self._baseline = b""
        self._bounds = TokenBounds(original=0, refined=0)
        self._warnings: dict[str, None] = {}
        self.level: SandboxLevel | None = None
        self.usage = NOTHING
        self.checks_run = 0
        self.check_cpu_s = 0.0
        self.calls: dict[str, str] = {}
        self.worst_cost: Mapping[str, float] = {}

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller should know of what the critics did so far, each once."""
        return tuple(self._warnings)

    async def measure_baseline(self) -> Baseline:
        """Run all checks on the original code, twice."""
        reply = await self._perform(MEASURE_BASELINE, CHECKS)
        assert reply.baseline is not None  # noqa: S101 - as the activity returns it
        self._baseline, self.worst_cost = pack(reply.baseline), reply.worst_cost
        if self._is_bounded:
            bounds = (await self._perform(BOUND_TOKENS, MODELS)).bounds
            assert bounds is not None  # noqa: S101 - as the activity returns it
            self._bounds = bounds
        return reply.baseline

    def bound_tokens(self, order: CandidateOrder) -> int:
        """Return the most tokens of any candidate like this one."""
        return self._bounds.bound_tokens(order, calls=self._parameters.most_calls)

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        """Ask the model for a candidate and read its reply."""
        name = GENERATE if order.previous is None else REFLECT
        calls = self._parameters.most_calls
        share = self._shares.reserve(
            Budget(
                max_total_tokens=self.bound_tokens(order),
                max_output_tokens=calls * self._parameters.max_tokens,
                max_model_calls=calls,
            )
        )
        request = ActivityRequest(order=order, budget=share)
        reply = await self._perform(name, MODELS, request, name=order.candidate_id, share=share)
        assert reply.candidate is not None  # noqa: S101 - as the activity returns it
        return reply.candidate

    async def judge(self, candidate: RepairCandidate) -> Critique:
        """Let the critics judge a candidate."""
        reply = await self._judge(SCORE, candidate)
        assert reply.critique is not None  # noqa: S101 - as the activity returns it
        return reply.critique

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        """See whether the patch of a candidate applies and gives exactly its files."""
        reply = await self._judge(VALIDATE, candidate)
        assert reply.patch is not None  # noqa: S101 - as the activity returns it
        return reply.patch

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        """Run the held-out checks on a candidate."""
        return (await self._judge(FINALIZE, candidate)).outcomes

    async def _judge(self, activity: str, candidate: RepairCandidate) -> ActivityReply:
        return await self._perform(activity, CHECKS, ActivityRequest(candidate=candidate), name=candidate.candidate_id)

    async def _perform(
        self,
        activity: str,
        queue: str,
        request: ActivityRequest | None = None,
        *,
        name: str = "",
        share: Budget | None = None,
    ) -> ActivityReply:
        """Return what an activity returns; `name` tells it from others in the timeline, and it settles its `share`.

        Raises:
            ReasondError: the activity returned an error.
        """
        body: bytes = await workflow.execute_activity(
            activity,
            args=[self._order, self._baseline, pack(request or ActivityRequest())],
            task_queue=f"{self._queue}-{queue}",
            activity_id=f"{activity}/{name}" if name else activity,
            result_type=bytes,
            start_to_close_timeout=_START_TO_CLOSE,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=_RETRIES,
        )
        reply = unpack(ActivityReply, body)
        self.usage += reply.usage
        if share is not None:
            self._shares.settle(share, reply.usage, reply.lost_tokens)
        self.checks_run += reply.checks
        self.check_cpu_s += reply.check_cpu_s
        self.calls.update(reply.calls)
        self.level = reply.level or self.level
        self._warnings.update(dict.fromkeys(reply.warnings))
        if reply.error is not None:
            raise read_error(dict(reply.error))
        return reply


class BatchWriter:
    """Hands the events of a repair on, in order, as soon as the batch before is written.

    `summarize` returns the best candidate so far.
    """

    def __init__(self, order: bytes, queue: str, activities: WorkflowActivities) -> None:
        self._order = order
        self._queue = queue
        self._activities = activities
        self._events: list[LoggedEvent] = []
        self._told_usage = NOTHING
        self._told_checks = 0
        self._told_cpu_s = 0.0
        self._number = 0
        self._one_at_a_time = asyncio.Lock()
        self.summarize: Callable[[], RepairOutcome] = RepairOutcome

    def add(self, event: Event) -> None:
        """Add an event to the next batch."""
        self._events.append(LoggedEvent(sequence=0, create_time=workflow.now(), event=event))

    async def work(self) -> None:
        """Write batches until cancelled."""
        while True:
            await workflow.wait_condition(lambda: bool(self._events))
            await asyncio.shield(self._write())

    async def end(self, outcome: RepairOutcome, error: ReasondError | None) -> None:
        """Write the last batch."""
        await self._write(outcome=outcome, is_last=True, error=error)

    async def _write(
        self, *, outcome: RepairOutcome | None = None, is_last: bool = False, error: ReasondError | None = None
    ) -> None:
        async with self._one_at_a_time:
            self._number += 1
            events, self._events = self._events, []
            done = self._activities
            calls, done.calls = done.calls, {}
            batch = RepairBatch(
                events=[each.event for each in events],
                usage=done.usage - self._told_usage,
                checks=done.checks_run - self._told_checks,
                check_cpu_s=done.check_cpu_s - self._told_cpu_s,
                warnings=done.warnings,
                level=done.level,
                outcome=self.summarize() if outcome is None else outcome,
                is_last=is_last,
                error=error,
                calls=calls,
            )
            self._told_usage, self._told_checks, self._told_cpu_s = done.usage, done.checks_run, done.check_cpu_s
            number = number_batch(self._number)
            await workflow.execute_activity(
                COMMIT,
                args=[self._order, number, pack_batch(batch, events)],
                task_queue=f"{self._queue}-{MODELS}",
                activity_id=f"{COMMIT}/{number}",
                start_to_close_timeout=_START_TO_CLOSE,
                heartbeat_timeout=_HEARTBEAT_TIMEOUT,
                retry_policy=_RETRIES,
            )

"""One simulation from a seed: a few processes and clients, faults, then calm, and the checks at the end."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from reasond_server.types import (
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Result,
    StreamEvent,
    Usage,
    UsageSource,
)
from tests.napping import NappingWork
from tests.simulation.clients import Client
from tests.simulation.naps import NapClient, make_kind
from tests.simulation.processes import Process, current_process, task_factory
from tests.simulation.questions import courses, plain
from tests.simulation.repair_clients import RepairClient, judge_repair
from tests.simulation.turn_clients import TurnClient
from tests.simulation.virtual import StandstillError, VirtualLoop
from tests.simulation.world import TENANT, World, usage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.types import Budget, LoggedEvent
    from tests.simulation.assembly import Parts
    from tests.simulation.questions import Course, Question

_CALM_LIMIT_S = 300.0
_STORM_S = 400.0
_LONG_S = 1000.0
_UNWINDING_S = 5.0
_CUT = "Step {} is what a model call had written when it was cut off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a simulation; the same seed and code always give the same `trace`."""

    seed: int
    violations: tuple[str, ...]
    trace: str
    passed_s: float
    happened: Counter[str] = field(default_factory=Counter)


class Simulation:
    """Runs a simulation. `wrap` puts a layer between store and processes; `tells` receives every line of the trace."""

    def __init__(
        self,
        seed: int,
        *,
        wrap: Callable[[ExecutionStore], ExecutionStore] = lambda store: store,
        tells: Callable[[str], None] | None = None,
    ) -> None:
        self._loop = VirtualLoop(has_threads=True)
        factory: Any = task_factory
        self._loop.set_task_factory(factory)
        self._world = World(seed, self._loop, tells=tells)
        courses()
        verdict = Verdict(self._world)
        self._world.on_end = verdict.judge_end
        self._store = wrap(self._world.store)
        self._processes: list[Process] = []

    def run(self) -> Report:
        """Run the simulation and return its report."""
        world = self._world
        logger, listener = logging.getLogger("reasond"), _Listener(world)
        was_level, was_propagating = logger.level, logger.propagate
        logger.addHandler(listener)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
        try:
            self._loop.run(self._main())
        except StandstillError as error:
            world.report(str(error))
        finally:
            logger.removeHandler(listener)
            logger.setLevel(was_level)
            logger.propagate = was_propagating
        world.violations += [f"nobody caught: {fault}" for fault in self._loop.faults]
        return Report(
            seed=world.seed,
            violations=tuple(world.violations),
            trace=world.trace.hexdigest(),
            passed_s=self._loop.passed_s,
            happened=world.happened,
        )

    async def _main(self) -> None:
        world, chance = self._world, self._world.chance
        keepers = [asyncio.create_task(self._keep_up(number)) for number in range(chance.randint(2, 3))]
        clients = [asyncio.create_task(client.live()) for client in self._clients()]
        await asyncio.wait(clients, timeout=_STORM_S)
        world.has_calmed = True
        world.note("calm")
        await asyncio.wait(clients)
        for client in clients:
            await client
        await self._all_ended()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.wait(keepers)
        for process in self._processes:
            if not process.is_dead:
                await self._await_rest(process)
                await process.stop()
        world.turns.judge_sessions()
        for keeper in keepers:
            if not keeper.cancelled() and keeper.exception() is not None:
                raise keeper.exception() or AssertionError
        Verdict(world).judge()

    def _clients(self) -> list[Client]:
        world, chance = self._world, self._world.chance
        clients: list[Client] = []
        if world.seed % 2:
            for _ in range(chance.randint(1, 2)):
                session_id = chance.choice(("", world.new_id("s"), world.new_id("s")))
                sharers = chance.choice((1, 2, 3))
                clients += [TurnClient(world, self._choose, session_id=session_id) for _ in range(sharers)]
        for _ in range(chance.randint(0, 1) if clients else chance.randint(1, 4)):
            tag = world.new_id("q")
            request_id = f"r-{tag}" if chance.random() < 0.6 else ""
            sharers = chance.choice((1, 1, 2, 4)) if request_id else 1
            clients += [Client(world, self._choose, tag=tag, request_id=request_id) for _ in range(sharers)]
        if world.seed % 4 == 0:
            tag = world.new_id("q")
            clients += [RepairClient(world, self._choose, tag=tag) for _ in range(chance.choice((1, 1, 2)))]
        for _ in range(0 if world.seed % 2 else chance.choice((0, 0, 1, 2))):
            tag = world.new_id("q")
            clients += [NapClient(world, self._choose, tag=tag) for _ in range(chance.choice((1, 1, 2)))]
        return clients

    def _choose(self) -> Process | None:
        """Return a process that accepts calls, as a load balancer does."""
        alive = [process for process in self._processes if not process.is_dead]
        return self._world.chance.choice(alive) if alive else None

    async def _keep_up(self, number: int) -> None:
        """Start a process again whenever it has died or was stopped."""
        world, chance = self._world, self._world.chance
        await asyncio.sleep(number * chance.random())
        while True:
            dies_at = (
                chance.choice((None, chance.randint(1, 40), chance.randint(1, 400))) if world.rates.crash else None
            )
            process = Process(world, self._store, dies_at_point=dies_at, napping_of=make_kind)
            self._processes.append(process)
            try:
                await process.start()
            except asyncio.CancelledError:
                if not process.is_dead:
                    raise
            lives_until_s = self._loop.time() + chance.expovariate(1 / 120)
            while not process.is_dead:
                await asyncio.sleep(1.0 + chance.random())
                world.turns.check_holding(process)
                if world.happens(world.rates.freeze, "freeze"):
                    await process.freeze(chance.choice((2.0, 12.0, 20.0, 60.0)) * (0.5 + chance.random()))
                if self._loop.time() > lives_until_s and not world.has_calmed and world.rates.crash:
                    world.happened["stop"] += 1
                    await process.stop()
            await asyncio.sleep(chance.random() * 10)

    async def _all_ended(self) -> None:
        """Wait until every log has its result: no execution may run for ever."""
        limit = self._loop.time() + _CALM_LIMIT_S
        while running := [one for one in self._world.all_executions() if not one.state.has_ended]:
            if self._loop.time() > limit:
                names = [one.execution_id for one in running]
                self._world.report(f"{names} still run {_CALM_LIMIT_S:g} s after the last client has left")
                return
            for one in running:
                process = self._choose()
                if one.state is ExecutionState.SUSPENDED and one.wake_time is None and process is not None:
                    process.ask_parts(partial(_wake, one.execution_id))
            await asyncio.sleep(1.0)

    async def _await_rest(self, process: Process) -> None:
        """Wait until a process has ended its runs; it may be frozen, or wait for the store."""
        limit = self._loop.time() + _CALM_LIMIT_S
        while not process.is_dead and process.holds:
            if self._loop.time() > limit:
                self._world.report(f"{process.name} has no work left and holds {process.holds}")
                return
            await asyncio.sleep(1.0)


async def _wake(execution_id: str, parts: Parts) -> None:
    """Wake an execution that only a call can wake."""
    await parts.runner.wake(TENANT, execution_id)


class Verdict:
    """The checks of every log at the end."""

    def __init__(self, world: World) -> None:
        self._world = world

    def judge(self) -> None:
        """Check every stored execution and every execution that a client saw."""
        self._world.require_kept()
        kept = {execution.execution_id for execution in self._world.all_executions()}
        for execution in self._world.all_executions():
            self._judge_log(execution.execution_id)
        for execution_id, events in self._world.seen.items():
            if events and execution_id not in kept and not self._world.is_gone(execution_id):
                self._world.report(f"{execution_id} was seen and is gone")

    def judge_end(self, execution_id: str) -> None:
        """Check a log that has just ended; it may be deleted before the simulation is over."""
        if self._world.retention_s < _LONG_S:
            self._judge_log(execution_id)

    def _judge_log(self, execution_id: str) -> None:
        world = self._world
        events = world.log_of(execution_id)
        if [event.sequence for event in events] != list(range(1, len(events) + 1)):
            world.report(f"the log of {execution_id} has a gap: {[event.sequence for event in events]}")
        self._judge_seen(execution_id, events)
        if execution_id in world.turns.turns:
            world.turns.judge(execution_id)
            return
        if execution_id in world.repairs:
            judge_repair(world, execution_id)
            return
        bodies = [logged.event for logged in events]
        kinds = [type(body) for body in bodies]
        if kinds and (kinds[0] is not ExecutionStarted or kinds.count(ExecutionStarted) != 1):
            world.report(f"the log of {execution_id} begins with {kinds}")
        if kinds.count(Result) != 1 or kinds[-1] is not Result:
            world.report(f"the log of {execution_id} has no single result at its end: {kinds}")
            return
        steps = [body for body in bodies if isinstance(body, Iteration)]
        if [step.index for step in steps] != list(range(len(steps))):
            world.report(f"the steps of {execution_id} are numbered {[step.index for step in steps]}")
        result = bodies[-1]
        if isinstance(result, Result):
            self._judge_usage(execution_id, steps, result)
            self._judge_answer(execution_id, steps, result)

    def _judge_seen(self, execution_id: str, events: Sequence[LoggedEvent]) -> None:
        """Check that clients saw the events that the log has."""
        world = self._world
        for logged in events:
            seen = world.seen[execution_id].get(logged.sequence)
            there = StreamEvent(
                execution_id=execution_id,
                sequence=logged.sequence,
                create_time=logged.create_time,
                event=logged.event,
            )
            if seen is not None and seen != there:
                world.report(f"event {logged.sequence} of {execution_id} was seen as {seen} and is {there}")
        if world.seen[execution_id] and max(world.seen[execution_id]) > len(events):
            world.report(f"{max(world.seen[execution_id])} events of {execution_id} were seen, {len(events)} are kept")

    def _judge_answer(self, execution_id: str, steps: list[Iteration], result: Result) -> None:
        """Check that a caller that could repeat its request received the answer in the log."""
        for view in self._world.answers.get(execution_id, ()):
            answered = list(view.steps), view.result
            if view.execution.request_id and answered != (steps, result):
                self._world.report(f"{execution_id} was answered with {view.result} and ended with {result}")

    def _judge_usage(self, execution_id: str, steps: list[Iteration], result: Result) -> None:
        """Check that the usage is the sum of the calls, each counted once, and within the budget."""
        world, usage = self._world, result.metrics.usage
        stepped = sum((step.usage for step in steps), Usage())
        if usage.total_tokens < stepped.total_tokens:
            world.report(f"the steps of {execution_id} cost {stepped}, the whole {usage}")
        world.happened[f"ended {result.finish_reason}"] += 1
        is_whole = result.finish_reason is FinishReason.ANSWERED and result.strategy_used == NappingWork.name
        if is_whole and len(steps) != int(result.answer):
            world.report(f"{execution_id} took {result.answer} steps and has {len(steps)}")
        if result.error is not None:
            world.happened[f"failed {result.error.reason}"] += 1
            # A unary run without a request id is not resumed, because no caller could come back for its answer.
            is_fault = result.error.reason in {"INTERNAL", "NOT_RESUMABLE"}
            is_named = "nobody could have come back" in result.error.message or world.is_given_up(result.error.message)
            if is_fault and not is_named:
                world.report(f"{execution_id} failed: {result.error}")
        if any("did not do the same again" in warning for warning in result.warnings):
            world.report(f"{execution_id} did not repeat its steps: {result.warnings}")
        question = world.questions.get(world.tag_of(execution_id) or result.answer)
        if question is None:
            return
        self._judge_budget(execution_id, usage, question.budget)
        if not question.is_listed and question.tag not in world.failed:
            self._judge_course(execution_id, steps, result, courses()[question.strategy, question.config])
        # A budget of tokens may cut replies short, which then cost less.
        if result.finish_reason is FinishReason.ANSWERED and question.budget.max_total_tokens is None:
            self._judge_cost(execution_id, usage, question)

    def _judge_budget(self, execution_id: str, usage: Usage, budget: Budget) -> None:
        """Check the budget of an execution that no crash interrupted; calls in flight at a crash may exceed it."""
        world = self._world
        if execution_id in world.interrupted:
            return
        if budget.max_model_calls is not None and usage.model_calls > budget.max_model_calls:
            world.report(f"{execution_id} made {usage.model_calls} calls of {budget.max_model_calls}")
        if budget.max_total_tokens is not None and usage.total_tokens > budget.max_total_tokens:
            world.report(f"{execution_id} took {usage.total_tokens} tokens of {budget.max_total_tokens}")

    def _judge_course(self, execution_id: str, steps: list[Iteration], result: Result, course: Course) -> None:
        """Check that the steps equal those of the undisturbed run, as far as the run came, in spite of crashes.

        Behind them may be what calls had written when they were cut off, each with a warning that names it.
        """
        cut = [
            step.index for step in steps if any(each.startswith(_CUT.format(step.index)) for each in result.warnings)
        ]
        taken = [plain(step.detail) for step in steps if step.index not in cut]
        if [step.index for step in steps[len(taken) :]] != cut:
            self._world.report(f"the steps of {execution_id} that were cut off are {cut} of {len(steps)}, not the last")
        if taken != list(course.steps[: len(taken)]):
            self._world.report(f"the steps of {execution_id} are {taken}, undisturbed they are {course.steps}")
        if result.finish_reason is course.finish_reason and (result.answer, len(taken)) != (
            course.answer,
            len(course.steps),
        ):
            self._world.report(f"{execution_id} says {result.answer!r} after {len(taken)} steps: {course}")

    def _judge_cost(self, execution_id: str, usage: Usage, question: Question) -> None:
        """Check that the cost is that of the calls; interrupted calls may add an estimate."""
        world = self._world
        if question.is_listed:
            least = sum((usage_of(prompt) for prompt in question.prompts), Usage())
        elif question.tag in world.failed:
            return
        else:
            least = courses()[question.strategy, question.config].usage
        most_calls = world.begun[question.tag]
        is_exact = usage.source is UsageSource.REPORTED
        if is_exact and usage != least:
            world.report(f"{execution_id} cost {usage}, its calls {least}")
        elif usage.model_calls > most_calls or usage.total_tokens < least.total_tokens:
            world.report(f"{execution_id} cost {usage}, its calls {least}, and {most_calls} were begun")


class _Listener(logging.Handler):
    """Records the errors that a living process logs."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Record the line, unless the process is dying, or was frozen and therefore reports a hanging task."""
        process = current_process()
        is_of_a_stop = process is not None and self._world.loop.time() - process.awake_since_s < _UNWINDING_S
        if is_of_a_stop and "left behind" in record.getMessage():
            return
        if process is None or not process.is_dead:
            error = record.exc_info[1] if record.exc_info else None
            self._world.report(f"{record.getMessage()} {error!r}")

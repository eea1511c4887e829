"""Random walks over the table of phases, on every store: every transition is one of the table."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.model import ModelFailedError
from reasond_server.runs.phase import TABLE, Phase, Trigger
from reasond_server.runs.run import Run
from reasond_server.runs.run_factory import MAX_FRUITLESS_TAKEOVERS
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import ExecutionState
from tests.napping import UNTIL_CALLED, NappingKind
from tests.unit.runs.conftest import EchoModel, ManualClock

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

LIMITS = RunnerLimits(max_concurrent=50, retention_s=1e6, lease_s=15)
NAP_S = 30.0
LATE_S = 40.0
ENDED = {
    Trigger.FINISH: ExecutionState.SUCCEEDED,
    Trigger.FAIL: ExecutionState.FAILED,
    Trigger.CANCEL: ExecutionState.CANCELLED,
}


class WatchedRun(Run):
    """Records its transitions."""

    __slots__ = ()
    moves: list[tuple[Phase, Trigger, Phase]] = []  # noqa: RUF012 - of all runs of a machine

    def advance(self, trigger: Trigger) -> bool:
        before = self.phase
        has_moved = super().advance(trigger)
        self.moves.append((before, trigger, self.phase))
        return has_moved


@dataclass(eq=False)
class Expected:
    """The expected state of one execution."""

    naps: list[float]
    phase: Phase = Phase.WORKING
    steps: int = 0
    takeovers: int = 0
    """How many processes went on with it since its last step, or since one handed it over."""
    cause: Trigger | None = None
    gate: asyncio.Future[None] | None = field(default=None, repr=False)
    wakes_s: float = math.inf

    def wake(self) -> None:
        is_done = self.steps == len(self.naps)
        self.phase, self.cause = (Phase.ENDED, Trigger.FINISH) if is_done else (Phase.WORKING, None)

    @property
    def state(self) -> ExecutionState:
        if self.phase is Phase.ENDED:
            assert self.cause is not None
            return ENDED[self.cause]
        return ExecutionState.SUSPENDED if self.phase is Phase.SUSPENDED else ExecutionState.RUNNING


class Phases(RuleBasedStateMachine):
    """Processes on one store, one after the other; their work waits in each step until it is released."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.url = url
        self.time = ManualClock()
        self.expected: dict[str, Expected] = {}
        self.kind = NappingKind(now=self.time.now, do=self.stand)
        self.stores = self.do(
            open_stores(
                StoreOptions(
                    url=url,
                    data_dir=str(folder),
                    now=self.time.now,
                    monotonic=self.time.monotonic,
                    max_bytes=10**8,
                    max_agents=1,
                )
            )
        )
        self.clock = self.time.clock()
        self.runner = self.do(self.begin())
        WatchedRun.moves = []

    async def begin(self) -> Runner:
        return Runner(
            store=self.stores.executions, model=EchoModel(), clock=self.clock, limits=LIMITS, kinds=[self.kind]
        )

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(work)

    async def expire_leases(self) -> None:
        """Let the leases expire, also those that the database checks by its own clock."""
        if self.url.startswith("postgres"):
            async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
                await connection.execute("UPDATE executions SET lease_until = lease_until - 3600")

    async def stand(self, run: Run, number: int) -> None:
        """Wait for the release."""
        known = self.expected.setdefault(run.identity.execution_id, Expected(naps=list(run.work.describe()["naps"])))
        assert number == known.steps
        known.gate = asyncio.get_running_loop().create_future()
        await known.gate

    async def until_standing(self, name: str) -> None:
        """Wait until the work of an execution waits in a step, or has ended."""
        while True:
            run, known = self.runner.find_live(name), self.expected.get(name)
            if run is None or (known is not None and known.gate is not None and not known.gate.done()):
                break
            await asyncio.sleep(0.001)
        if run is not None:
            run.__class__ = WatchedRun  # to see how it moves
            await run.log.flush()

    async def look(self) -> None:
        """Let the upkeep recover executions; a process that was late recovers them in its second round."""
        for known in self.expected.values():
            if known.phase is Phase.SUSPENDED and known.wakes_s <= self.time.monotonic():
                known.wake()
            if known.phase is not Phase.WORKING:
                known.gate = None
        await self.runner._recoverer.lease_keeper.round()
        await self.runner._recoverer.lease_keeper.round()
        for name in list(self.expected):
            await self.until_standing(name)

    def draw_one(self, data: st.DataObject, *phases: Phase) -> tuple[str, Expected]:
        name = data.draw(st.sampled_from(sorted(one for one, known in self.expected.items() if known.phase in phases)))
        return name, self.expected[name]

    def has(self, *phases: Phase) -> bool:
        return any(known.phase in phases for known in self.expected.values())

    @rule(naps=st.lists(st.sampled_from([0.0, NAP_S, UNTIL_CALLED]), min_size=1, max_size=4))
    def start(self, naps: list[float]) -> None:
        """Start an execution."""

        async def start() -> None:
            execution = await self.runner.start(self.kind.create(naps))
            await self.until_standing(execution.execution_id)

        self.do(start())

    @precondition(lambda self: self.has(Phase.WORKING))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Let one execution take its step: it continues, suspends or finishes."""
        name, known = self.draw_one(data, Phase.WORKING)

        async def step() -> None:
            gate, known.gate = known.gate, None
            assert gate is not None
            nap = known.naps[known.steps]
            known.steps += 1
            known.takeovers = 0
            if nap or known.steps == len(known.naps):
                known.phase, known.cause = (Phase.SUSPENDED, None) if nap else (Phase.ENDED, Trigger.FINISH)
            known.wakes_s = math.inf if nap == UNTIL_CALLED else self.time.monotonic() + nap
            run = self.runner.find_live(name)
            assert run is not None
            gate.set_result(None)
            if known.phase is Phase.WORKING:
                await self.until_standing(name)
            else:
                await run.wait_for_end()
                assert run.phase is known.phase

        self.do(step())

    @precondition(lambda self: self.has(Phase.WORKING))
    @rule(data=st.data(), trigger=st.sampled_from([Trigger.FAIL, Trigger.CANCEL]))
    def end(self, data: st.DataObject, trigger: Trigger) -> None:
        """Let one execution fail, or cancel it."""
        name, known = self.draw_one(data, Phase.WORKING)

        async def end() -> None:
            run = self.runner.find_live(name)
            assert run is not None
            assert known.gate is not None
            if trigger is Trigger.FAIL:
                known.gate.set_exception(ModelFailedError("no"))
            else:
                run.cancel()
                run.stop(Trigger.LOSE)
            known.phase, known.cause = Phase.ENDED, trigger
            await run.wait_for_end()
            assert (run.phase, run.cause) == (Phase.ENDED, trigger)

        self.do(end())

    @precondition(lambda self: self.has(Phase.SUSPENDED))
    @rule(data=st.data(), is_cancel=st.booleans())
    def call(self, data: st.DataObject, *, is_cancel: bool) -> None:
        """Wake a suspended execution, or cancel it."""
        name, known = self.draw_one(data, Phase.SUSPENDED)

        async def call() -> None:
            if is_cancel:
                known.phase, known.cause = Phase.ENDED, Trigger.CANCEL
                await self.runner.stop_suspended("acme", name)
                return
            known.wake()
            assert await self.runner.wake("acme", name)
            if known.phase is Phase.ENDED:
                run = self.runner.find_live(name)
                if run is not None:
                    await run.wait_for_end()
            await self.until_standing(name)

        self.do(call())

    @rule()
    def sleep(self) -> None:
        """Let the naps end."""
        self.time.advance(LATE_S)
        self.do(self.look())

    @precondition(lambda self: self.stores.executions.is_durable)
    @rule(is_killed=st.booleans())
    def change_process(self, *, is_killed: bool) -> None:
        """Replace the process, after it was killed or has handed its executions over."""

        async def change() -> None:
            runs = list(self.runner.runs.by_id.values())
            if is_killed and all(known.takeovers < MAX_FRUITLESS_TAKEOVERS for known in self.expected.values()):
                for run in runs:
                    assert run.driver is not None
                    run.log.close(StoreUnavailableError("dead"))
                    run.driver.cancel()
                    await asyncio.wait([run.driver])
            else:
                for known in self.expected.values():
                    known.takeovers = 0
                await self.runner.stop()
                assert all((run.phase, run.cause) == (Phase.LEFT, Trigger.HAND_OVER) for run in runs)
            for known in self.expected.values():
                known.gate = None
                known.takeovers += 1
            self.runner = await self.begin()
            self.time.advance(LIMITS.lease_s + 1)
            await self.expire_leases()
            await self.look()

        self.do(change())

    @invariant()
    def every_execution_is_as_expected(self) -> None:
        for name, known in self.expected.items():
            found = self.do(self.stores.executions.find("acme", name))
            assert found.state is known.state, name
            assert found.last_sequence == 1 + known.steps + (known.phase is Phase.ENDED), name
            run = self.runner.find_live(name)
            assert (run is None) is (known.phase is not Phase.WORKING), name
            assert run is None or run.phase is Phase.WORKING

    @invariant()
    def every_move_is_one_of_the_table(self) -> None:
        for before, trigger, after in WatchedRun.moves:
            assert TABLE[before].get(trigger, before) is after

    def teardown(self) -> None:
        self.do(self.runner.stop())
        self.do(self.stores.aclose())
        self.loop.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_every_transition_is_one_of_the_table(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    numbers = iter(range(10**6))
    url = request.getfixturevalue("postgres_url") if store == "postgres" else ""

    def begin() -> Phases:
        if not url:
            return Phases("memory:" if store == "memory" else f"sqlite:///{tmp_path}/{next(numbers)}.db", tmp_path)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("TRUNCATE executions, entries, claims, forgotten, agents, payloads")
        return Phases(url, tmp_path)

    run_state_machine_as_test(
        begin,  # type: ignore[arg-type]  # any factory is accepted
        settings=settings(
            max_examples=15,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )

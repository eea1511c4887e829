"""Assembles one server process of a simulation: the real runner and service on a simulated world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasond_server.agents.directory import AgentDirectory
from reasond_server.base.clock import Clock, encode_nonce
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.service import Policy, ReasoningService
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.tools.execution import Tools as ToolSources
from reasond_server.turns.turn_service import TurnService
from reasond_server.turns.turn_work import TurnKind
from tests.simulation.questions import STRATEGIES, SlowPrograms
from tests.simulation.repairs import SimulatedRepairs
from tests.simulation.turn_scripts import CountedLimits, make_tools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.eventlog.store import ExecutionStore
    from tests.napping import NappingKind
    from tests.simulation.processes import Process
    from tests.simulation.turn_scripts import CountedPermit
    from tests.simulation.world import Tools, Upstream, World

LEASE_S = 15.0
_SLOWEST_CLOCK = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A runner and the service in front of it."""

    runner: Runner
    service: ReasoningService
    napping: NappingKind
    turns: TurnService
    repairs: SimulatedRepairs
    permits: Mapping[CountedPermit, None]

    async def start(self) -> None:
        """Start the upkeep."""
        self.runner.begin()

    async def stop(self) -> None:
        """Drain, as after SIGTERM, and release all resources."""
        await self.runner.drain(grace_s=5.0)


def assemble(
    world: World, store: ExecutionStore, model: Upstream, tools: Tools, *, process: Process, napping: NappingKind
) -> Parts:
    """Return the parts of `process`."""
    chance = random.Random(f"{world.seed} {process.name}")  # noqa: S311 - a seeded, repeatable sequence
    # Clocks of different processes run at slightly different rates.
    rate = chance.uniform(1 - _SLOWEST_CLOCK, 1 + _SLOWEST_CLOCK)
    clock = Clock(
        now=world.loop.now,
        monotonic=lambda: rate * world.loop.time(),
        new_id=lambda: world.new_id("e"),
        new_nonce=lambda: encode_nonce(chance.getrandbits(130)),
        random=chance.random,
    )
    registry = StrategyRegistry(STRATEGIES)
    kind = ReasoningKind(
        clock=clock,
        tools=tools,
        programs=SlowPrograms(),
        find_strategy=registry.get,
        models=OfferedModels(model),
    )
    limits: Any = CountedLimits(world)
    sources = ToolSources(tools=make_tools(world, process))
    turn_kind = TurnKind(clock=clock, store=store, tools=sources, policy=world.turns.policy)
    repairs = SimulatedRepairs(world, process, clock)
    runner = Runner(
        store=store,
        model=model,
        clock=clock,
        limits=RunnerLimits(
            max_concurrent=chance.choice((2, 8, 8)),
            retention_s=world.retention_s,
            max_queued=chance.choice((0, 4)),
            queue_timeout_s=5.0,
            lease_s=LEASE_S,
            reattach_s=30.0,
        ),
        kinds=[kind, napping, turn_kind, repairs],
        carry_over=limits.carry_over,
    )
    service = ReasoningService(
        registry=registry,
        configuration=StrategyConfiguration(registry=registry, tables={}),
        directory=AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=1, now=world.loop.now),
        store=store,
        runner=runner,
        # The same clients read every kind of work.
        desk=ExecutionDesk(
            store=store,
            runner=runner,
            follower=Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=10.0),
            kind="",
            require_use=lambda _caller, _execution: None,
        ),
        kind=kind,
        clock=clock,
        policy=Policy(default_strategy="listed"),
    )
    turns = _serve_turns(world, store, runner=runner, kind=turn_kind, clock=clock, sources=sources, limits=limits)
    return Parts(runner=runner, service=service, napping=napping, turns=turns, repairs=repairs, permits=limits.held)


def _serve_turns(
    world: World,
    store: ExecutionStore,
    *,
    runner: Runner,
    kind: TurnKind,
    clock: Clock,
    sources: ToolSources,
    limits: Any,
) -> TurnService:
    return TurnService(
        store=store,
        runner=runner,
        desk=ExecutionDesk(
            store=store,
            runner=runner,
            follower=Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=20.0),
            kind=kind.kind,
            require_use=lambda _caller, _execution: None,
        ),
        kind=kind,
        policy=world.turns.policy,
        clock=clock,
        tool_names=lambda: sources.names,
        limits=limits,
    )

"""Assembles the core: model, strategies, store, runner, agents and the services, without any listener."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.access.permissions import (
    EXECUTE_TURNS,
    READ_EXECUTIONS,
    READ_TURNS,
    Operation,
    require_permission,
    require_repairs,
    require_strategy,
)
from reasond_server.assembly.backends import build_tools
from reasond_server.assembly.limit_backend import audited_account
from reasond_server.assembly.stores import MEMORY_URL, StoreOptions, Stores, open_memory_stores, open_stores
from reasond_server.base.clock import Clock
from reasond_server.eventlog.contract import TenantShare
from reasond_server.eventlog.writer import tell_nobody
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.llm.wrapped_models import PreferredModels
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry, check_tables, discover
from reasond_server.reasoning.run_tools import SandboxPrograms
from reasond_server.reasoning.service import Policy, ReasoningService
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import REASONING, ReasoningKind
from reasond_server.repair.service.repair_service import RepairService
from reasond_server.repair.service.repair_work import REPAIR, RepairKind
from reasond_server.repair.service.workbench import Workshop
from reasond_server.requests.task_checks import HistoryBounds
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.sandbox.levels import UnavailableSandbox
from reasond_server.snapshots.manifests import SnapshotLimits
from reasond_server.snapshots.snapshot_keeper import SnapshotKeeper
from reasond_server.snapshots.snapshot_store import SnapshotQuota, SnapshotStore
from reasond_server.storage.store_clock import Steadiness
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.turns.history import TURN
from reasond_server.turns.providers import INSTALLED_PROVIDERS
from reasond_server.turns.turn_service import TurnService
from reasond_server.turns.turn_work import TurnKind
from reasond_server.types.tasks import MeasuredChoice
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reasond_server.agents.directory import AgentDirectory
    from reasond_server.config import Settings
    from reasond_server.eventlog.store import Append, ExecutionStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.service.engine import RepairEngine
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.tools.execution import Tools
    from reasond_server.types import Execution, Principal

_CLOSED: Final = Workshop(
    sandbox=UnavailableSandbox("repairs are not offered"),
    workspaces=None,
    environments={},
    permits=asyncio.Semaphore(1),
)


def make_system_clock() -> Clock:
    """Return the real clock and random ids of 32 hexadecimal digits."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
    return Clock(
        now=partial(datetime.now, UTC),
        monotonic=time.monotonic,
        new_id=lambda: os.urandom(16).hex(),
        elapsed=None if boot_clock is None else partial(time.clock_gettime, boot_clock),
    )


@value
class Core:
    """All parts that do not depend on a transport.

    `executions` is the desk of tasks, which lists and ends repairs too; `observed` finds executions of every
    kind for callers who read, `used` for those who cancel and delete.
    """

    reasoning: ReasoningService
    executions: ExecutionDesk
    observed: ExecutionDesk
    used: ExecutionDesk
    directory: AgentDirectory
    runner: Runner
    registry: StrategyRegistry
    tools: Tools
    turns: TurnService
    repairs: RepairService


@value
class _Desks:
    tasks: ExecutionDesk
    turns: ExecutionDesk
    repairs: ExecutionDesk
    observed: ExecutionDesk
    used: ExecutionDesk


def build_registry(settings: Settings) -> StrategyRegistry:
    """Return the strategies that are installed and enabled.

    Raises:
        SettingsError: a strategy cannot be loaded, or its table is not valid.
    """
    check_tables(settings.reasoning.strategies)
    return discover(settings.reasoning.enabled_strategies)


async def open_chosen_stores(settings: Settings, *, clock: Clock, dev: bool) -> Stores:
    """Open the configured stores; with `dev` and no address they are in memory.

    Raises:
        SettingsError: the database cannot be used.
    """
    options = _store_options_of(settings, clock)
    return await open_stores(replace(options, url=MEMORY_URL) if dev and not options.url else options)


def _store_options_of(settings: Settings, clock: Clock) -> StoreOptions:
    store, agents = settings.store, settings.agents
    return StoreOptions(
        url=store.url,
        data_dir=store.data_dir,
        now=clock.now,
        monotonic=clock.monotonic,
        asks_database_time=True,
        steadiness=Steadiness(elapsed=clock.elapsed, hold_s=store.clock_hold_s),
        tenant_share=TenantShare(share=store.tenant_share, waiting=store.tenant_waiting, max_bytes=store.tenant_bytes),
        max_bytes=store.max_bytes,
        max_agents=agents.max_agents,
        max_agents_per_tenant=agents.max_agents_per_tenant,
        synchronous=store.synchronous,
        max_file_bytes=store.max_file_bytes,
        snapshot_quota=SnapshotQuota(max_bytes=settings.repair.snapshot_quota_bytes),
        stores_content=store.record_content,
    )


def _build_limits(settings: Settings) -> RunnerLimits:
    performance, store = settings.reasoning.performance, settings.store
    return RunnerLimits(
        max_concurrent=performance.max_concurrent_requests,
        max_queued=performance.max_queued_requests,
        queue_timeout_s=performance.queue_timeout_ms / 1000,
        retention_s=store.retention_s,
        tenant_retention_s=store.tenant_retention_s,
        lease_s=store.lease_s,
        reattach_s=store.reattach_s,
        records_content=store.record_content,
        records_prompts=store.record_prompts,
    )


def assemble(
    settings: Settings,
    *,
    model: ChatModel,
    registry: StrategyRegistry | None = None,
    clock: Clock | None = None,
    store: ExecutionStore | None = None,
    directory: AgentDirectory | None = None,
    snapshots: SnapshotStore | None = None,
    limits: CallerLimits = NO_LIMITS,
    tools: Tools | None = None,
    observer: Observer = UNOBSERVED,
    tracing: Tracing | None = None,
    backends: Mapping[str, ChatModel] | None = None,
    workshop: Workshop | None = None,
    engine: RepairEngine | None = None,
    tell: Callable[[Append], Append] = tell_nobody,
) -> Core:
    """Assemble the core from `settings`; `registry` and `tools` replace the discovery by entry points.

    `engine` works repairs out elsewhere. `backends` are the models that tasks, modes of turns and [repair] may name.
    `workshop` is where checks of repairs and programs of models run; without one no code is run. `tell` adds to what is
    appended whom it is told.

    Tool servers are not connected before `Core.tools` is started.

    `store`, `directory` and `snapshots` are the opened stores of the settings; one that is left out is in memory.

    Raises:
        SettingsError: a strategy or a tool cannot be loaded, or its table is not valid.
    """
    clock = clock or make_system_clock()
    registry = build_registry(settings) if registry is None else registry
    tools = build_tools(settings.tools, observer=observer) if tools is None else tools
    if store is None or snapshots is None or directory is None:
        in_memory = open_memory_stores(replace(_store_options_of(settings, clock), now=clock.expiry_now))
        store, snapshots = store or in_memory.executions, snapshots or in_memory.snapshots
        directory = directory or in_memory.agents
    models = _build_offered_models(settings, model, backends := backends or {})
    programs = _build_programs(settings, workshop, observer=observer)
    kind = ReasoningKind(clock=clock, tools=tools, programs=programs, find_strategy=registry.get, models=models)
    turn_kind = _build_turn_kind(settings, kind, store=store, tools=tools, backends=backends, observer=observer)
    repair_kind = _build_repair_kind(
        settings, clock, snapshots, workshop or _CLOSED, backends, engine=engine, observer=observer
    )
    runner = Runner(
        store=store,
        model=models.own,
        clock=clock,
        limits=_build_limits(settings),
        kinds=[kind, turn_kind, repair_kind],
        account_of=partial(audited_account, limits),
        carry_over=limits.carry_over,
        observer=observer,
        tracing=tracing,
        sweep=lambda limit: snapshots.sweep(now=clock.expiry_now(), limit=limit),
        tell=tell,
    )
    desks = _build_desks(settings, store=store, runner=runner, clock=clock)
    return Core(
        reasoning=_assemble_reasoning(settings, kind, registry, directory, desk=desks.tasks, limits=limits),
        executions=desks.tasks,
        observed=desks.observed,
        used=desks.used,
        turns=_assemble_turns(settings, turn_kind, desks.turns, clock=clock, tools=tools, limits=limits),
        repairs=RepairService(runner=runner, desk=desks.repairs, kind=repair_kind, limits=limits),
        directory=directory,
        runner=runner,
        registry=registry,
        tools=tools,
    )


def _build_offered_models(settings: Settings, own: ChatModel, backends: Mapping[str, ChatModel]) -> OfferedModels:
    """Return the models that tasks may name, each with the fallbacks of [llm]."""

    def add_fallbacks(model: ChatModel, name: str = "") -> ChatModel:
        others = [backends[each] for each in settings.llm.fallbacks if each in backends and each != name]
        return PreferredModels([model, *others]) if others else model

    offered = [name for name in settings.llm.offered if name in backends]
    return OfferedModels(add_fallbacks(own), {name: add_fallbacks(backends[name], name) for name in offered})


def _assemble_reasoning(
    settings: Settings,
    kind: ReasoningKind,
    registry: StrategyRegistry,
    directory: AgentDirectory,
    *,
    desk: ExecutionDesk,
    limits: CallerLimits,
) -> ReasoningService:
    return ReasoningService(
        registry=registry,
        configuration=StrategyConfiguration(
            registry=registry, tables=settings.reasoning.strategies, model=kind.models.own
        ),
        directory=directory,
        store=desk.store,
        runner=desk.runner,
        desk=desk,
        kind=kind,
        clock=kind.clock,
        policy=Policy(
            default_strategy=settings.reasoning.effective_default_strategy or "",
            is_auto_enabled=settings.reasoning.auto,
            choices={
                form: MeasuredChoice(strategy=each.strategy, config=each.config, why=each.why)
                for form, each in settings.reasoning.choices.items()
            },
            selection_timeout_s=settings.reasoning.performance.strategy_selection_timeout_ms / 1000,
            history=_bound_history(settings),
        ),
        limits=limits,
    )


def _bound_history(settings: Settings) -> HistoryBounds:
    own = settings.server
    return HistoryBounds(max_messages=own.max_history_messages, max_bytes=own.max_history_bytes)


def _build_programs(settings: Settings, workshop: Workshop | None, *, observer: Observer) -> ProgramRunner:
    """Return what runs programs of models, in the environment that the settings name; nothing without a sandbox."""
    name = settings.reasoning.program_environment
    if not name or workshop is None or workshop.workspaces is None:
        return NO_PROGRAMS
    return SandboxPrograms(
        sandbox=workshop.sandbox,
        workspaces=workshop.workspaces,
        environment=workshop.environments[name],
        permits=workshop.permits,
        observer=observer,
    )


def _build_turn_kind(
    settings: Settings,
    kind: ReasoningKind,
    *,
    store: ExecutionStore,
    tools: Tools,
    backends: Mapping[str, ChatModel],
    observer: Observer,
) -> TurnKind:
    return TurnKind(
        clock=kind.clock,
        store=store,
        tools=tools,
        policy=settings.turns,
        records_content=settings.store.record_content,
        providers=INSTALLED_PROVIDERS.load(settings.turns.context_providers),
        backends=backends,
        # Schemas of tasks and of turns are compiled one at a time together.
        schemas=kind.schemas,
        observer=observer,
    )


def _build_repair_kind(
    settings: Settings,
    clock: Clock,
    snapshots: SnapshotStore,
    workshop: Workshop,
    backends: Mapping[str, ChatModel],
    *,
    engine: RepairEngine | None,
    observer: Observer,
) -> RepairKind:
    return RepairKind(
        clock=clock,
        policy=settings.repair,
        records_content=settings.store.record_content,
        snapshots=build_snapshot_keeper(settings, clock, snapshots),
        workshop=workshop,
        model=find_preferred_model(settings, backends),
        engine=engine,
        observer=observer,
    )


def build_snapshot_keeper(settings: Settings, clock: Clock, snapshots: SnapshotStore) -> SnapshotKeeper:
    """Return what keeps the code of repairs."""
    repair = settings.repair
    return SnapshotKeeper(
        store=snapshots,
        limits=SnapshotLimits(
            max_bytes=repair.max_snapshot_bytes,
            max_files=repair.max_snapshot_files,
            # Whoever goes on with a repair after a crash reads its snapshot again.
            retention_s=max(repair.snapshot_retention_s, 2 * repair.max_active_s),
        ),
        now=clock.expiry_now,
    )


def find_preferred_model(settings: Settings, backends: Mapping[str, ChatModel]) -> ChatModel | None:
    """Return the model of repairs; None if it is that of the server."""
    preferred = [backends[name] for name in settings.repair.model_preference if name in backends]
    return PreferredModels(preferred) if preferred else None


def _assemble_turns(
    settings: Settings,
    kind: TurnKind,
    desk: ExecutionDesk,
    *,
    clock: Clock,
    tools: Tools,
    limits: CallerLimits,
) -> TurnService:
    return TurnService(
        store=desk.store,
        runner=desk.runner,
        desk=desk,
        kind=kind,
        policy=kind.policy,
        clock=clock,
        tool_names=lambda: tools.names,
        limits=limits,
        history=_bound_history(settings),
        observer=kind.observer,
    )


def _build_desks(settings: Settings, *, store: ExecutionStore, runner: Runner, clock: Clock) -> _Desks:
    follower = Follower(
        store=store,
        runner=runner,
        clock=clock,
        heartbeat_interval_s=settings.server.heartbeat_interval_s,
        flush_interval_s=settings.server.delta_flush_ms / 1000,
    )
    desk_of = partial(ExecutionDesk, store=store, runner=runner, follower=follower)
    return _Desks(
        tasks=desk_of(kind=REASONING, or_kind=REPAIR, require_use=_require_use),
        turns=desk_of(kind=TURN, require_use=_allow_use),
        repairs=desk_of(kind=REPAIR, require_use=_allow_use),
        observed=desk_of(kind="", require_use=_require_reading),
        used=desk_of(kind="", require_use=_require_use),
    )


def _require_use(caller: Principal, execution: Execution) -> None:
    """Refuse a caller who may not use the strategy of the task, or may not repair or use turns."""
    if execution.kind == TURN:
        require_permission(caller, Operation(name="CancelTurn", permission=EXECUTE_TURNS))
    elif execution.kind == REPAIR:
        require_repairs(caller)
    else:
        require_strategy(caller, execution.strategy)


def _require_reading(caller: Principal, execution: Execution) -> None:
    """Refuse a caller who may not read executions of this kind."""
    permission = READ_TURNS if execution.kind == TURN else READ_EXECUTIONS
    require_permission(caller, Operation(name="FollowExecution", permission=permission))


def _allow_use(_caller: Principal, _execution: Execution) -> None:
    """Allow every caller of the service to use its own executions."""

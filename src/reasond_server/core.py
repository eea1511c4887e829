"""The core put together: model, strategies, store, runner, agents and the two services, without any listener."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reasond_server.agents.directory import MemoryAgentDirectory
from reasond_server.executions.memory import MemoryExecutionStore
from reasond_server.executions.runner import Clock, Runner
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import check_tables, discover
from reasond_server.reasoning.service import Policy, ReasoningService
from reasond_server.toolsets import tools_of

if TYPE_CHECKING:
    from reasond_server.agents.directory import AgentDirectory
    from reasond_server.config import Settings
    from reasond_server.llm.model import ChatModel
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.tools.source import Tools


def system_clock() -> Clock:
    """Return the real clock and random ids."""
    return Clock(now=lambda: datetime.now(UTC), monotonic=time.monotonic, new_id=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Everything that works, whoever calls it."""

    reasoning: ReasoningService
    directory: AgentDirectory
    runner: Runner
    registry: StrategyRegistry
    tools: Tools


def assemble(
    settings: Settings,
    *,
    model: ChatModel,
    registry: StrategyRegistry | None = None,
    clock: Clock | None = None,
    tools: Tools | None = None,
) -> Core:
    """Put the core together as `settings` say; `registry` and `tools` replace the discovery by entry points.

    Tool servers are not connected before `Core.tools` is started.

    Raises:
        SettingsError: a strategy or a tool cannot be loaded, or its table does not work.
    """
    clock = clock or system_clock()
    tables = settings.reasoning.strategies
    # A registry that is handed in knows strategies that are not installed, and whose tables are as good.
    if registry is None:
        check_tables(tables)
        registry = discover(settings.reasoning.enabled_strategies)
    tools = tools_of(settings.tools) if tools is None else tools
    store = MemoryExecutionStore(
        max_executions=settings.store.max_executions, max_bytes=settings.store.max_bytes, now=clock.now
    )
    performance = settings.reasoning.performance
    runner = Runner(
        store=store,
        model=model,
        clock=clock,
        max_concurrent=performance.max_concurrent_requests,
        retention_s=settings.store.retention_s,
        tools=tools,
    )
    directory = MemoryAgentDirectory(max_agents=settings.agents.max_agents, now=clock.now)
    reasoning = ReasoningService(
        registry=registry,
        configuration=StrategyConfiguration(registry=registry, tables=tables),
        directory=directory,
        store=store,
        runner=runner,
        model=model,
        clock=clock,
        policy=Policy(
            default_strategy=settings.reasoning.effective_default_strategy or "",
            heartbeat_interval_s=settings.server.heartbeat_interval_s,
            flush_interval_s=settings.server.delta_flush_ms / 1000,
            selection_timeout_s=performance.strategy_selection_timeout_ms / 1000,
        ),
    )
    return Core(reasoning=reasoning, directory=directory, runner=runner, registry=registry, tools=tools)

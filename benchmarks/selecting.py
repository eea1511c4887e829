"""The time to select a strategy and resolve its parameters, with many strategies and agents: for startup.py."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from reasond_server.agents.cards import parse_card
from reasond_server.agents.directory import AgentDirectory
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import SelectionInputs, select
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.strategies.chain_of_thought import ChainOfThought

STRATEGIES: Final = 100
AGENTS: Final = 1000
TENANT: Final = "bench"
# Each agent offers all strategies, and the request needs the last one.
_CHOICES: Final = 1000


def _strategies() -> list[ChainOfThought]:
    return [type(f"Strategy{number}", (ChainOfThought,), {"name": f"s{number:03d}"})() for number in range(STRATEGIES)]


async def _directory() -> AgentDirectory:
    """Return a directory in memory that is full of agents."""
    directory = AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=AGENTS, now=lambda: datetime.now(UTC))
    offered = ", ".join(f'"reasoning.strategy.s{number:03d}"' for number in range(STRATEGIES))
    card = parse_card(f'{{"capabilities": [{offered}]}}', max_bytes=65_536)
    for number in range(AGENTS):
        await directory.register(tenant=TENANT, agent_id=f"a{number}", parsed=card)
    return directory


async def selections_ms(times: int) -> list[float]:
    """Return the mean milliseconds of one selection, `times` times: look-up of the agent, choice and parameters."""
    registry = StrategyRegistry(_strategies())
    configuration = StrategyConfiguration(registry=registry, tables={})
    directory = await _directory()
    last = f"s{STRATEGIES - 1:03d}"
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        for number in range(_CHOICES):
            agent = await directory.get(tenant=TENANT, agent_id=f"a{number % AGENTS}")
            selection = select(SelectionInputs(requested=last, offered=agent.strategies), registry)
            configuration.resolve(selection.strategy, request={"temperature": 0.5})
        taken.append(1000 * (time.perf_counter() - begun) / _CHOICES)
    return taken


def measured_ms(times: int) -> list[float]:
    """Run `selections_ms` in a new event loop."""
    return asyncio.run(selections_ms(times))

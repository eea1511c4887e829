"""The JSON-RPC methods: which operation each one is, what it takes, and what it asks of the core."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reasond_server.http_api.params import (
    ExecuteParams,
    ExecutionParams,
    GetCardParams,
    ListAgentsParams,
    ListExecutionsParams,
    NoParams,
    Params,
)
from reasond_server.wire.json_mapping import (
    agent_json,
    card_json,
    execution_json,
    result_json,
    strategy_json,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.agents.service import AgentService
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import Principal

METHODS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "agent.get_card": "GetAgentCard",
        "agent.list": "ListAgents",
        "executions.cancel": "CancelExecution",
        "executions.delete": "DeleteExecution",
        "executions.get": "GetExecution",
        "executions.list": "ListExecutions",
        "reasoning.bounded_context": "Reason",
        "reasoning.chain_of_thought": "Reason",
        "reasoning.execute": "Reason",
        "reasoning.list_strategies": "ListStrategies",
        "reasoning.react": "Reason",
    }
)
"""Every method with the operation that its permission is asked for, named as the RPC that does the same."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {f"reasoning.{strategy}": strategy for strategy in ("bounded_context", "chain_of_thought", "react")}
)
"""Methods that stand for one strategy each, installed or not (seed 000 FR-6.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: what it takes and what it does; `alias` is the strategy that its name stands for."""

    params: type[Params]
    run: Callable[[Principal, Any], Awaitable[dict[str, Any]]]
    alias: str | None = None
    can_stream: bool = False


class Methods:
    """The methods by name, all of METHODS."""

    def __init__(self, *, service: ReasoningService, agents: AgentService) -> None:
        self.service = service
        self._agents = agents
        self._methods = {
            "agent.get_card": Method(params=GetCardParams, run=self._get_card),
            "agent.list": Method(params=ListAgentsParams, run=self._list_agents),
            "executions.cancel": Method(params=ExecutionParams, run=self._cancel),
            "executions.delete": Method(params=ExecutionParams, run=self._delete),
            "executions.get": Method(params=ExecutionParams, run=self._get),
            "executions.list": Method(params=ListExecutionsParams, run=self._list),
            "reasoning.execute": self._executing(None),
            "reasoning.list_strategies": Method(params=NoParams, run=self._list_strategies),
            **{name: self._executing(strategy) for name, strategy in ALIASES.items()},
        }

    def get(self, name: str) -> Method | None:
        """Return the method called `name`, if there is one."""
        return self._methods.get(name)

    def _executing(self, alias: str | None) -> Method:
        """Return the method that executes with the strategy `alias`, or with any."""

        async def run(caller: Principal, params: ExecuteParams) -> dict[str, Any]:
            params.refuse_stream_options()
            view = await self.service.execute(caller, params.task(alias), request_id=params.request_id or "")
            return result_json(view.result, view.steps)

        return Method(params=ExecuteParams, run=run, alias=alias, can_stream=True)

    async def _list_strategies(self, _caller: Principal, _params: NoParams) -> dict[str, Any]:
        return {
            "strategies": [strategy_json(info) for info in self.service.strategies()],
            "model": self.service.model_name,
            "warnings": list(self.service.model_warnings),
        }

    async def _get(self, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
        view = await self.service.get(caller, params.execution_id)
        return {"execution": execution_json(view.execution), "reasoning": result_json(view.result, view.steps)}

    async def _cancel(self, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
        return {"execution": execution_json(await self.service.cancel(caller, params.execution_id))}

    async def _list(self, caller: Principal, params: ListExecutionsParams) -> dict[str, Any]:
        page = await self.service.list_executions(
            caller,
            strategy=params.strategy,
            finish_reason=params.finish_reason,
            page_size=params.page_size,
            page_token=params.page_token,
        )
        return {
            "executions": [execution_json(execution) for execution in page.executions],
            "next_page_token": page.next_page_token,
        }

    async def _delete(self, caller: Principal, params: ExecutionParams) -> dict[str, Any]:
        await self.service.delete(caller, params.execution_id)
        return {}

    async def _get_card(self, caller: Principal, params: GetCardParams) -> dict[str, Any]:
        return card_json(await self._agents.get_card(caller, params.agent_id))

    async def _list_agents(self, caller: Principal, params: ListAgentsParams) -> dict[str, Any]:
        page = await self._agents.list(
            caller, capabilities=params.capabilities, page_size=params.page_size, page_token=params.page_token
        )
        return {"agents": [agent_json(agent) for agent in page.agents], "next_page_token": page.next_page_token}

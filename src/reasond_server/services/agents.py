"""AgentService: the agent card of this server, and the directory of agents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE, WRITE_AGENTS
from reasond_server.grpc_api.agent_servicer import AgentServicer
from reasond_server.http_api.http_calls import Method
from reasond_server.http_api.json_mapping import agent_json, card_json
from reasond_server.http_api.params import GetCardParams, ListAgentsParams
from reasond_server.services.declaration import Service, ServiceDeclaration

if TYPE_CHECKING:
    from reasond_server.agents.agent_service import AgentService
    from reasond_server.types import Principal

DECLARATION: Final = ServiceDeclaration(
    name="reasond.v1.AgentService",
    permissions={
        "GetAgentCard": EXECUTE,
        "ListAgents": EXECUTE,
        "RegisterAgent": WRITE_AGENTS,
        "DeleteAgent": WRITE_AGENTS,
    },
    methods={"agent.get_card": "GetAgentCard", "agent.list": "ListAgents"},
)


def serve_agents(service: AgentService) -> Service:
    """Return AgentService for both transports."""
    get_card = Method(
        operation=DECLARATION.operation("GetAgentCard"), params=GetCardParams, run=partial(_get_card, service)
    )
    list_agents = Method(
        operation=DECLARATION.operation("ListAgents"), params=ListAgentsParams, run=partial(_list_agents, service)
    )
    return Service(
        declaration=DECLARATION,
        register=AgentServicer(service=service).register,
        methods={"agent.get_card": get_card, "agent.list": list_agents},
    )


async def _get_card(service: AgentService, caller: Principal, params: GetCardParams) -> dict[str, Any]:
    return card_json(await service.get_card(caller, params.agent_id))


async def _list_agents(service: AgentService, caller: Principal, params: ListAgentsParams) -> dict[str, Any]:
    page = await service.list(
        caller, capabilities=params.capabilities, page_size=params.page_size, page_token=params.page_token
    )
    return {"agents": [agent_json(agent) for agent in page.agents], "next_page_token": page.next_page_token}

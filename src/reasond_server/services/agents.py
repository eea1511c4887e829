"""AgentService: the agent card of this server, and the directory of agents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import EXECUTE, WRITE_AGENTS
from reasond_server.grpc_api.agent_servicer import AgentServicer
from reasond_server.http_api.json_mapping import build_agent_json, build_kind_json
from reasond_server.http_api.params import GetCardParams, ListAgentsParams
from reasond_server.services.declaration import Service, ServiceDeclaration

if TYPE_CHECKING:
    from reasond_server.agents.directory import AgentService
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


def build_agent_service(service: AgentService) -> Service:
    """Return AgentService for both transports."""
    return Service(
        declaration=DECLARATION,
        register=AgentServicer(service=service).register,
        methods={
            "agent.get_card": DECLARATION.method("agent.get_card", GetCardParams, partial(_get_card, service)),
            "agent.list": DECLARATION.method("agent.list", ListAgentsParams, partial(_list_agents, service)),
        },
    )


async def _get_card(service: AgentService, caller: Principal, params: GetCardParams) -> dict[str, Any]:
    return build_kind_json(await service.get_card(caller, params.agent_id))


async def _list_agents(service: AgentService, caller: Principal, params: ListAgentsParams) -> dict[str, Any]:
    page = await service.list(
        caller, capabilities=params.capabilities, page_size=params.page_size, page_token=params.page_token
    )
    return {"agents": [build_agent_json(agent) for agent in page.agents], "next_page_token": page.next_page_token}

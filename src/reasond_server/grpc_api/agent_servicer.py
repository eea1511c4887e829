"""AgentService over gRPC: converts requests, calls the directory, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import json_format

from reasond.v1 import agent_card_pb2, agent_service_pb2_grpc
from reasond.v1 import agent_service_pb2 as pb
from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import timestamp
from reasond_server.grpc_api.requests import invalid, read_seconds

if TYPE_CHECKING:
    from reasond_server.agents.directory import AgentService, RegisteredAgent
    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.types import Json


class AgentServicer(agent_service_pb2_grpc.AgentServiceServicer):
    """Serves `reasond.v1.AgentService` from the directory of agents."""

    def __init__(self, *, service: AgentService) -> None:
        self._service = service

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def GetAgentCard(self, request: pb.GetAgentCardRequest, context: Context) -> pb.GetAgentCardResponse:
        """Return the card of this server or of a registered agent."""
        found = await self._service.get_card(get_current_principal(), request.agent_id)
        return pb.GetAgentCardResponse(
            card=build_card_message(found.card),
            card_json=found.card_json,
            etag=found.etag,
            supported_methods=found.supported_methods,
            capabilities=found.capabilities,
        )

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        """List registered agents by id."""
        page = await self._service.list(
            get_current_principal(),
            capabilities=tuple(request.capabilities),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListAgentsResponse(agents=map(build_agent_message, page.agents), next_page_token=page.next_page_token)

    async def RegisterAgent(self, request: pb.RegisterAgentRequest, context: Context) -> pb.RegisterAgentResponse:
        """Register an agent or replace its card."""
        agent = await self._service.register(
            get_current_principal(),
            agent_id=request.agent_id,
            card_json=_read_card_json(request),
            ttl_s=read_seconds(request.ttl, path="ttl") if request.HasField("ttl") else None,
            etag=request.etag,
        )
        return pb.RegisterAgentResponse(agent=build_agent_message(agent))

    async def DeleteAgent(self, request: pb.DeleteAgentRequest, context: Context) -> pb.DeleteAgentResponse:
        """Remove an agent."""
        if not request.agent_id:
            raise invalid("agent_id", "is required")
        await self._service.delete(get_current_principal(), request.agent_id, etag=request.etag)
        return pb.DeleteAgentResponse()


def build_card_message(card: Json) -> agent_card_pb2.AgentCard:
    """Return a card (a JSON object with A2A's field names) as a message; fields unknown to A2A 1.0 are left out.

    If the message cannot hold the card, it gets only name, description and version, so that one odd card does
    not make a whole list fail; `card_json` always holds everything.
    """
    try:
        return json_format.ParseDict(dict(card), agent_card_pb2.AgentCard(), ignore_unknown_fields=True)
    except json_format.ParseError:
        name, description, version = (str(card.get(key, "")) for key in ("name", "description", "version"))
        return agent_card_pb2.AgentCard(name=name, description=description, version=version)


def write_card_text(card: agent_card_pb2.AgentCard) -> str:
    """Return a card as JSON text with A2A's field names.

    Raises:
        InvalidRequestError: a Struct in it holds a number that is not valid in JSON.
    """
    try:
        return json_format.MessageToJson(card, indent=None, ensure_ascii=False)
    except json_format.SerializeToJsonError:
        violation = Violation(field="card", description="must hold only what JSON can say, such as finite numbers")
        raise InvalidRequestError.of(violation) from None


def build_agent_message(agent: RegisteredAgent) -> pb.Agent:
    """Return an entry of the directory."""
    return pb.Agent(
        agent_id=agent.agent_id,
        card=build_card_message(agent.card),
        card_json=agent.card_json,
        capabilities=agent.capabilities,
        strategies=agent.strategies,
        etag=agent.etag,
        create_time=timestamp(agent.create_time),
        update_time=timestamp(agent.update_time),
        expire_time=timestamp(agent.expire_time) if agent.expire_time else None,
    )


def _read_card_json(request: pb.RegisterAgentRequest) -> str:
    source = request.WhichOneof("source")
    if source is None:
        raise invalid("card", "is required, as card or card_json")
    return request.card_json if source == "card_json" else write_card_text(request.card)

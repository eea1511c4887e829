"""A whole server in the process of a test, and unmodified clients of a2a-sdk for each of its bindings."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc
from a2a.client import ClientCallContext, ClientConfig, ClientFactory
from a2a.types import AgentCard, GetTaskRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest
from google.protobuf import json_format

from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import httpx
    from a2a.client import Client
    from a2a.types import StreamResponse, Task

    from reasond_server.llm.model import ChatModel

BINDINGS: Final = ("JSONRPC", "GRPC", "HTTP+JSON")
OWN: Final = "urn:reasond:reasoning:v1"
SEARCH: Final = {"name": "search", "description": "Searches.", "parameters": {"type": "object", "properties": {}}}


@dataclass(frozen=True, kw_only=True)
class AgentSite:
    """The card of a server, a client of HTTP with its token and version, and one of a2a-sdk for each binding."""

    token: str
    card: AgentCard
    http: httpx.AsyncClient
    clients: Mapping[str, Client]

    def context(self, *, token: str = "", version: str = "1.0", **more: str) -> ClientCallContext:
        """Return the headers of one call."""
        own = {"authorization": f"Bearer {token or self.token}", "a2a-version": version, **more}
        return ClientCallContext(timeout=180, service_parameters=own)

    async def send(
        self, binding: str, message: Message, *, context: ClientCallContext | None = None, **configuration: Any
    ) -> list[StreamResponse]:
        """Send a message, and return the updates."""
        request = SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))
        return [each async for each in self.clients[binding].send_message(request, context=context or self.context())]

    async def ask(self, binding: str, message: Message, **options: Any) -> Task:
        """Send a message, and return the task of the last update."""
        updates = await self.send(binding, message, **options)
        task_id = updates[-1].status_update.task_id or updates[-1].task.id
        return await self.get(binding, task_id)

    async def get(self, binding: str, task_id: str, **options: Any) -> Task:
        """Read a task."""
        return await self.clients[binding].get_task(GetTaskRequest(id=task_id), context=self.context(**options))


@asynccontextmanager
async def serve_agent(
    model: ChatModel | None = None, *, environ: Mapping[str, str] | None = None
) -> AsyncIterator[AgentSite]:
    """Run a server whose model answers every question with 42, unless there is another one."""
    chosen = model or FunctionModel(lambda _: "6 times 7 is 42.<answer>42</answer>")
    settings = {"REASOND__A2A__ENABLED": "true", **(environ or {})}
    async with (
        running_server(model=chosen, environ=settings) as listening,
        connect(listening.http, listening.token) as site,
    ):
        yield site


@asynccontextmanager
async def connect(url: str, token: str) -> AsyncIterator[AgentSite]:
    """Return clients of the agent whose card is at an address."""
    headers = {"authorization": f"Bearer {token}", "a2a-version": "1.0"}
    async with make_http_client(base_url=url, headers=headers) as http, make_http_client() as bare:
        found = (await http.get("/.well-known/agent-card.json")).json()
        card = json_format.ParseDict(found, AgentCard())
        clients = {
            binding: ClientFactory(
                ClientConfig(
                    httpx_client=bare,
                    grpc_channel_factory=grpc.aio.insecure_channel,
                    supported_protocol_bindings=[binding],
                )
            ).create(card)
            for binding in BINDINGS
        }
        try:
            yield AgentSite(token=token, card=card, http=http, clients=clients)
        finally:
            await clients["GRPC"].close()


def say(text: str, *, message_id: str, own: Mapping[str, Any] | None = None, **fields: Any) -> Message:
    """Return a message of the user with our own parameters in its metadata."""
    message = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)], **fields)
    if own is not None:
        message.metadata.update({OWN: own})
    return message


def settle(data: Mapping[str, Any], *, message_id: str, task_id: str) -> Message:
    """Return a message that settles calls."""
    part = json_format.ParseDict({"data": data}, Part())
    return Message(message_id=message_id, role=Role.ROLE_USER, parts=[part], task_id=task_id)


def find_calls(task: Task) -> dict[str, Any]:
    """Return the data part of a task that waits for input."""
    told: dict[str, Any] = json_format.MessageToDict(task.status.message.parts[1].data)
    return told


def read_answer(task: Task) -> str:
    """Return the text of the answer."""
    return next(each.parts[0].text for each in task.artifacts if each.artifact_id == "answer")


def read_own(carrier: Any) -> dict[str, Any]:
    """Return what A2A has no place for, of a task or an update."""
    told: dict[str, Any] = json_format.MessageToDict(carrier.metadata)[OWN]
    return told

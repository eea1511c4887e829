"""A caller's view of executions and agents over both transports, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from google.protobuf import json_format

from reasond.v1.execution_pb2 import TRACE_VIEW_FULL

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from reasond import AsyncClient

JSONRPC: Final = "/api/v1/jsonrpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller with a token: over gRPC with the client, over HTTP by hand."""

    client: AsyncClient
    http: str
    token: str

    async def call(self, method: str, **params: object) -> Any:
        """Return the result of a JSON-RPC method."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": self.token}}
        async with aiohttp.ClientSession() as session, session.post(self.http + JSONRPC, json=request) as response:
            return (await response.json())["result"]

    async def whole(self, execution_id: str, *, has_jsonrpc: bool) -> dict[str, Any]:
        """Return an execution with its whole trace and its events; with `has_jsonrpc` also its JSON-RPC form."""
        execution = await self.client.get_execution(execution_id, trace_view=TRACE_VIEW_FULL)
        told = {"execution_id": execution_id, "execution": plain(execution), "events": await self.events(execution_id)}
        if has_jsonrpc:
            told["jsonrpc"] = await self.call("executions.get", execution_id=execution_id)
        return told

    async def events(self, execution_id: str, *, until: int | None = None) -> list[Any]:
        """Return the events from the first on: all of them, or those up to the sequence `until`.

        If the stream ends with an error, return the events before it.
        """
        events: list[Any] = []
        stream = self.client.resume(execution_id, keep_running=True)
        try:
            async for event in stream:
                if event.WhichOneof("event") != "heartbeat":
                    events.append(plain(event))
                if event.sequence == until:
                    break
        except Exception:
            if not events or "completed" not in events[-1]:
                raise
        return events


def plain(message: Message) -> Any:
    """Return a message in its JSON form."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)

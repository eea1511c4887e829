"""A host of MCP tools: the unmodified client of the package `mcp`, and bare requests that no client would send."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextResourceContents

from tests.http_clients import LIMIT_S, make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from mcp_types import CallToolResult, ReadResourceResult

    from reasond_server.assembly.app import Listening
    from tests.engines.served import Served

MODERN = "2026-07-28"
TASKS = "io.modelcontextprotocol/tasks"
QUESTION = {"query": "What is 6 times 7?"}
_NAMED = {"tools/call": "name", "resources/read": "uri"}


def text_of(result: CallToolResult) -> str:
    """Return the text of a result, which is all of it."""
    (part,) = result.content
    assert part.type == "text"
    return part.text


def json_of(result: ReadResourceResult) -> Any:
    """Return what a resource holds."""
    (content,) = result.contents
    assert isinstance(content, TextResourceContents)
    return json.loads(content.text)


@asynccontextmanager
async def hosting(
    listening: Listening, *, token: str = "", mode: Any = "auto", **options: Any
) -> AsyncIterator[Client]:
    """Connect a host; with the mode "legacy" it speaks 2025-11-25."""
    headers = {"authorization": f"Bearer {token or listening.token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=LIMIT_S, verify=False) as http:
        transport = streamable_http_client(f"{listening.http}/mcp", http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


async def send(
    listening: Listening | Served,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    token: str = "",
    extensions: tuple[str, ...] = (),
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Send one request of 2026-07-28, which stands for itself."""
    told = params or {}
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {name: {} for name in extensions}},
    }
    name = told.get(_NAMED.get(method, "taskId"))
    sent = {
        "authorization": f"Bearer {token or listening.token}",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": method,
        **({"mcp-name": name} if name else {}),
        **(headers or {}),
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**told, "_meta": meta}}
    async with make_http_client() as client:
        base = listening.http if "://" in listening.http else f"http://{listening.http}"
        return await client.post(f"{base}/mcp", json=body, headers={k: v for k, v in sent.items() if v})


async def answer(
    listening: Listening | Served, method: str, params: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Return the result, or the error as it is, of a request of a client that knows tasks."""
    told = (await send(listening, method, params, extensions=(TASKS,), **options)).json()
    return told.get("result", told.get("error"))

"""A proxy between the conformance suite and a server: adds the token, and gives tools the names that the suite calls.

The suite calls tools such as `slow_compute`, which the server under test is to have. Each stands for a call of ours
with the same effect; nothing else of a request or of an answer is changed.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, web

from tests.unit.protocols.mcp.hosting import hosting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mcp.client import Client

    from reasond_server.assembly.app import Listening

READ = "read_execution"
DIRECT = "reason_direct"
FIXTURES = {
    "greet": READ,
    "slow_compute": DIRECT,
    "confirm_delete": DIRECT,
    "failing_job": DIRECT,
    "protocol_error_job": DIRECT,
    "test_simple_text": DIRECT,
    "test_tool_with_progress": "reason_self_consistency",
    "test_error_handling": DIRECT,
}
"""Our tools by the names of the fixture; `greet` is the one that is no task."""
TEXTS = ("test://static-text", "test://template/")
_HOP = {"connection", "content-length", "host", "transfer-encoding", "keep-alive"}


class Adapter:
    """Passes requests on; `host` makes the executions that are read."""

    def __init__(self, listening: Listening, *, host: Client, session: ClientSession) -> None:
        self._listening = listening
        self._host = host
        self._session = session

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Send a request to the server, and its answer back, piece by piece."""
        body = await request.read()
        headers = {name.lower(): told for name, told in request.headers.items() if name.lower() not in _HOP}
        renamed = await self._rename(body)
        if renamed is not None:
            body, names = renamed
            headers |= (
                {"mcp-name": names.get(headers["mcp-name"].strip(), headers["mcp-name"])}
                if "mcp-name" in headers
                else {}
            )
        headers["authorization"] = f"Bearer {self._listening.token}"
        url = f"{self._listening.http}/mcp"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: told for name, told in answer.headers.items() if name.lower() not in _HOP}
            if b'"tools/list"' in body:
                return web.Response(status=answer.status, headers=kept, body=_list_fixtures(await answer.read()))
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            with suppress(ConnectionError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
            return response

    async def _rename(self, body: bytes) -> tuple[bytes, Mapping[str, str]] | None:
        """Return the body with our names, and our names by those of the suite; None if it has none of them."""
        try:
            told = json.loads(body)
        except ValueError:
            return None
        params = told.get("params") if isinstance(told, dict) else None
        if not isinstance(params, dict):
            return None
        name, uri = params.get("name"), params.get("uri")
        if told.get("method") == "resources/read" and str(uri).startswith(TEXTS):
            own = f"reasond://executions/{await self._make(f'text of {uri}')}"
            return json.dumps({**told, "params": {**params, "uri": own}}).encode(), {str(uri): own}
        if told.get("method") != "tools/call" or name not in FIXTURES:
            return None
        asked = params.get("arguments")
        arguments = {} if name == "test_error_handling" else {"query": f"{name} {json.dumps(asked)}"}
        if FIXTURES[name] == READ:
            arguments = {"execution_id": await self._make(f"greet {(asked or {}).get('name')}.")}
        renamed = {**told, "params": {**params, "name": FIXTURES[name], "arguments": arguments}}
        return json.dumps(renamed).encode(), FIXTURES

    async def _make(self, query: str) -> str:
        """Return the id of an execution that has ended."""
        result = await self._host.call_tool(DIRECT, {"query": query})
        execution_id: str = result.structured_content["execution_id"]
        return execution_id


def _list_fixtures(body: bytes) -> bytes:
    """Add the names of the fixture to a list of tools."""
    head, found, data = body.partition(b"data: ") if b"data: " in body[:64] else (b"", b"", body)
    told: dict[str, Any] = json.loads(data)
    tools = told.get("result", {}).get("tools", [])
    ours = {tool["name"]: tool for tool in tools}
    tools += [{**ours[own], "name": name} for name, own in FIXTURES.items() if own in ours]
    return head + found + json.dumps(told).encode() + (b"\r\n\r\n" if found else b"")


@asynccontextmanager
async def adapting(listening: Listening) -> AsyncIterator[str]:
    """Serve the adapter, and yield its address for the suite."""
    async with ClientSession() as session, hosting(listening) as host:
        application = web.Application(client_max_size=2**26)
        adapter = Adapter(listening, host=host, session=session)
        application.router.add_route("*", "/mcp", adapter.pass_on)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            (address, *_) = runner.addresses
            yield f"http://127.0.0.1:{address[1]}/mcp"
        finally:
            await runner.cleanup()

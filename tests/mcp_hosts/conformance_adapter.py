"""A proxy between the conformance suite and a server: adds the token, and gives tools the names that the suite calls.

The suite calls tools such as `slow_compute`, which the server under test is to have. Each stands for a call of ours
with the same effect; nothing else of a request or of an answer is changed.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.assembly.app import Listening

READ = "read_execution"
DIRECT = "reason_direct"
FIXTURES = {
    "greet": READ,
    "slow_compute": DIRECT,
    "failing_job": DIRECT,
    "protocol_error_job": DIRECT,
    "test_simple_text": DIRECT,
    "test_tool_with_progress": DIRECT,
    "test_error_handling": DIRECT,
}
"""Our tools by the names of the fixture."""
_HOP = {"connection", "content-length", "host", "transfer-encoding", "keep-alive"}


class Adapter:
    """Passes requests on; `execution_id` is one that can be read."""

    def __init__(self, listening: Listening, *, execution_id: str, session: ClientSession) -> None:
        self._listening = listening
        self._execution_id = execution_id
        self._session = session

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Send a request to the server, and its answer back, piece by piece."""
        body = self._rename(await request.read())
        headers = {name: told for name, told in request.headers.items() if name.lower() not in _HOP | {"host"}}
        for name in [name for name in headers if name.lower() == "mcp-name"]:
            headers[name] = FIXTURES.get(headers[name].strip(), headers[name])
        headers["Authorization"] = f"Bearer {self._listening.token}"
        url = f"{self._listening.http}/mcp"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: told for name, told in answer.headers.items() if name.lower() not in _HOP}
            if b'"tools/list"' in body:
                return web.Response(status=answer.status, headers=kept, body=_list_fixtures(await answer.read()))
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    def _rename(self, body: bytes) -> bytes:
        try:
            told = json.loads(body)
        except ValueError:
            return body
        params = told.get("params") if isinstance(told, dict) else None
        name = params.get("name") if isinstance(params, dict) else None
        if not isinstance(params, dict) or told.get("method") != "tools/call" or name not in FIXTURES:
            return body
        arguments = {"execution_id": self._execution_id}
        if FIXTURES[name] != READ:
            arguments = (
                {} if name == "test_error_handling" else {"query": f"{name} {json.dumps(params.get('arguments'))}"}
            )
        return json.dumps({**told, "params": {**params, "name": FIXTURES[name], "arguments": arguments}}).encode()


def _list_fixtures(body: bytes) -> bytes:
    """Add the names of the fixture to a list of tools."""
    head, found, data = body.partition(b"data: ") if b"data: " in body[:64] else (b"", b"", body)
    told: dict[str, Any] = json.loads(data)
    tools = told.get("result", {}).get("tools", [])
    ours = {tool["name"]: tool for tool in tools}
    tools += [{**ours[own], "name": name} for name, own in FIXTURES.items() if own in ours]
    return head + found + json.dumps(told).encode() + (b"\r\n\r\n" if found else b"")


@asynccontextmanager
async def adapting(listening: Listening, *, execution_id: str) -> AsyncIterator[str]:
    """Serve the adapter, and yield its address for the suite."""
    async with ClientSession() as session:
        application = web.Application(client_max_size=2**26)
        adapter = Adapter(listening, execution_id=execution_id, session=session)
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

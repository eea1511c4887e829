"""The path /mcp: Streamable HTTP, with the checks of every other protocol before the package `mcp` sees a request."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from reasond_server.access import audit
from reasond_server.access.tokens import build_missing_token_error
from reasond_server.base.addresses import is_loopback
from reasond_server.errors.access import AccessError, IssuerUnavailableError
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import ParseError
from reasond_server.http_api.body_reader import answer_call
from reasond_server.http_api.exchange import (
    Exchange,
    PathRoutes,
    RefusalError,
    RequestHeaders,
    find_exchange,
    send_answer,
)
from reasond_server.http_api.http_calls import JSONRPC, Calls, Dialect
from reasond_server.http_api.jsonrpc import parse_body, unread
from reasond_server.telemetry.scope import Scope as Work
from reasond_server.telemetry.scope import enter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import TypeAlias

    from mcp.server.lowlevel import Server

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import ASGIApp, Message, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Gate, Methods
    from reasond_server.protocols.mcp.mcp_arguments import HostTool
    from reasond_server.telemetry.observers import Observer

    McpServer: TypeAlias = Server[Any]

MCP_ROOT: Final = "/mcp/"
MCP_PATH: Final = "/mcp"
# No session has a stream of its own, and there is none to delete.
_ROUTES: Final = [("POST", path, "") for path in (MCP_PATH, MCP_ROOT)]
_ADDRESSES: Final = PathRoutes(_ROUTES, hint=f"{MCP_PATH} is the address for MCP")
_HOW_TO_SEND: Final = "Send it in 'Authorization: Bearer <token>'"
MCP: Final = Dialect(transport="mcp", describe=JSONRPC.describe, missing_hint=_HOW_TO_SEND)
_NO_EXTRA: Final = "this server has no package mcp; have reasond-server[mcp] installed, or [mcp] enabled set to false"
_ORIGIN: Final = "pages of this origin may not call tools; have it added to [server] cors_origins"


@dataclass(eq=False, kw_only=True)
class McpInterface:
    """Serves hosts over HTTP, once `open_door` is called, and in this process.

    `list_tools` returns the tools by name, `methods` are what they call. `origins` are those of other pages that may
    call.
    """

    list_tools: Callable[[], Mapping[str, HostTool]]
    methods: Methods
    version: str
    new_call_id: Callable[[], str]
    origins: Collection[str] = ()
    _gate: Gate = field(init=False)
    _body_reader: BodyReader = field(init=False)
    _observer: Observer = field(init=False)
    _server: McpServer | None = field(default=None, init=False)

    def open_door(self, gate: Gate, body_reader: BodyReader, observer: Observer) -> ASGIApp:
        """Return the application for the HTTP listener."""
        self._gate, self._body_reader, self._observer = gate, body_reader, observer
        return self._serve

    def open_calls(self, exchange: Exchange) -> Calls:
        """Return the calls of one request; to be used once the door is open."""
        return Calls(self.methods, self._gate, exchange, self._observer, MCP)

    def build_server(self, mint: Callable[[], str] | None = None) -> McpServer:
        """Return the package's server; `mint` makes the token of a request that comes by no HTTP."""
        from reasond_server.protocols.mcp.mcp_service import build_mcp_server  # noqa: PLC0415 - takes 1.6 s

        def open_calls(exchange: Exchange | None) -> Calls:
            if exchange is None:
                call_id = self.new_call_id()
                enter(Work(call_id, None))
                headers = RequestHeaders([(b"authorization", f"Bearer {mint() if mint else ''}".encode())])
                exchange = Exchange(call_id=call_id, headers=headers)
            return self.open_calls(exchange)

        return build_mcp_server(self.list_tools(), version=self.version, open_calls=open_calls)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            RefusalError: the path, the method, the origin, the token or the body is refused.
            ClientGoneError: the client left before its answer.
        """
        exchange = find_exchange(scope)
        exchange.rpc_system = MCP.transport
        _ADDRESSES.find(scope, exchange)
        exchange.route = MCP_PATH
        self._require_origin(exchange)
        if importlib.util.find_spec("mcp") is None:
            raise RefusalError(501, _NO_EXTRA)
        await self._require_caller(exchange)
        answer = partial(self._answer, scope, receive, send)
        try:
            await answer_call(exchange, scope, receive, gate=self._gate, body_reader=self._body_reader, answer=answer)
        except ParseError as error:
            await send_answer(send, 400, unread(error, self.open_calls(exchange)))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytearray) -> None:
        """Let the package answer; each request stands for itself, and shares nothing but the server.

        The package is imported at the first one: that takes longer than a start.

        Raises:
            ParseError: the body is no JSON.
        """
        # Counted before anything is built from it: the package reads whatever it is given.
        await parse_body(body)
        if self._server is None:
            self._server = await asyncio.to_thread(self.build_server)
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - comes with it

        # A body is as long as [server] max_http_body_bytes allows.
        manager = StreamableHTTPSessionManager(self._server, stateless=True, max_request_body_size=sys.maxsize)
        async with manager.run():
            await manager.handle_request(scope, _replay(body, receive), send)

    def _require_origin(self, exchange: Exchange) -> None:
        """Refuse pages of other sites, which a name that changes its address could make callers of this one.

        Raises:
            RefusalError: 403.
        """
        for origin in exchange.headers.getlist(b"origin"):
            if origin not in self.origins and not _is_local(origin):
                raise RefusalError(403, _ORIGIN)

    async def _require_caller(self, exchange: Exchange) -> None:
        """Refuse a request without a valid token, whatever it asks for.

        Raises:
            RefusalError: 401, or 503 if the token cannot be checked now.
        """
        try:
            if not await self._gate.recognise_caller(exchange):
                raise build_missing_token_error(_HOW_TO_SEND)
        except (IssuerUnavailableError, OverloadedError) as error:
            raise RefusalError(503, error.full_message, headers={"retry-after": "1"}) from None
        except AccessError as error:
            audit.log_denied(audit.UNREAD, error, call_id=exchange.call_id)
            raise RefusalError(401, error.full_message, headers={"www-authenticate": "Bearer"}) from None


def _replay(body: bytearray, receive: Receive) -> Receive:
    """Return what gives the body that was read, and then waits for the client to leave."""
    parts: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def replay() -> Message:
        return parts.pop() if parts else await receive()

    return replay


def _is_local(origin: str) -> bool:
    """Return whether a page comes from this machine."""
    try:
        host = urlsplit(origin).hostname or ""
        return is_loopback(f"[{host}]:0" if ":" in host else f"{host}:0")
    except ValueError:
        return False

"""The path /mcp: Streamable HTTP, with the checks of every other protocol before the package `mcp` sees a request."""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from reasond_server.access import audit
from reasond_server.access.tokens import build_missing_token_error
from reasond_server.base.addresses import is_loopback
from reasond_server.errors.access import AccessError, IssuerUnavailableError
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import ParseError
from reasond_server.http_api.body_reader import read_call_body
from reasond_server.http_api.exchange import (
    ClientGoneError,
    Exchange,
    RefusalError,
    RequestHeaders,
    find_exchange,
    find_host,
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
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from reasond_server.http_api.body_reader import BodyReader
    from reasond_server.http_api.exchange import ASGIApp, Message, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Gate, Methods
    from reasond_server.protocols.mcp.mcp_arguments import HostTool
    from reasond_server.telemetry.observers import CallObserver

    McpServer: TypeAlias = Server[Any]

MCP_ROOT: Final = "/mcp/"
MCP_PATH: Final = "/mcp"
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
    _parts: tuple[Gate, CallObserver] | None = field(default=None, init=False)
    _endpoint: _Endpoint | None = field(default=None, init=False)

    def open_door(self, gate: Gate, body_reader: BodyReader, observer: CallObserver) -> ASGIApp:
        """Return the application for the HTTP listener."""
        self._parts = gate, observer
        self._endpoint = _Endpoint(self, gate, body_reader)
        return self._endpoint

    def open_calls(self, exchange: Exchange) -> Calls:
        """Return the calls of one request; to be used once the door is open."""
        assert self._parts is not None  # noqa: S101 - the listener is opened before its first request
        gate, observer = self._parts
        return Calls(methods=self.methods, gate=gate, exchange=exchange, observer=observer, dialect=MCP)

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

    async def aclose(self) -> None:
        """End the requests under way."""
        if self._endpoint is not None:
            await self._endpoint.aclose()


class _Endpoint:
    """Serves the path /mcp. The package is imported at the first request: that takes longer than a start."""

    def __init__(self, interface: McpInterface, gate: Gate, body_reader: BodyReader) -> None:
        self._interface = interface
        self._gate = gate
        self._body_reader = body_reader
        self._opening: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            RefusalError: the path, the method, the origin, the token or the body is refused.
            ClientGoneError: the client left before its answer.
        """
        exchange = find_exchange(scope)
        exchange.rpc_system = MCP.transport
        if scope["path"] not in {MCP_PATH, MCP_ROOT}:
            raise RefusalError(404, f"there is nothing at this address; {MCP_PATH} is the address for MCP")
        exchange.route = MCP_PATH
        if scope["method"] != "POST":
            # No session has a stream of its own, and there is none to delete.
            raise RefusalError(405, "this address takes POST only", headers={"allow": "POST"})
        self._require_origin(exchange)
        if importlib.util.find_spec("mcp") is None:
            raise RefusalError(501, _NO_EXTRA)
        await self._require_caller(exchange)
        body = await read_call_body(
            exchange, receive, gate=self._gate, body_reader=self._body_reader, host=find_host(scope)
        )
        try:
            # Counted before anything is built from it: the package reads whatever it is given.
            await parse_body(body)
            manager = await self._find_manager()
            # It notices by itself when the client leaves, and cancels what it does for it.
            await manager.handle_request(scope, _replay(body, receive), send)
            if not exchange.status:
                raise ClientGoneError
        except ParseError as error:
            await send_answer(send, 400, unread(error, self._interface.open_calls(exchange)))
        finally:
            self._body_reader.release(body)

    def _require_origin(self, exchange: Exchange) -> None:
        """Refuse pages of other sites, which a name that changes its address could make callers of this one.

        Raises:
            RefusalError: 403.
        """
        for origin in exchange.headers.getlist(b"origin"):
            if origin not in self._interface.origins and not _is_local(origin):
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

    async def _find_manager(self) -> StreamableHTTPSessionManager:
        """Return the package's part for HTTP, opened at the first request."""
        if self._opening is None:
            # A context of its own: what the first request has noted is not that of all others.
            self._opening = asyncio.create_task(self._open(), context=contextvars.Context())
        return await asyncio.shield(self._opening)

    async def _open(self) -> StreamableHTTPSessionManager:
        manager = await asyncio.to_thread(self._build_manager)
        is_open = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(manager, is_open), name="MCP")
        await is_open.wait()
        return manager

    def _build_manager(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - takes 1.6 s

        # A body is as long as [server] max_http_body_bytes allows.
        server = self._interface.build_server()
        return StreamableHTTPSessionManager(app=server, stateless=True, max_request_body_size=sys.maxsize)

    async def _serve(self, manager: StreamableHTTPSessionManager, is_open: asyncio.Event) -> None:
        async with manager.run():
            is_open.set()
            await self._closing.wait()

    async def aclose(self) -> None:
        """End the requests under way."""
        self._closing.set()
        if self._serving is not None:
            await self._serving


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

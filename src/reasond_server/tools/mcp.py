"""Tools of MCP servers: programs reached over stdio, or addresses reached over streamable HTTP.

A connection belongs to one task, which opens it, lists the tools, waits until it breaks, and opens it again after a
delay. Calls come from the tasks of runs. If a server is down, its calls get an error result, and the runs continue.
When a server reports that its tools have changed, they are listed again.

The package `mcp` is an extra. Source: Model Context Protocol 2026-07-28, with the handshake of older servers.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import re
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from reasond_server.base.addresses import find_proxy
from reasond_server.dialects.native_calls import MOST_CHARACTERS, shorten_name
from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.telemetry.propagation import build_outgoing_headers
from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.results import NotJsonError, to_json_text
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.tools.tool import Tool, ToolContext, ToolFailedError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import httpx2
    import mcp
    from mcp.client import Transport

    from reasond_server.types import Json


_MAX_DESCRIPTION: Final = 2_000
_MAX_ERROR: Final = 2_000
# The event loop waits for the check.
_MAX_STEPS: Final = 2_000


def read_value(result: Any) -> object:  # noqa: ANN401 - a type of the optional package
    """Return the value of a `CallToolResult`: its structured content, its only text, or all of its parts.

    Raises:
        ToolFailedError: the server reports that the call failed; its text is for the model.
    """
    parts = [_read_part(block) for block in result.content]
    if result.is_error:
        text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        raise ToolFailedError(text[:_MAX_ERROR] or "the tool failed and did not say why")
    if result.structured_content is not None:
        return result.structured_content
    if len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return {"text": parts[0]["text"]}
    return {"content": parts}


def describe_tool(listed: Any) -> str:  # noqa: ANN401 - as above
    """Return the tool's description; without one its title, without both its name."""
    text = listed.description or listed.title or listed.name
    return " ".join(str(text).split())[:_MAX_DESCRIPTION]


def build_argument_check(schema: Json) -> Callable[[Json], Sequence[Violation]]:
    """Return a function that checks arguments by `schema`; one that cannot be used accepts everything.

    So it does with arguments whose check could take more than 20 ms. The server checks again.
    """

    @cache
    def build() -> Callable[[object], Sequence[Violation]]:
        # Not before the first call: a server may list many tools with large schemas. Not in a thread: compiling takes
        # some 20 ms, in which it holds the interpreter.
        try:
            return build_validator(schema, max_steps=_MAX_STEPS)
        except SchemaUnusableError:
            return lambda _: ()

    def check_arguments(arguments: Json) -> Sequence[Violation]:
        try:
            return build()(dict(arguments))
        except SchemaUnusableError:
            return ()

    return check_arguments


def _read_part(block: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Return one block of content; only the size for data other than text."""
    part: dict[str, Any] = {"type": block.type}
    if block.type == "text":
        part["text"] = block.text
    elif block.type in {"image", "audio"}:
        part |= {"mime_type": block.mime_type, "left_out_base64_characters": len(block.data)}
    elif block.type == "resource_link":
        part |= {"uri": str(block.uri), "name": block.name}
    elif block.type == "resource":
        part["uri"] = str(block.resource.uri)
        text = getattr(block.resource, "text", None)
        part |= {"text": text} if text is not None else {"left_out_base64_characters": len(block.resource.blob)}
    return part


_log = logging.getLogger("reasond.tools")
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_MAX_PAGES: Final = 20
_MAX_TOOLS: Final = 200
_MAX_SCHEMA_BYTES: Final = 65_536
IDEMPOTENCY_KEY: Final = "reasond/idempotency_key"
"""Key of `_meta` that holds the idempotency key of a call."""
_CONNECTION_CLOSED: Final = -32000
_METHOD_NOT_FOUND: Final = -32601
_TOOLS_CHANGED: Final = "notifications/tools/list_changed"
_CLOSING_S: Final = 10.0
# The package raises these for a result that is malformed or violates the tool's own schema. A broken connection usually
# raises other errors (of anyio, httpx2 and the system) but sometimes one of these, so the connection is probed.
_OF_ONE_CALL: Final = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, re.error)


@value
class McpOptions:
    """One server: `command` with `args` and `env`, or `url` with `headers`. Empty `allow_tools` allows all tools."""

    name: str
    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow_tools: Collection[str] = ()
    timeout_s: float = 30.0
    connect_timeout_s: float = 10.0


def require_mcp(name: str) -> None:
    """Require the package `mcp`.

    Raises:
        SettingsError: the package is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError(
            f"[tools.mcp.{name}] needs the package mcp, which is not installed",
            remedy="Install reasond-server[mcp], or remove the table.",
        )


class McpServer:
    """The `ToolServer` of one MCP server.

    The tools of the last list stay known while the connection is down.

    Args:
        options: command or address of the server, and its limits.
        jitter: returns a number from 0 to 1, which varies the waits between attempts to connect.

    Raises:
        SettingsError: the package is not installed.
    """

    def __init__(
        self,
        options: McpOptions,
        *,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        require_mcp(options.name)
        self._options = options
        self._jitter = jitter
        self._client: mcp.Client | None = None
        self._tools: Sequence[Tool] = ()
        self._unread = 0
        self._changed = asyncio.Event()
        self._broken = asyncio.Event()
        self._closing = asyncio.Event()
        self._tried = asyncio.Event()
        self._standing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the server in the configuration."""
        return self._options.name

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the server listed last."""
        return self._tools

    @property
    def is_connected(self) -> bool:
        """Whether calls can be made now."""
        return self._client is not None

    async def start(self) -> None:
        """Connect and keep connected; return when the first attempt has succeeded or failed."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep_connected(), name=f"mcp server {self.name}")
        await self._tried.wait()

    async def wait_connected(self) -> None:
        """Wait until calls can be made."""
        await self._standing.wait()

    async def aclose(self) -> None:
        """Disconnect, and end the server's program if one was started; wait first for an open attempt to connect."""
        if self._keeper is None:
            return
        self._closing.set()
        self._broken.set()
        # The package leaves a program running if it is cancelled while it starts or ends that program.
        await asyncio.wait({self._keeper}, timeout=self._options.connect_timeout_s + _CLOSING_S)
        self._keeper.cancel()
        await asyncio.wait({self._keeper}, timeout=_CLOSING_S)
        self._keeper = None

    async def call(self, tool: str, arguments: Json, *, idempotency_key: str = "") -> object:
        """Call `tool` of the server and return its result as a value that JSON can hold.

        A non-empty `idempotency_key` is sent in `_meta` under `reasond/idempotency_key`.

        Raises:
            ToolFailedError: the server is down, reports that the call failed, or returned a result that cannot be
                read. A broken connection is closed for all runs. After an unreadable result the tools are listed as a
                probe of the connection.
        """
        from mcp import MCPError  # noqa: PLC0415 - an optional package

        client = self._client
        if client is None:
            raise ToolFailedError(f"the MCP server {self.name!r} is not connected now; try another way, or later")
        try:
            result = await client.call_tool(
                tool,
                dict(arguments),
                read_timeout_seconds=self._options.timeout_s,
                meta=_build_meta(idempotency_key),
            )
        except MCPError as error:
            if error.code == _CONNECTION_CLOSED:
                self._give_up(client)
            _log.warning("mcp call refused", extra={"server": self.name, "tool": tool, "code": error.code})
            raise ToolFailedError(f"the MCP server {self.name!r} did not answer the call (code {error.code})") from None
        except _OF_ONE_CALL as error:
            # The error's text may quote the result, and content must not be logged.
            facts = {"server": self.name, "tool": tool, "error": type(error).__name__}
            _log.warning("mcp result not understood", extra=facts)
            await self._list_again(client)
            raise ToolFailedError(
                f"the MCP server {self.name!r} returned a result that cannot be read, or that its own schema of "
                f"the tool does not allow; another call may do"
            ) from None
        except Exception:  # noqa: BLE001 - transports raise errors of many kinds, and the run must survive them
            self._give_up(client)
            _log.warning("mcp call failed", extra={"server": self.name, "tool": tool}, exc_info=True)
            raise ToolFailedError(f"the connection to the MCP server {self.name!r} failed") from None
        return read_value(result)

    async def _list_again(self, client: mcp.Client) -> None:
        """List the tools; give up the connection if the server does not answer."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                # A cached list would neither probe the connection nor show changes.
                self._tools = await self._list_tools(client, cache_mode="bypass")
        except Exception as error:  # noqa: BLE001 - any error means a new connection
            self._give_up(client)
            _log.warning("mcp connection broken", extra={"server": self.name, "error": type(error).__name__})

    def _give_up(self, client: mcp.Client) -> None:
        """Stop using a broken connection and have it opened again."""
        if client is self._client:
            self._client = None
            self._standing.clear()
            self._broken.set()

    async def _keep_connected(self) -> None:
        """Connect repeatedly, with growing waits between attempts, until `aclose` is called."""
        failures = 0
        while not self._closing.is_set():
            had_stood = False
            try:
                await self._connect_once()
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001 - groups of any errors come from the package's tasks
                _log.warning("mcp server down", extra={"server": self.name, "error": type(error).__name__})
            finally:
                had_stood = self._standing.is_set() or self._broken.is_set()
                self._client = None
                self._standing.clear()
                self._broken.clear()
                self._tried.set()
            failures = 0 if had_stood else failures + 1
            wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(failures, 10)) * (0.5 + self._jitter() / 2)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)

    async def _connect_once(self) -> None:
        """Connect, list the tools, and wait until the connection breaks or is given up."""
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._options.connect_timeout_s):
                client = await stack.enter_async_context(await self._build_client(stack))
                self._tools = await self._list_tools(client)
            self._client = client
            self._standing.set()
            self._tried.set()
            _log.info("mcp server connected", extra={"server": self.name, "tools": len(self._tools)})
            followers = [asyncio.create_task(work) for work in (self._follow_changes(client), self._subscribe(client))]
            try:
                if not self._closing.is_set():
                    await self._broken.wait()
            finally:
                for follower in followers:
                    follower.cancel()
                await asyncio.wait(followers)

    async def _take_message(self, message: object) -> None:
        """Process a notification that the tools have changed, or a line that is not a message."""
        if getattr(message, "method", "") == _TOOLS_CHANGED:
            self._changed.set()
        elif isinstance(message, Exception):
            self._unread += 1
            # Only the 1st, 10th, 100th … is logged: a program that prints to its standard output must not fill the log.
            if str(self._unread).strip("0") == "1":
                facts = {"server": self.name, "error": type(message).__name__, "so_far": self._unread}
                _log.warning("mcp server sent what is no message", extra=facts)

    async def _follow_changes(self, client: mcp.Client) -> None:
        """List the tools again after each change, at most once every half second."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            before = {tool.name for tool in self._tools}
            await self._list_again(client)
            after = {tool.name for tool in self._tools}
            facts = {"server": self.name, "added": len(after - before), "removed": len(before - after)}
            _log.info("mcp tools listed again", extra=facts)
            await asyncio.sleep(_FIRST_WAIT_S)

    async def _subscribe(self, client: mcp.Client) -> None:
        """Stay subscribed to changes of the tools: since protocol 2026-07-28 servers report only to subscribers."""
        from mcp import MCPError  # noqa: PLC0415 - an optional package
        from mcp.client.subscriptions import ListenNotSupportedError  # noqa: PLC0415 - as above

        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    # Changes between the last list and this subscription were not reported.
                    self._changed.set()
                    async for _ in changes:
                        self._changed.set()
            except ListenNotSupportedError:
                return
            except MCPError as error:
                if error.code == _METHOD_NOT_FOUND:
                    return
            except Exception as error:  # noqa: BLE001 - no run may fail because of it
                _log.debug("mcp subscription lost", extra={"server": self.name, "error": type(error).__name__})
            await asyncio.sleep(_LONGEST_WAIT_S * (0.5 + self._jitter() / 2))

    async def _build_client(self, stack: AsyncExitStack) -> mcp.Client:
        """Return a client that is not connected yet."""
        from mcp import StdioServerParameters  # noqa: PLC0415 - an optional package

        options = self._options
        if options.command:
            from mcp.client.stdio import stdio_client  # noqa: PLC0415 - an optional package

            program = StdioServerParameters(
                command=options.command, args=list(options.args), env=dict(options.env) or None
            )
            return self._wrap(stdio_client(program, errlog=sys.__stderr__ or sys.stderr))
        import httpx2  # noqa: PLC0415 - comes with mcp
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415 - an optional package

        from reasond_server.tools.mcp_transport import BoundedTransport  # noqa: PLC0415 - imports httpx2

        timeout_s = max(options.timeout_s, options.connect_timeout_s)
        # With a transport of its own, a client takes no proxy from the environment.
        through = httpx2.AsyncHTTPTransport(proxy=find_proxy(options.url))
        http = httpx2.AsyncClient(
            headers=dict(options.headers),
            timeout=httpx2.Timeout(options.connect_timeout_s, read=timeout_s),
            transport=BoundedTransport(through, timeout_s=timeout_s),
            follow_redirects=False,
            event_hooks={"request": [_add_trace_headers]},
        )
        await stack.enter_async_context(http)
        return self._wrap(streamable_http_client(options.url, http_client=http))

    def _wrap(self, transport: Transport) -> mcp.Client:
        """Return a client over `transport` for which a malformed tool is one tool less, not a broken list."""
        from mcp import Client  # noqa: PLC0415 - an optional package

        from reasond_server.tools.mcp_transport import ListingTransport  # noqa: PLC0415 - imports mcp

        def leave_out(name: str, problem: str) -> None:
            _log.warning("mcp tool left out: it is malformed", extra={"server": self.name, "tool": name, "at": problem})

        return Client(ListingTransport(transport, leave_out=leave_out), message_handler=self._take_message)

    async def _list_tools(self, client: mcp.Client, *, cache_mode: Literal["use", "bypass"] = "use") -> Sequence[Tool]:
        """Return the tools that the server has and the operator allows."""
        found: list[Any] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor, cache_mode=cache_mode)
            found += page.tools
            cursor = page.next_cursor
            if not cursor or len(found) >= _MAX_TOOLS:
                break
        allowed = self._options.allow_tools
        names: dict[str, Tool] = {}
        for one in found[:_MAX_TOOLS]:
            if allowed and one.name not in allowed:
                continue
            tool = self._build_tool(one)
            if tool is not None and tool.name not in names:
                names[tool.name] = tool
        if missing := sorted(set(allowed) - {one.name for one in found}):
            _log.warning("mcp server lacks allowed tools", extra={"server": self.name, "missing": missing})
        return tuple(names.values())

    def _build_tool(self, listed: Any) -> McpTool | None:  # noqa: ANN401 - a type of the optional package
        try:
            size = len(to_json_text(listed.input_schema).encode())
        except NotJsonError:
            size = _MAX_SCHEMA_BYTES + 1
        if size > _MAX_SCHEMA_BYTES:
            _log.warning("mcp tool left out: its schema is too large", extra={"server": self.name})
            return None
        return McpTool(server=self, listed=listed, timeout_s=self._options.timeout_s)


class McpTool:
    """One tool of an MCP server, called `SERVER__TOOL`.

    The server's hints about side effects decide whether a call is repeated after a crash. They are trusted because the
    operator chose the server.
    """

    def __init__(self, *, server: McpServer, listed: Any, timeout_s: float) -> None:  # noqa: ANN401 - as above
        hints = listed.annotations
        self._server = server
        self._listed_name: str = listed.name
        self.name = build_tool_name(server.name, listed.name)
        self.description = describe_tool(listed)
        self.parameters: Json = listed.input_schema
        self.timeout_s: float | None = timeout_s
        self.max_output_bytes: int | None = None
        self.is_idempotent = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        self._violations = build_argument_check(listed.input_schema)

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return the violations of the server's own schema in `arguments`."""
        return self._violations(arguments)

    async def invoke(self, arguments: Json, context: ToolContext) -> object:
        """Call the server. Raises the same errors as `McpServer.call`."""
        return await self._server.call(self._listed_name, arguments, idempotency_key=context.idempotency_key)


async def _add_trace_headers(request: httpx2.Request) -> None:
    """Add the trace context for proxies and middleware; the package sends a request in the context of the caller."""
    request.headers.update(build_outgoing_headers())


def _build_meta(idempotency_key: str) -> mcp.types.RequestParamsMeta | None:
    """Return the call's key and trace context for the protocol's field `_meta`; None if both are missing."""
    found: Any = dict(build_outgoing_headers())
    if idempotency_key:
        found[IDEMPOTENCY_KEY] = idempotency_key
    return found or None


def build_tool_name(server: str, tool: str) -> str:
    """Return the name by which models call `tool` of `server`: at most 64 characters, accepted by every provider."""
    name = f"{server}__{re.sub(r'[^a-zA-Z0-9_-]', '_', tool)}"
    is_kept = len(name) <= MOST_CHARACTERS and name == f"{server}__{tool}"
    return name if is_kept else shorten_name(name, key=tool)


def describe_server(options: McpOptions) -> str:
    """Return the command or address of a server for display, without secrets."""
    return show(options.url or options.command)


async def examine_server(options: McpOptions) -> Sequence[str] | None:
    """Connect once and return the names of the tools; None if that fails."""
    server = McpServer(options)
    try:
        await server.start()
        return [tool.name for tool in server.tools] if server.is_connected else None
    finally:
        await server.aclose()

"""The tools of the server and their limits; each run gets its own toolbox."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.base.plugins import PluginGroup
from reasond_server.errors.base import SettingsError
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.tools.execution import RunToolbox, ToolLimits, require_tool
from reasond_server.tools.http_get import HttpGet
from reasond_server.tools.read_result import READ_TOOL_RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond_server.telemetry.observers import ToolObserver
    from reasond_server.tools.tool import Tool

INSTALLED_TOOLS: Final = PluginGroup(
    group="reasond.tools",
    noun="tool",
    setting="[tools] enabled",
    require=require_tool,
    reserved=(HttpGet.name, READ_TOOL_RESULT),
)


class ToolServer(Protocol):
    """Tools of another program over a connection that may be lost and restored."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are known now."""
        ...

    async def start(self) -> None:
        """Connect and keep connected; return when the tools are known or the time-out has passed."""
        ...

    async def aclose(self) -> None:
        """Disconnect."""
        ...


class Tools:
    """The `ToolSource` of a server: its own tools and those of tool servers, which `start` connects.

    Args:
        tools: tools that are always offered.
        servers: further tools; a run is offered those that are known when it begins.
        limits: limits of all tools.
        observer: receives every call.

    Raises:
        SettingsError: two tools have one name.
    """

    def __init__(
        self,
        *,
        tools: Iterable[Tool] = (),
        servers: Sequence[ToolServer] = (),
        limits: ToolLimits | None = None,
        observer: ToolObserver = UNOBSERVED,
    ) -> None:
        self._observer = observer
        self._tools = tuple(tools)
        self._servers = tuple(servers)
        self._limits = limits or ToolLimits()
        names = [tool.name for tool in self._tools]
        for name in names:
            if names.count(name) > 1 or name == READ_TOOL_RESULT:
                raise SettingsError(f"Two tools are named {name!r}", remedy="Remove one from [tools] enabled.")

    @property
    def names(self) -> Sequence[str]:
        """The names of the tools that are known now, sorted."""
        return sorted(tool.name for tool in self._collect_tools())

    def open_toolbox(
        self, *, max_calls: int | None, execution_id: str = "", also: Sequence[Tool] = (), keeps_whole: bool = False
    ) -> RunToolbox:
        """Return the tools for one run; later changes do not affect it. See `ToolSource`."""
        return RunToolbox(
            tools=(*self._collect_tools(), *also),
            keeps_whole=keeps_whole,
            limits=self._limits,
            max_calls=max_calls,
            execution_id=execution_id,
            observer=self._observer,
        )

    async def start(self) -> None:
        """Connect all tool servers concurrently; a server that is down raises no error."""
        await asyncio.gather(*(server.start() for server in self._servers))

    async def aclose(self) -> None:
        """Disconnect them."""
        await asyncio.gather(*(server.aclose() for server in self._servers))

    def _collect_tools(self) -> Sequence[Tool]:
        known = {tool.name: tool for server in self._servers for tool in server.tools}
        # The operator's own tools come first: a tool server must not replace one of them.
        return tuple((known | {tool.name: tool for tool in self._tools}).values())

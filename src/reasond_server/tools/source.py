"""The tools of the server and their limits; each run gets its own toolbox."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import InternalError, SettingsError
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.tools.execution import RunToolbox, ToolLimits, require_tool
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.violations import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond_server.telemetry.observers import ToolObserver
    from reasond_server.tools.tool import Tool

TOOL_GROUP: Final = "reasond.tools"


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


def discover_tools(enabled: Sequence[str], *, installed: Iterable[EntryPoint] | None = None) -> Sequence[Tool]:
    """Return the `enabled` tools from the entry points of `TOOL_GROUP`, which name tools or their factories.

    Raises:
        SettingsError: a tool is not installed, cannot be loaded, or has a name other than its entry.
    """
    found = tuple(entry_points(group=TOOL_GROUP) if installed is None else installed)
    by_name = {point.name: point for point in found}
    return tuple(_load(name, by_name) for name in dict.fromkeys(enabled))


def _load(name: str, by_name: dict[str, EntryPoint]) -> Tool:
    point = by_name.get(name)
    if point is None:
        raise SettingsError(
            f"[tools] enabled names {name!r}, which is not installed{suggest_nearest(name, by_name)}",
            remedy=f"Installed are: {', '.join(sorted(by_name)) or 'none'}. Install its package or remove the name.",
        )
    try:
        loaded = point.load()
        tool = require_tool(loaded() if isinstance(loaded, type) or not hasattr(loaded, "invoke") else loaded)
    except InternalError as error:
        raise SettingsError(
            f"Entry point {name!r} ({point.value}) gives no tool: {error.message}", remedy="Update its package."
        ) from error
    except Exception as error:
        raise SettingsError(
            f"Tool {name!r} ({point.value}) could not be loaded: {type(error).__name__}",
            remedy="Update its package or remove the name from [tools] enabled.",
        ) from error
    if tool.name != name:
        raise SettingsError(
            f"Entry point {name!r} ({point.value}) gives a tool named {tool.name!r}",
            remedy="Name the entry point as the tool names itself.",
        )
    return tool

"""Builds the tools that the settings describe; the package `tools` itself gets plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.tools.address_checks import AddressPolicy
from reasond_server.tools.execution import ToolLimits
from reasond_server.tools.http_get import FetchLimits, HttpGet
from reasond_server.tools.mcp import McpOptions, McpServer
from reasond_server.tools.source import INSTALLED_TOOLS, Tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.config import ToolsSettings
    from reasond_server.telemetry.observers import ToolObserver
    from reasond_server.tools.tool import Tool


def build_tools(settings: ToolsSettings, *, observer: ToolObserver = UNOBSERVED) -> Tools:
    """Return the tools of [tools]; each call is reported to `observer`; nothing is connected yet.

    Raises:
        SettingsError: a tool cannot be loaded, two tools have the same name, or a package is missing.
    """
    fetch = settings.http_get
    tools: list[Tool] = [*INSTALLED_TOOLS.load(settings.enabled)]
    if fetch.allow_hosts:
        policy = AddressPolicy(
            allow_hosts=fetch.allow_hosts, allow_private_hosts=fetch.allow_private_hosts, allow_http=fetch.allow_http
        )
        limits = FetchLimits(timeout_s=fetch.timeout_s, max_bytes=fetch.max_bytes, content_types=fetch.content_types)
        tools.append(HttpGet(policy=policy, limits=limits))
    return Tools(
        tools=tools,
        servers=[McpServer(options) for options in read_mcp_options(settings)],
        limits=ToolLimits(
            timeout_s=settings.timeout_s,
            max_shown_bytes=settings.max_shown_bytes,
            max_kept_bytes=settings.max_kept_bytes,
        ),
        observer=observer,
    )


def read_mcp_options(settings: ToolsSettings) -> Sequence[McpOptions]:
    """Return the MCP servers of [tools.mcp] with their secrets in plain text."""
    return tuple(
        McpOptions(
            name=name,
            command=server.command,
            args=server.args,
            env={key: value.get_secret_value() for key, value in server.env.items()},
            url=server.url,
            headers={key: value.get_secret_value() for key, value in server.headers.items()},
            allow_tools=server.allow_tools,
            timeout_s=server.timeout_s,
            connect_timeout_s=server.connect_timeout_s,
        )
        for name, server in settings.mcp.items()
    )

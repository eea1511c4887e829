"""The section [tools]: the enabled tools, their limits, and MCP servers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from reasond_server.config.section import BaseUrl, Section
from reasond_server.types.policy_sections import ToolName, freeze

_KIBI = 1024
_MEBI = 1024 * _KIBI
_HOST = re.compile(r"(?:\*\.)?(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")


def _check_host(value: str) -> str:
    """Return `value` if it is a host name, optionally with `*.` before it, or an IP address."""
    name = value.lower().rstrip(".")
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        message = (
            'must be a host name such as "api.example.com", "*.example.com" or an IP address, without port or path'
        )
        raise ValueError(message)
    return name


Host = Annotated[str, AfterValidator(_check_host)]
ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,23}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$", max_length=128)]

Secret = Annotated[SecretStr, Field(strict=False)]
Variables = Annotated[Mapping[VariableName, Secret], AfterValidator(freeze)]
Headers = Annotated[Mapping[HeaderName, Secret], AfterValidator(freeze)]


class HttpGetSettings(Section):
    """The tool that fetches web pages; off while no host is allowed."""

    allow_hosts: tuple[Host, ...] = Field(
        default=(),
        strict=False,
        max_length=1000,
        description='Hosts that the tool http_get may fetch from, such as "api.example.com" or "*.example.com" (names '
        "below, not the name itself); empty: there is no such tool.",
    )
    allow_private_hosts: tuple[Host, ...] = Field(
        default=(),
        strict=False,
        max_length=1000,
        description="Hosts of allow_hosts that may have private, loopback or link-local addresses; whoever may use "
        "tools can then reach them. Cloud metadata addresses stay refused.",
    )
    allow_http: bool = Field(default=False, description="Whether http is allowed beside https.")
    timeout_s: float = Field(default=10.0, ge=0.1, le=300, description="Seconds for a whole fetch.")
    max_bytes: int = Field(
        default=_MEBI, ge=_KIBI, le=16 * _MEBI, description="Most bytes of a body that are read; the rest is lost."
    )
    content_types: tuple[str, ...] = Field(
        default=("text/*", "application/json", "application/xml", "application/*+json", "application/*+xml"),
        strict=False,
        max_length=100,
        description="Media types that are returned, * standing for any run of letters; others are refused.",
    )


class McpServerSettings(Section):
    """One MCP server, as a program that is started (`command`) or as an address (`url`)."""

    command: str = Field(default="", max_length=4096, description="Program that is started and spoken to over stdio.")
    args: tuple[str, ...] = Field(default=(), strict=False, max_length=200, description="Arguments of command.")
    env: Variables = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=200,
        description="Environment of command beside PATH, HOME and the like; nothing else of the server's own "
        "environment is passed on.",
    )
    url: BaseUrl = Field(
        default="",
        max_length=2048,
        description="Address of a server that speaks streamable HTTP, such as http://host/mcp.",
    )
    headers: Headers = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=50,
        description="Headers that are sent to url, such as Authorization.",
    )
    allow_tools: tuple[str, ...] = Field(
        default=(), strict=False, max_length=500, description="Tools of the server that are offered; empty: all."
    )
    timeout_s: float = Field(default=30.0, ge=0.1, le=3600, description="Seconds for one call.")
    connect_timeout_s: float = Field(
        default=10.0, ge=0.1, le=300, description="Seconds until the server must have told its tools."
    )


class ToolsSettings(Section):
    """The tools that models may call; a run gets none unless it allows tool use."""

    enabled: tuple[ToolName, ...] = Field(
        default=("calculator", "current_time"),
        strict=False,
        max_length=200,
        description="Installed tools that may be called; read_tool_result comes with any of them.",
    )
    timeout_s: float = Field(
        default=30.0, ge=0.1, le=3600, description="Seconds for one call of a tool that names no limit of its own."
    )
    max_shown_bytes: int = Field(
        default=4 * _KIBI,
        ge=512,
        le=_MEBI,
        description="Largest result that a model is shown whole, in bytes; of a larger one it gets the beginning, the "
        "end and a handle.",
    )
    max_kept_bytes: int = Field(
        default=8 * _MEBI,
        ge=64 * _KIBI,
        le=1024 * _MEBI,
        description="Most bytes of results that are kept for one run, to be read by handle; the oldest go first.",
    )
    http_get: HttpGetSettings = Field(default_factory=HttpGetSettings)
    mcp: Annotated[Mapping[ServerName, McpServerSettings], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=32,
        description="MCP servers by name, each a table of command, args and env, or of url and headers, and of "
        "allow_tools, timeout_s and connect_timeout_s; a tool is called NAME__TOOL. Needs the extra mcp.",
    )

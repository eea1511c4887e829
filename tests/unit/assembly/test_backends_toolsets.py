from __future__ import annotations

import pytest

from reasond_server.assembly.backends import build_tools, read_mcp_options
from reasond_server.config import Settings
from reasond_server.errors.base import SettingsError


def settings(**tools: object) -> Settings:
    return Settings.model_validate({"tools": tools})


def test_the_calculator_and_the_clock_are_there_unless_they_are_turned_off() -> None:
    assert build_tools(settings().tools).names == ["calculator", "current_time"]
    assert build_tools(settings(enabled=[]).tools).names == []


def test_nothing_can_be_fetched_before_a_host_is_allowed() -> None:
    assert "http_get" not in build_tools(settings(http_get={"allow_http": True}).tools).names
    assert "http_get" in build_tools(settings(http_get={"allow_hosts": ["api.example.com"]}).tools).names


def test_servers_are_handed_on_with_their_secrets() -> None:
    server = {"command": "x", "args": ["-v"], "env": {"K": "secret"}, "allow_tools": ["read"], "timeout_s": 3}
    (options,) = read_mcp_options(settings(mcp={"files": server}).tools)
    assert (options.name, options.command, options.args, options.env["K"]) == ("files", "x", ("-v",), "secret")
    assert (options.allow_tools, options.timeout_s) == (("read",), 3)
    assert build_tools(settings(mcp={"files": server}).tools).names == ["calculator", "current_time"]


def test_a_tool_that_is_not_installed_is_refused() -> None:
    with pytest.raises(SettingsError, match="not installed"):
        build_tools(settings(enabled=["nothing"]).tools)

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import SettingsError
from reasond_server.tools.mcp import McpOptions, McpServer, build_tool_name, describe_server, require_mcp
from reasond_server.tools.tool import ToolFailedError


@given(st.text(max_size=120), st.text(max_size=120))
def test_names_are_what_every_provider_takes_and_stay_apart(one: str, other: str) -> None:
    names = [build_tool_name("files", one), build_tool_name("files", other)]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert (names[0] == names[1]) == (one.encode("utf-8", "replace") == other.encode("utf-8", "replace"))


def test_a_plain_name_stays_as_it_is() -> None:
    assert build_tool_name("files", "read_file") == "files__read_file"
    assert build_tool_name("files", "a.b").startswith("files__a_b_")


def test_without_the_package_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"\[tools\.mcp\.files\] needs the package mcp") as caught:
        McpServer(McpOptions(name="files", command="x"))
    assert "reasond-server[mcp]" in caught.value.remedy
    monkeypatch.undo()
    require_mcp("files")


def test_secrets_of_a_server_are_not_shown() -> None:
    options = McpOptions(name="files", url="http://h/mcp", headers={"Authorization": "hunter2"}, env={"K": "hunter2"})
    assert "hunter2" not in repr(options) + describe_server(options)


async def test_a_server_that_was_not_started_can_be_closed() -> None:
    await McpServer(McpOptions(name="files", command="x")).aclose()


class Odd:
    """A connection of the MCP package. Calls fail as after a malformed result; lists fail too if `is_broken` is set.

    As in the package, a list is cached after its first request unless `cache_mode` is "bypass".
    """

    def __init__(self, *, is_broken: bool) -> None:
        self.is_broken = is_broken

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def list_tools(self, cache_mode: str = "use", **_: object) -> object:
        if cache_mode == "bypass" and self.is_broken:
            raise RuntimeError("unable to perform operation, the handler is closed")
        return SimpleNamespace(tools=[], next_cursor="")

    async def call_tool(self, *_: object, **__: object) -> object:
        raise RuntimeError("odd")


@pytest.mark.parametrize("is_broken", [True, False])
async def test_after_a_result_that_cannot_be_read_a_connection_stays_only_if_it_still_answers(
    *, is_broken: bool
) -> None:
    connections: list[Odd] = []

    class OddServer(McpServer):
        async def _build_client(self, stack: object) -> Any:
            del stack
            connections.append(Odd(is_broken=is_broken))
            return connections[-1]

    server = OddServer(McpOptions(name="odd", command="x"), jitter=lambda: 0.0)
    await server.start()
    with pytest.raises(ToolFailedError, match="cannot be read"):
        await server.call("any", {})
    assert server.is_connected is not is_broken
    await server.wait_connected()
    assert len(connections) == 1 + is_broken
    await server.aclose()

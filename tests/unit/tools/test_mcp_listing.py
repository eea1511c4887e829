"""Lists of tools with malformed entries: each is left out by its name, and the server stays."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from reasond_server.tools.mcp import McpOptions, McpServer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SCHEMA: dict[str, Any] = {"type": "object"}
MALFORMED: dict[str, Any] = {
    "no schema": {"name": "a"},
    "null as schema": {"name": "b", "inputSchema": None},
    "a list as schema": {"name": "c", "inputSchema": []},
    "a text as schema": {"name": "d", "inputSchema": "{}"},
    "an empty schema": {"name": "e", "inputSchema": {}},
    "a schema of a text": {"name": "f", "inputSchema": {"type": "string"}},
    "a schema of a list of types": {"name": "g", "inputSchema": {"type": ["object"]}},
    "a number as description": {"name": "h", "inputSchema": SCHEMA, "description": 5},
    "a text as hints": {"name": "i", "inputSchema": SCHEMA, "annotations": "read only"},
    "a list as schema of results": {"name": "j", "inputSchema": SCHEMA, "outputSchema": []},
    "a text as icons": {"name": "k", "inputSchema": SCHEMA, "icons": "x"},
    "properties that are none": {"name": "l", "inputSchema": {"type": "object", "properties": []}},
    "no name": {"inputSchema": SCHEMA},
    "a number as name": {"name": 5, "inputSchema": SCHEMA},
    "a text": "tool",
    "null": None,
    "a list": [],
}
SERVER = """
import json, sys
listed = LISTED
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    method, result = asked["method"], None
    if method == "initialize":
        about = {"name": "s", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        result = {"tools": listed}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "called"}]}
    told = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}), flush=True)
"""


def options(folder: Path, listed: list[Any]) -> McpOptions:
    program = folder / "server.py"
    program.write_text(SERVER.replace("LISTED", repr(listed)), encoding="utf-8")
    return McpOptions(name="s", command=sys.executable, args=(str(program),), connect_timeout_s=60)


async def test_a_malformed_tool_is_left_out_by_name_and_the_others_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reasond.tools")
    whole = [{"name": "first", "inputSchema": SCHEMA}, {"name": "last", "inputSchema": {**SCHEMA, "required": None}}]
    server = McpServer(options(tmp_path, [whole[0], *MALFORMED.values(), whole[1]]))
    await server.start()
    try:
        assert server.is_connected
        assert [tool.name for tool in server.tools] == ["s__first", "s__last"]
        assert await server.call("last", {}) == {"text": "called"}
    finally:
        await server.aclose()
    told = [vars(record)["tool"] for record in caplog.records if "malformed" in record.message]
    assert told[: len(MALFORMED)] == [
        *(f"'{name}'" for name in "abcdefghijkl"),
        *(f"number {n}" for n in range(14, 19)),
    ]

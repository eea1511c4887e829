"""Tools as an MCP server over stdio; they write their calls down in the file that they are told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import mcp_types as types
from mcp.server.mcpserver import MCPServer

server = MCPServer("compat", log_level="CRITICAL")


def _write_down(text: str) -> None:
    with Path(sys.argv[1]).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


@server.tool()
def note(text: str) -> str:
    """Writes a text down."""
    _write_down(text)
    return f"noted {text}"


@server.tool()
async def hang(text: str) -> str:
    """Writes a text down, and ends unless it is held."""
    return await _hold(text)


@server.tool(annotations=types.ToolAnnotations(idempotent_hint=True))
async def look(text: str) -> str:
    """Writes a text down, and ends unless it is held; does no harm when it is called again."""
    return await _hold(text)


async def _hold(text: str) -> str:
    _write_down(text)
    if Path(sys.argv[1]).with_suffix(".held").exists():
        await asyncio.Event().wait()
    return f"seen {text}"


def main() -> None:
    """Serve until the end of the input."""
    server.run("stdio")


if __name__ == "__main__":
    main()

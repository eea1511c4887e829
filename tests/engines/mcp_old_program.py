"""An MCP server of 2025 over stdio, written by hand: it announces changes of its tools without a subscription.

`python mcp_old_program.py` has the tool `grow`, which adds another one. With the argument `chatty` it prints lines that
are not messages: 4,000 of them before each of its answers.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_IS_CHATTY = sys.argv[1:] == ["chatty"]
_VERSION = "2025-06-18"
_METHOD_NOT_FOUND = -32601


def _send(message: dict[str, Any]) -> None:
    if _IS_CHATTY and "id" in message:
        sys.stdout.write("secret-of-the-program: loading model weights, 17 % done\n" * 4_000)
    sys.stdout.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n")
    sys.stdout.flush()


def _answer(method: str, names: list[str]) -> dict[str, Any]:
    if method == "initialize":
        told = {"name": "old", "version": "1"}
        return {"protocolVersion": _VERSION, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": told}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    names.append(f"grown_{len(names)}")
    return {"content": [{"type": "text", "text": f"{len(names)} tools"}]}


def main() -> None:
    """Answer until the end of the input."""
    names = ["grow"]
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        if request["method"] not in {"initialize", "tools/list", "tools/call"}:
            _send({"id": request["id"], "error": {"code": _METHOD_NOT_FOUND, "message": "unknown"}})
            continue
        _send({"id": request["id"], "result": _answer(request["method"], names)})
        if request["method"] == "tools/call":
            _send({"method": "notifications/tools/list_changed"})


if __name__ == "__main__":
    main()

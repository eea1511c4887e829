"""The client of fastmcp, unmodified: what it sees of a server. Prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from fastmcp import Client
from fastmcp.exceptions import ToolError

URL = os.environ["REASOND_MCP_URL"]


async def see() -> dict[str, object]:
    steps: list[str | None] = []

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        steps.append(message)

    async with Client(URL, auth=os.environ["REASOND_TOKEN"]) as client:
        tools = [tool.name for tool in await client.list_tools()]
        result = await client.call_tool("reason", {"query": "What is 6 times 7?"}, progress_handler=note)
        try:
            await client.call_tool("reason", {"query": ""})
        except ToolError as error:
            wrong = str(error).partition(":")[0]
        resources = await client.list_resources()
        (content,) = await client.read_resource(resources[0].uri)
    return {
        "has": "reason_react" in tools,
        "answer": result.content[0].text,
        "step": steps[-1],
        "wrong": [True, wrong],
        "read": json.loads(content.text)["result"]["answer"],
    }


sys.stdout.write(json.dumps({"fastmcp": asyncio.run(see())}))

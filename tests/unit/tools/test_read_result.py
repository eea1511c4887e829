from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.tools.read_result import ReadArguments, ReadToolResult
from reasond_server.tools.results import ResultMemory
from reasond_server.tools.tool import ToolContext, ToolFailedError

CONTEXT = ToolContext(call_id="c9", timeout_s=1)
TEXT = json.dumps({"items": [{"name": "gate"}, {"name": "WALL"}], "filler": "x" * 6_000})


@pytest.fixture
def tool() -> ReadToolResult:
    memory = ResultMemory(most_bytes=10_000)
    memory.keep("c1", "forgotten" * 500)
    memory.keep("c2", TEXT)
    return ReadToolResult(memory=memory)


async def read(tool: ReadToolResult, **arguments: object) -> Any:
    return await tool.call(ReadArguments(handle="c2", **arguments), CONTEXT)  # type: ignore[arg-type]  # unchecked, as from a model


async def test_ranges_join_to_the_whole_result(tool: ReadToolResult) -> None:
    text, offset = "", 0
    while True:
        part = await read(tool, offset=offset, limit=1_000)
        text += part["text"]
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    assert text == TEXT
    assert part["total_characters"] == len(TEXT)
    assert (await read(tool, offset=len(TEXT) + 5))["text"] == ""


async def test_places_that_contain_a_text_are_found_whatever_its_case(tool: ReadToolResult) -> None:
    found = await read(tool, contains="wall")
    assert found["places"] == 1
    assert "WALL" in found["hits"][0]["text"]
    assert (await read(tool, contains="moat")) == {"hits": [], "places": 0, "total_characters": len(TEXT)}
    many = await read(tool, contains="x", limit=400)
    assert many["places"] > len(many["hits"]) >= 1
    assert sum(len(hit["text"]) for hit in many["hits"]) <= 400


async def test_letters_that_grow_when_they_are_lowered_do_not_shift_the_places() -> None:
    memory = ResultMemory(most_bytes=1_000)
    memory.keep("c2", "\u0130" * 20 + "needle")
    found = await read(ReadToolResult(memory=memory), contains="needle")
    assert found["hits"][0]["offset"] == 20


async def test_a_json_pointer_reads_one_part(tool: ReadToolResult) -> None:
    assert (await read(tool, json_pointer="/items/1/name"))["text"] == '"WALL"'
    with pytest.raises(ToolFailedError, match=r"json_pointer '/items/2': the array before '2' has 2 entries"):
        await read(tool, json_pointer="/items/2")


async def test_a_handle_that_is_gone_or_unknown_is_told_apart(tool: ReadToolResult) -> None:
    for handle, told in (("c1", "no longer kept; make the call again"), ("c7", "is not known")):
        with pytest.raises(ToolFailedError, match=f"{told}.*can be read: c2"):
            await tool.call(ReadArguments(handle=handle), CONTEXT)

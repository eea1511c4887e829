"""The built-in tool by which a model reads the parts that a preview or a masked observation omits."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from reasond_server.errors.base import show
from reasond_server.llm.model import LONG_TEXT_CHARACTERS
from reasond_server.tools.results import ResultMemory, resolve_pointer, to_json_text
from reasond_server.tools.tool import ArgumentsRefusedError, ModelledTool, ToolArguments, ToolContext

READ_TOOL_RESULT: Final = "read_tool_result"
MAX_READ_CHARACTERS: Final = 8_000
_MAX_HITS = 20
_AROUND_HIT = 160


class ReadArguments(ToolArguments):
    """Arguments that select a result and a part of it."""

    handle: Annotated[str, Field(max_length=64, description="The handle of the result, such as c3.")]
    offset: Annotated[int, Field(ge=0, description="Character of the result's text to begin at.")] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_READ_CHARACTERS, description="Most characters to return.")] = 4_000
    contains: Annotated[
        str | None,
        Field(min_length=1, max_length=200, description="Return only places with this text, whatever its case."),
    ] = None
    json_pointer: Annotated[
        str | None, Field(max_length=500, description="Read only this part of the result, such as /items/0/name.")
    ] = None


class ReadToolResult(ModelledTool[ReadArguments]):
    """Reads the results of one run; each toolbox has its own instance.

    A result of this tool is bounded by `limit`, shown whole, and has no handle, so no read ever needs another read.
    """

    name: ClassVar[str] = READ_TOOL_RESULT
    description: ClassVar[str] = (
        "Reads an earlier tool result by its handle, where only a preview or a placeholder is shown: a range of "
        "characters, the places that contain a text, or the part at a JSON pointer."
    )
    arguments_type: ClassVar[type[ToolArguments]] = ReadArguments
    is_idempotent = True

    def __init__(self, *, memory: ResultMemory) -> None:
        self._memory = memory

    async def call(self, arguments: ReadArguments, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        """Return the requested part.

        Raises:
            ArgumentsRefusedError: the result or the part does not exist.
        """
        text = self._memory.find(arguments.handle)
        if text is None:
            raise ArgumentsRefusedError(_describe_missing(arguments.handle, self._memory))
        if len(text) > LONG_TEXT_CHARACTERS:
            return await asyncio.to_thread(read_part, text, arguments)
        return read_part(text, arguments)


def read_part(text: str, arguments: ReadArguments) -> object:
    """Return the part of the result `text` that `arguments` select. A long text is best read in a thread.

    Raises:
        ArgumentsRefusedError: the part does not exist.
    """
    if arguments.json_pointer is not None:
        try:
            text = to_json_text(resolve_pointer(text, arguments.json_pointer))
        except ValueError as error:
            raise ArgumentsRefusedError(f"json_pointer {show(arguments.json_pointer)}: {error}") from None
    if arguments.contains is not None:
        hits, count = find_places(text, arguments.contains, offset=arguments.offset, limit=arguments.limit)
        return {"hits": hits, "places": count, "total_characters": len(text)}
    part = text[arguments.offset : arguments.offset + arguments.limit]
    end = arguments.offset + len(part)
    answer: dict[str, Any] = {"text": part, "offset": arguments.offset, "total_characters": len(text)}
    return answer | ({"next_offset": end} if end < len(text) else {})


def find_places(text: str, wanted: str, *, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    """Return places from `offset` on at which `wanted` occurs, whatever its case, and how many there are.

    A place is its "offset" and the "text" around it. At most 20 are returned, with at most `limit` characters together.
    """
    wanted, folded = wanted.lower(), text.lower()
    # The lower-case text can be longer than the text, which would make the offsets wrong.
    folded = folded if len(folded) == len(text) else text
    hits: list[dict[str, Any]] = []
    at, room, count = folded.find(wanted, offset), limit, 0
    while at >= 0:
        count += 1
        shown_part = text[max(0, at - _AROUND_HIT) : at + len(wanted) + _AROUND_HIT]
        if len(hits) < _MAX_HITS and len(shown_part) <= room:
            hits.append({"offset": at, "text": shown_part})
            room -= len(shown_part)
        at = folded.find(wanted, at + len(wanted) + _AROUND_HIT)
    return hits, count


def _describe_missing(handle: str, memory: ResultMemory) -> str:
    there = ", ".join(memory.handles[-20:]) or "none"
    why = "is no longer kept; make the call again" if memory.is_forgotten(handle) else "is not known"
    return f"the handle {show(handle)} {why}. Handles that can be read: {there}"

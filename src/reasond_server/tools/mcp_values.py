"""Converts results, descriptions and schemas of MCP servers for the executor."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from reasond_server.tools.json_schemas import build_validator
from reasond_server.tools.schema_steps import SchemaUnusableError
from reasond_server.tools.tool import ToolFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.errors.base import Violation
    from reasond_server.types import Json

_MAX_DESCRIPTION: Final = 2_000
_MAX_ERROR: Final = 2_000
# The event loop waits for the check.
_MAX_STEPS: Final = 2_000


def value_of(result: Any) -> object:  # noqa: ANN401 - a type of the optional package
    """Return the value of a `CallToolResult`: its structured content, its only text, or all of its parts.

    Raises:
        ToolFailedError: the server reports that the call failed; its text is for the model.
    """
    parts = [_read_part(block) for block in result.content]
    if result.is_error:
        text = "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        raise ToolFailedError(text[:_MAX_ERROR] or "the tool failed and did not say why")
    if result.structured_content is not None:
        return result.structured_content
    if len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return {"text": parts[0]["text"]}
    return {"content": parts}


def describe_tool(told: Any) -> str:  # noqa: ANN401 - as above
    """Return the tool's description; without one its title, without both its name."""
    text = told.description or told.title or told.name
    return " ".join(str(text).split())[:_MAX_DESCRIPTION]


def build_argument_check(schema: Json) -> Callable[[Json], Sequence[Violation]]:
    """Return a function that checks arguments by `schema`; one that cannot be used accepts everything.

    So it does with arguments whose check could take more than 20 ms. The server checks again.
    """

    @cache
    def build() -> Callable[[object], Sequence[Violation]]:
        # Not before the first call: a server may list many tools with large schemas.
        try:
            return build_validator(schema, max_steps=_MAX_STEPS)
        except SchemaUnusableError:
            return lambda _: ()

    def check_arguments(arguments: Json) -> Sequence[Violation]:
        try:
            return build()(dict(arguments))
        except SchemaUnusableError:
            return ()

    return check_arguments


def _read_part(block: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Return one block of content; only the size for data other than text."""
    part: dict[str, Any] = {"type": block.type}
    if block.type == "text":
        part["text"] = block.text
    elif block.type in {"image", "audio"}:
        part |= {"mime_type": block.mime_type, "left_out_base64_characters": len(block.data)}
    elif block.type == "resource_link":
        part |= {"uri": str(block.uri), "name": block.name}
    elif block.type == "resource":
        part["uri"] = str(block.resource.uri)
        text = getattr(block.resource, "text", None)
        part |= {"text": text} if text is not None else {"left_out_base64_characters": len(block.resource.blob)}
    return part

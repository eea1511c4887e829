"""Converts results and descriptions of MCP servers for the executor, and checks arguments by their JSON Schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import Violation, show
from reasond_server.tools.tool import ToolFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.types import Json

_MAX_VIOLATIONS: Final = 10
_MAX_DESCRIPTION: Final = 2_000
_MAX_ERROR: Final = 2_000


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


def build_validator(schema: Json) -> Callable[[Json], Sequence[Violation]]:
    """Return a function that checks arguments by `schema`; an invalid schema accepts everything.

    The server checks again. Only the server evaluates regular expressions of the schema, because a hostile expression
    can run without end. References to other documents are not followed.
    """
    from jsonschema import Draft202012Validator, validators  # type: ignore[import-untyped]  # noqa: PLC0415 - comes with mcp, without types
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    from referencing import Registry  # noqa: PLC0415 - as above

    kind = validators.extend(
        Draft202012Validator, {"pattern": _accept, "patternProperties": _accept, "propertyNames": _accept}
    )
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return lambda _: ()
    checker = kind(schema, registry=Registry())

    def find_violations(arguments: Json) -> Sequence[Violation]:
        found = []
        for error in checker.iter_errors(dict(arguments)):
            path = ".".join(str(part)[: _MAX_VIOLATIONS * 10] for part in error.absolute_path)
            found.append(Violation(field=path, description=_describe_error(error)))
            if len(found) == _MAX_VIOLATIONS:
                break
        return found

    return find_violations


def _accept(*_: object) -> tuple[()]:
    return ()


def _describe_error(error: Any) -> str:  # noqa: ANN401 - a type of the optional package
    """Describe how a value violates a keyword of the schema, without the text of the error."""
    keyword, wanted, value = error.validator, error.validator_value, error.instance
    if keyword == "required":
        missing = [name for name in wanted if name not in value]
        return f"must have {', '.join(map(show, missing))}"
    if keyword == "additionalProperties" and isinstance(error.schema.get("properties"), dict):
        known = error.schema["properties"]
        unknown = ", ".join(show(name) for name in value if name not in known)
        return f"must not have {unknown}; known are {', '.join(map(show, known)) or 'none'}"
    return f"must satisfy {keyword} {show(wanted)}, got {show(value)}"


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

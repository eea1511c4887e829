from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest

from reasond_server.tools.mcp import build_argument_check, describe_tool, read_value
from reasond_server.tools.tool import ToolFailedError

if TYPE_CHECKING:
    from collections.abc import Sequence


def result(*content: Any, structured: object = None, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=list(content), structured_content=structured, is_error=is_error)


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


def test_structured_content_is_the_value_and_a_single_text_is_told_as_one() -> None:
    assert read_value(result(text("{}"), structured={"a": 1})) == {"a": 1}
    assert read_value(result(text("hello"))) == {"text": "hello"}
    assert read_value(result()) == {"content": []}


def test_parts_that_are_no_text_are_told_by_kind_and_size() -> None:
    embedded = types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri="file:///a", text="inside")
    )
    blob = types.EmbeddedResource(type="resource", resource=types.BlobResourceContents(uri="file:///b", blob="aGk="))
    link = types.ResourceLink(type="resource_link", uri="file:///c", name="c")
    audio = types.AudioContent(type="audio", data="aGk=", mime_type="audio/wav")
    assert read_value(result(embedded, blob, link, audio)) == {
        "content": [
            {"type": "resource", "uri": "file:///a", "text": "inside"},
            {"type": "resource", "uri": "file:///b", "left_out_base64_characters": 4},
            {"type": "resource_link", "uri": "file:///c", "name": "c"},
            {"type": "audio", "mime_type": "audio/wav", "left_out_base64_characters": 4},
        ]
    }


def test_an_error_is_told_with_its_text() -> None:
    with pytest.raises(ToolFailedError, match=r"^one\ntwo$"):
        read_value(result(text("one"), text("two"), is_error=True))
    with pytest.raises(ToolFailedError, match="did not say why"):
        read_value(result(is_error=True))


def test_a_tool_without_a_description_is_told_by_title_or_name() -> None:
    schema: dict[str, Any] = {"type": "object"}
    assert describe_tool(types.Tool(name="n", description=" a\n b ", input_schema=schema)) == "a b"
    assert describe_tool(types.Tool(name="n", title="t", input_schema=schema)) == "t"
    assert describe_tool(types.Tool(name="n", input_schema=schema)) == "n"


def find(schema: dict[str, Any], arguments: dict[str, Any]) -> Sequence[str]:
    return [f"{one.field}: {one.description}" for one in build_argument_check(schema)(arguments)]


def test_wrong_arguments_are_told_by_path_value_and_what_would_be_right() -> None:
    schema = {
        "type": "object",
        "properties": {"list": {"type": "array", "items": {"type": "integer", "maximum": 5}}, "kind": {"enum": ["a"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    assert find(schema, {"kind": "a", "list": [1, 2]}) == []
    assert find(schema, {"list": [1, 9], "x": 1}) == [
        "list.1: must satisfy maximum 5, got 9",
        ": must not have 'x'; known are 'list', 'kind'",
        ": must have 'kind'",
    ]
    assert len(find({"properties": {f"a{n}": False for n in range(50)}}, {f"a{n}": 1 for n in range(50)})) == 10


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 7},
        {"properties": {"a": {"pattern": "^(?!a)"}}},
        {"patternProperties": {"(": {}}},
        {"$ref": "#"},
        {"properties": {"a": {"allOf": [{"pattern": "^(a+)+$"}] * 50}}, "maxProperties": 300},
    ],
)
def test_schemas_that_are_none_or_could_take_too_long_let_everything_pass(schema: dict[str, Any]) -> None:
    assert find(schema, {"a": "a" * 400 + "!"}) == []


def test_references_to_other_documents_are_not_followed() -> None:
    assert find({"properties": {"a": {"$ref": "http://127.0.0.1:9/schema"}}}, {"a": 1}) == []

"""The parameters of the Responses interface, and how its items are read."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field
from pydantic_core import to_json

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import Params, Whole
from reasond_server.protocols.conversations import build_tool, read_image
from reasond_server.protocols.responses.response_json import ECHO
from reasond_server.protocols.wire_params import WireParams
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.conversations import ConversationBuilder
    from reasond_server.types import Image, Json
    from reasond_server.types.turns import ClientTool

_MOST_PROBLEMS: Final = 20
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_SYSTEM: Final = frozenset({"system", "developer"})
_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs")


class ResponseParams(WireParams):
    """The parameters of `POST /v1/responses`."""

    model: str = "reasond"
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Whole | None = None
    max_tool_calls: Whole | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: Whole | None = None
    seed: Whole | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
    service_tier: str | None = None
    attach_key: str = ""
    is_first: bool = False

    def echo(self, warnings: Sequence[str]) -> dict[str, Any]:
        """Return what the response tells of the request."""
        told = {name: each for name in ECHO if (each := getattr(self, name, None)) is not None}
        told["tools"] = [_describe_tool(tool) for tool in self.tools or ()]
        if self.text is not None:
            told["text"] = {"format": {"type": "text"}, **{name: each for name, each in self.text.items() if each}}
        if self.reasoning is not None:
            told["reasoning"] = {"effort": self.reasoning.get("effort"), "summary": self.reasoning.get("summary")}
        return {**told, "warnings": [*self.warnings, *warnings]}


class ResponseIdParams(Params):
    """The parameters of the paths below a response: `stream` its events after the number `starting_after`."""

    response_id: str
    starting_after: Whole = -1
    after: str = ""
    limit: Whole = Field(default=20, ge=1, le=100)
    order: str = "desc"


def read_items(items: Sequence[Mapping[str, Any]], builder: ConversationBuilder) -> list[str]:
    """Read the items of an input into `builder`; return warnings about those that are passed over.

    Raises:
        InvalidRequestError: an item is malformed.
    """
    problems: list[Violation] = []
    warnings: list[str] = []
    for place, item in enumerate(items):
        field = f"input.{place}"
        kind = item.get("type") or ("message" if "role" in item else "")
        if kind == "message":
            problems += _read_message(field, item, builder)
        elif kind in _CALLS:
            builder.add_assistant("", [_read_call(item, kind)])
        elif kind in _OUTPUTS:
            text, _, found = _read_parts(f"{field}.output", item.get("output"))
            problems += found
            builder.add_result(str(item.get("call_id") or ""), text, is_error=item.get("status") == "incomplete")
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary")
            builder.add_reasoning(_read_parts(field, parts if isinstance(parts, list) else [])[0])
        else:
            warnings.append(f"The item input.{place} of the type {show(kind)} is passed over.")
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise InvalidRequestError.of(*problems[:_MOST_PROBLEMS])
    return warnings[:_MOST_PROBLEMS]


def _read_message(field: str, item: Mapping[str, Any], builder: ConversationBuilder) -> list[Violation]:
    role = item.get("role")
    text, images, found = _read_parts(f"{field}.content", item.get("content"))
    if role == "user":
        builder.add_user(text, images)
    elif role == "assistant":
        builder.add_assistant(text)
    elif role in _SYSTEM:
        builder.instruct(text)
    else:
        text = f"must be 'user', 'assistant', 'system' or 'developer', got {show(role)}"
        found.append(Violation(field=f"{field}.role", description=text))
    return found


def _read_call(item: Mapping[str, Any], kind: str) -> ToolCall:
    written = item.get(_CALLS[kind])
    arguments = written if isinstance(written, str) else to_json(written or {}).decode()
    if kind == "custom_tool_call":
        arguments = to_json({"input": arguments}).decode()
    return ToolCall(
        call_id=str(item.get("call_id") or item.get("id") or ""),
        name=str(item.get("name") or ""),
        arguments_json=arguments,
    )


def _read_parts(field: str, content: object) -> tuple[str, list[Image], list[Violation]]:
    """Return the text and the images of a content, which is a text or a list of parts, and what is wrong with it."""
    if isinstance(content, str) or content is None:
        return content or "", [], []
    if not isinstance(content, list):
        text = f"must be a text or a list of parts, got {show(content)}"
        return "", [], [Violation(field=field, description=text)]
    texts: list[str] = []
    images: list[Image] = []
    found: list[Violation] = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal":
            texts.append(str(part.get("refusal") or ""))
        elif kind == "input_image":
            read = read_image(f"{field}.{place}.image_url", part.get("image_url"))
            if isinstance(read, Violation):
                found.append(read)
            else:
                images.append(read)
        elif kind == "input_file":
            text, odd = _read_file(f"{field}.{place}", part)
            texts.append(text)
            found += odd
        else:
            text = f"must be an input_text, output_text or input_image; {show(kind)} is not supported"
            found.append(Violation(field=f"{field}.{place}", description=text))
    return "\n".join(texts), images, found[:_MOST_PROBLEMS]


def _read_file(field: str, part: Mapping[str, Any]) -> tuple[str, list[Violation]]:
    """Return the text of a file that is sent as base64, under its name, and what is wrong with it."""
    encoded = str(part.get("file_data") or "").rpartition(",")[2]
    try:
        content = base64.b64decode(encoded, validate=True).decode("utf-8")
    except ValueError:
        content = ""
    if content.strip() and "\0" not in content and not content.startswith("%PDF"):
        return f"File {show(part.get('filename'))}:\n{content}", []
    text = "must be a file of UTF-8 text in base64: other files are not read here, and no URLs or ids are fetched"
    return "", [Violation(field=f"{field}.file_data", description=text)]


def read_tools(params: ResponseParams) -> tuple[Sequence[ClientTool], str, list[str]]:
    """Return the tools that may be called, what is forced (see `TurnStart.tool_choice`), and warnings.

    Raises:
        InvalidRequestError: the choice names no tool that is offered.
    """
    tools: list[ClientTool] = []
    warnings: list[str] = []
    for tool in params.tools or ():
        if tool.get("type") in {None, "function"}:
            tools.append(build_tool(tool.get("name"), tool.get("description"), tool.get("parameters")))
        elif tool.get("type") == "custom":
            schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
            tools.append(build_tool(tool.get("name"), tool.get("description"), schema))
            warnings.append(
                f"The custom tool {show(tool.get('name'))} is called as a function with the text in 'input'."
            )
        else:
            warnings.append(
                f"The tool {show(tool.get('name') or tool.get('type'))} is not supported and is not offered."
            )
    choice = params.tool_choice or "auto"
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            names = {each.get("name") for each in choice.get("tools") or () if isinstance(each, dict)}
            return [tool for tool in tools if tool.name in names], str(choice.get("mode") or "auto"), warnings
        choice = str(choice.get("name") or "")
        if choice not in {tool.name for tool in tools}:
            text = f"must name a function that is offered, got {show(choice)}"
            raise InvalidRequestError.of(Violation(field="tool_choice", description=text))
    return ([] if choice == "none" else tools), choice, warnings


def read_schema(text: Mapping[str, Any] | None) -> Json | None:
    """Return the schema that `text.format` asks for; None for text.

    Raises:
        InvalidRequestError: there is no such format.
    """
    given = (text or {}).get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    schema = given.get("schema") if isinstance(given, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        description = f"must be of the type 'text', 'json_object' or 'json_schema' with a 'schema', got {show(kind)}"
        raise InvalidRequestError.of(Violation(field="text.format", description=description))
    return schema


def list_sampling(params: ResponseParams) -> dict[str, Any]:
    """Return the sampling values that were sent."""
    found = {name: getattr(params, name) for name in (*_SAMPLING, "seed") if getattr(params, name)}
    if (effort := (params.reasoning or {}).get("effort")) is not None:
        found["reasoning_effort"] = effort
    return found


def _describe_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in {None, "function"}:
        return dict(tool)
    return {
        "type": "function",
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict", True),
    }

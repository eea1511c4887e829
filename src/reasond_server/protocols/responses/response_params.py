"""The parameters of the Responses interface, and how its items are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field
from pydantic_core import to_json

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import Params, Whole
from reasond_server.protocols.message_parts import MOST_PROBLEMS, read_content
from reasond_server.protocols.openai_requests import (
    SAMPLING,
    RequestInputs,
    read_bounds,
    read_format,
    read_offer,
    require_question,
)
from reasond_server.protocols.responses.response_json import ECHO, LOGPROBS, SEALED
from reasond_server.protocols.sealed_reasoning import unseal
from reasond_server.protocols.wire_params import WireParams
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.conversations import ConversationBuilder, Dialogue

_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_SYSTEM: Final = frozenset({"system", "developer"})


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
    truncation: Literal["auto", "disabled"] | None = None
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
        members = {name: each for name in ECHO if (each := getattr(self, name, None)) is not None}
        members["tools"] = [_describe_tool(tool) for tool in self.tools or ()]
        if self.text is not None:
            members["text"] = {"format": {"type": "text"}, **{name: each for name, each in self.text.items() if each}}
        if self.reasoning is not None:
            members["reasoning"] = {"effort": self.reasoning.get("effort"), "summary": self.reasoning.get("summary")}
        if included := [name for name in (SEALED, LOGPROBS) if name in (self.include or ())]:
            members["include"] = included
        return {**members, "warnings": list(warnings)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is said of the members that are ignored, or have no effect."""
        others = [name for name in self.include or () if name not in {SEALED, LOGPROBS}]
        found = [f"include {show(name)} has no effect: nothing more is told here." for name in others[:MOST_PROBLEMS]]
        return (*super().warnings, *found)


class ResponseIdParams(Params):
    """The parameters of the paths below a response: `stream` its events after the number `starting_after`."""

    response_id: str
    starting_after: Whole = -1
    after: str = ""
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    stream: Literal["true", "false"] = "false"


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
        if not isinstance(kind, str):
            problems.append(Violation(field=f"{field}.type", description=f"must be a text, got {show(kind)}"))
        elif kind == "message":
            problems += _read_message(field, item, builder, warnings)
        elif kind in _CALLS:
            builder.add_assistant("", [_read_call(item, kind)])
        elif kind in _OUTPUTS:
            content = read_content(f"{field}.output", item.get("output"), is_asked=False)
            problems += content.problems
            warnings += content.warnings
            is_error = item.get("status") == "incomplete"
            builder.add_result(str(item.get("call_id") or ""), content.text, is_error=is_error)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary")
            shown = read_content(field, parts if isinstance(parts, list) else []).text
            text = shown or unseal(item.get("encrypted_content"))
            builder.add_reasoning(text)
            if not text and item.get("encrypted_content"):
                warnings.append(f"The reasoning {field} is sealed by another server, and is passed over.")
        else:
            warnings.append(f"The item input.{place} of the type {show(kind)} is passed over.")
        if len(problems) >= MOST_PROBLEMS:
            break
    if problems:
        raise InvalidRequestError.of(*problems[:MOST_PROBLEMS])
    return warnings[:MOST_PROBLEMS]


def _read_message(
    field: str, item: Mapping[str, Any], builder: ConversationBuilder, warnings: list[str]
) -> list[Violation]:
    role = item.get("role")
    content = read_content(f"{field}.content", item.get("content"), is_asked=role == "user")
    found = list(content.problems)
    warnings += content.warnings
    if role == "user":
        builder.add_user(content.text, content.images)
    elif role == "assistant":
        builder.add_assistant(content.text)
    elif isinstance(role, str) and role in _SYSTEM:
        builder.instruct(content.text)
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


def read_inputs(params: ResponseParams, dialogue: Dialogue) -> RequestInputs:
    """Return what a request says, after `dialogue`.

    Raises:
        InvalidRequestError: there is no such format or tool, or nothing was said.
    """
    schema, problems = read_format("text.format", (params.text or {}).get("format"))
    offer = read_offer(params.tools or (), params.tool_choice)
    if problems := [*problems, *offer.problems]:
        raise InvalidRequestError.of(*problems)
    given = {name: getattr(params, name, None) for name in SAMPLING}
    given["reasoning_effort"] = (params.reasoning or {}).get("effort")
    given["top_logprobs"] = (params.top_logprobs or 0) if LOGPROBS in (params.include or ()) else None
    return RequestInputs(
        model=params.model,
        system=dialogue.system,
        question=require_question(dialogue, "input"),
        own=params.reasond,
        offer=offer,
        schema=schema,
        budget=read_bounds(params.reasond, params.max_output_tokens, tool_calls=params.max_tool_calls),
        sampling={name: each for name, each in given.items() if each is not None},
        parallel_tool_calls=params.parallel_tool_calls is not False,
    )


def _describe_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in [None, "function"]:
        return dict(tool)
    return {
        "type": "function",
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict", True),
    }

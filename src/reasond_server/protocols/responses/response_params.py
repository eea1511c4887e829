"""The parameters of the Responses interface, and how its items are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field
from pydantic_core import to_json

from reasond_server.errors.base import show
from reasond_server.http_api.params import Params, Whole
from reasond_server.protocols.conversations import unseal, write_arguments
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
from reasond_server.protocols.wire_params import OpenAiParams
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.conversations import ConversationBuilder, Dialogue

# Where calls that another server has run have their results, and what else of them is no argument.
_RESULTS: Final = ("output", "outputs", "results", "result", "error")
_AROUND: Final = frozenset({"type", "id", "call_id", "name", "status", *_RESULTS})
_FUNCTION: Final = {"type": "function", "name": None, "description": None, "parameters": None, "strict": True}


class ResponseParams(OpenAiParams):
    """The parameters of `POST /v1/responses`."""

    model: str = "reasond"
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    include: list[str] | None = None
    max_output_tokens: Whole | None = None
    max_tool_calls: Whole | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    attach_key: str = ""
    is_first: bool = False

    def echo(self, warnings: Sequence[str]) -> dict[str, Any]:
        """Return what the response tells of the request."""
        sent = self.model_fields_set
        members = {name: each for name in ECHO if name in sent and (each := getattr(self, name)) is not None}
        members["tools"] = [
            _FUNCTION | each if each.get("type") in [None, "function"] else each for each in self.tools or ()
        ]
        if self.text is not None:
            members["text"] = {"format": {"type": "text"}, **{name: each for name, each in self.text.items() if each}}
        if self.reasoning is not None:
            members["reasoning"] = {name: self.reasoning.get(name) for name in ECHO["reasoning"]}
        return {**members, "include": self.include or [], "warnings": list(warnings)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is said of the members that are ignored, or have no effect."""
        others = [show(name) for name in (self.include or ())[:MOST_PROBLEMS] if name not in {SEALED, LOGPROBS}]
        return (*super().warnings, *(f"include {name} has no effect: nothing more is told here." for name in others))


class ResponseIdParams(Params):
    """The parameters of the paths below a response: `stream` its events after the number `starting_after`."""

    response_id: str
    starting_after: Whole = -1
    after: str = ""
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    stream: Literal["true", "false"] = "false"


def read_items(items: Sequence[Mapping[str, Any]], builder: ConversationBuilder) -> None:
    """Read the items of an input into `builder`."""
    for place, item in enumerate(items):
        field = f"input.{place}"
        kind = item.get("type") or ("message" if "role" in item else "")
        if not isinstance(kind, str):
            builder.refuse(f"{field}.type", f"must be a text, got {show(kind)}")
        elif kind == "message":
            builder.say(field, item.get("role"), item.get("content"))
        elif kind.endswith(("_call", "_output")) and kind != "image_generation_call":
            _read_tool_use(field, kind, item, builder)
        elif kind == "reasoning":
            parts, sealed = item.get("content") or item.get("summary"), item.get("encrypted_content")
            text = read_content(field, parts if isinstance(parts, list) else []).text or unseal(sealed)
            builder.add_reasoning(text)
            if sealed and not text:
                builder.warnings[f"The reasoning {field} is sealed by another server, and is passed over."] = None
        else:
            builder.warnings[f"The item {field} of the type {show(kind)} is passed over."] = None


def _read_tool_use(field: str, kind: str, item: Mapping[str, Any], builder: ConversationBuilder) -> None:
    """Read a call, a result, or a call with its result, of a tool of any kind, also of one that is not offered here."""
    call_id = str(item.get("call_id") or item.get("id") or "")
    result = next((name for name in _RESULTS if item.get(name) is not None), "")
    if kind.endswith("_call"):
        builder.add_assistant("", [_read_call(call_id, kind, item)])
    if result or kind.endswith("_output"):
        text = builder.read(f"{field}.{result}", item.get(result)).text
        builder.add_result(call_id, text, is_error=item.get("status") in ["incomplete", "failed"])


def _read_call(call_id: str, kind: str, item: Mapping[str, Any]) -> ToolCall:
    own = {name: each for name, each in item.items() if name not in _AROUND}
    given = own if "arguments" not in own else own["arguments"] or {}
    arguments = given if isinstance(given, str) else to_json(given).decode()
    if kind == "custom_tool_call":
        arguments = write_arguments(item.get("input"))
    return ToolCall(call_id=call_id, name=str(item.get("name") or kind.removesuffix("_call")), arguments_json=arguments)


def read_inputs(params: ResponseParams, dialogue: Dialogue) -> RequestInputs:
    """Return what a request says, after `dialogue`.

    Raises:
        InvalidRequestError: nothing was said.
    """
    schema, problems = read_format("text.format", (params.text or {}).get("format"))
    sent = params.model_fields_set
    given = {name: getattr(params, name) for name in SAMPLING if name in sent}
    given["reasoning_effort"] = (params.reasoning or {}).get("effort")
    given["top_logprobs"] = (params.top_logprobs or 0) if LOGPROBS in (params.include or ()) else None
    return RequestInputs(
        model=params.model,
        system=dialogue.system,
        question=require_question(dialogue, "input"),
        own=params.reasond,
        offer=read_offer(params.tools or (), params.tool_choice),
        schema=schema,
        problems=problems,
        budget=read_bounds(params.reasond, params.max_output_tokens, tool_calls=params.max_tool_calls),
        sampling={name: each for name, each in given.items() if each is not None},
        parallel_tool_calls=params.parallel_tool_calls is not False,
    )

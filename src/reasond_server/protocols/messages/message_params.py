"""The body of `POST /v1/messages`, by Anthropic's names: what it asks for, and its blocks in the one inner shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field
from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation, show
from reasond_server.http_api.params import Whole  # noqa: TC001 - pydantic reads it
from reasond_server.protocols.conversations import (
    BETWEEN,
    ConversationBuilder,
    Dialogue,
    LastMessage,
    find_question,
    unseal,
)
from reasond_server.protocols.message_parts import read_content
from reasond_server.protocols.openai_requests import (
    OfferedTools,
    RequestInputs,
    plan,
    read_bounds,
    read_format,
    read_offer,
    require_question,
)
from reasond_server.protocols.wire_params import WireParams
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked

# Tuples, because a client may send a list in the place of a name.
_SHOWN: Final = ("text", "image", "document", "search_result")
_ROLES: Final = ("user", "assistant", "system")
# A line that a client changes with each request: before the prompt it would end every prefix that a model server keeps.
_BILLING: Final = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
# Where the parts that blocks are read as have what is wrong with them.
_SOURCES: Final = re.compile(r"\.(?:image_url\.url|file\.file_data)\Z")
_MOST_MESSAGES: Final = 10_000
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_WITHOUT_EFFECT: Final = ("context_management", "container", "mcp_servers")


def read_system(given: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the instructions, without the line of accounting that some clients begin them with."""
    texts = [given] if isinstance(given, str) else [str(block.get("text") or "") for block in given or ()]
    kept = [
        _BILLING.sub("", text, count=1) if text.startswith("x-anthropic-billing-header:") else text for text in texts
    ]
    return "\n\n".join(text for text in kept if text)


def read_messages(messages: Sequence[Mapping[str, Any]], *, system: str) -> Dialogue:
    """Return the conversation.

    Raises:
        InvalidRequestError: a message is malformed.
    """
    builder = ConversationBuilder()
    builder.instruct(system)
    for place, message in enumerate(messages):
        field, role, content = f"messages.{place}", message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role not in _ROLES:
            builder.refuse(f"{field}.role", f"must be 'user' or 'assistant', got {show(role)}")
        elif not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            builder.refuse(f"{field}.content", f"must be a text or a list of blocks, got {show(content)}")
        elif role == "assistant":
            _read_assistant(blocks, builder)
        else:
            _read_user(f"{field}.content", blocks, builder, is_system=role == "system")
    builder.problems = [replace(one, field=_SOURCES.sub(".source", one.field)) for one in builder.problems]
    return builder.build()


def _read_user(
    field: str, blocks: Sequence[Mapping[str, Any]], builder: ConversationBuilder, *, is_system: bool
) -> None:
    """Read what the user says, after the results that the message has."""
    said: list[Mapping[str, Any]] = []
    for place, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_result":
            given = block.get("content")
            nested = [_convert(each) for each in given] if isinstance(given, list) else given
            text = builder.read(f"{field}.{place}.content", nested).text
            builder.add_result(str(block.get("tool_use_id") or ""), text, is_error=block.get("is_error") is True)
        elif kind in _SHOWN:
            said.append(_convert(block))
        else:
            said.append({"type": "text", "text": ""})
            _pass_over(kind, builder)
    content = builder.read(field, said, is_asked=not is_system)
    if is_system:
        builder.instruct(content.text)
    else:
        builder.add_user(content.text.strip("\n"), content.images)


def _read_assistant(blocks: Sequence[Mapping[str, Any]], builder: ConversationBuilder) -> None:
    """Read what the model said and thought, and the tools that it called."""
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            builder.add_assistant(str(block.get("text") or ""))
        elif kind == "thinking":
            builder.add_reasoning(unseal(block.get("signature")) or str(block.get("thinking") or ""))
        elif kind == "tool_use":
            call = ToolCall(
                call_id=str(block.get("id") or ""),
                name=str(block.get("name") or "unnamed"),
                arguments_json=to_json(block.get("input") or {}).decode(),
            )
            builder.add_assistant("", [call])
        else:
            _pass_over(kind, builder)


def _pass_over(kind: object, builder: ConversationBuilder) -> None:
    builder.warnings[f"Blocks of the type {show(kind)} are not shown to the model."] = None


def _convert(block: object) -> Mapping[str, Any]:
    """Return a block as the part that `read_content` knows."""
    if not isinstance(block, dict):
        return {"type": None}
    kind, given = block.get("type"), block.get("source")
    source = given if isinstance(given, dict) else {}
    if kind == "image":
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data') or ''}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "search_result":
        texts = [block.get("title"), given, read_content("", block.get("content"), is_asked=False).text]
        return {"type": "text", "text": "\n".join(str(text) for text in texts if text)}
    return _convert_document(block, source) if kind == "document" else block


def _convert_document(block: Mapping[str, Any], source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document as the part that `read_content` knows."""
    title, data = block.get("title") or "document", source.get("data") or ""
    if source.get("type") == "content":
        given = source.get("content")
        data = read_content("", [given] if isinstance(given, dict) else given).text
    if source.get("type") in ["text", "content"]:
        return {"type": "text", "text": f"File {show(title)}:\n{data}"}
    return {"type": "file", "file": {"filename": title, "file_data": data}}


class MessageParams(WireParams):
    """The parameters of a message; `max_tokens` bounds all that the execution writes."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=_MOST_MESSAGES)]
    max_tokens: Whole | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    context_management: Any = None
    container: Any = None
    mcp_servers: Any = None
    # Without any effect on an answer.
    metadata: Any = None
    service_tier: Any = None
    cache_control: Any = None
    inference_geo: Any = None
    attach_key: str = ""
    is_first: bool = False

    @property
    def shows_thinking(self) -> bool:
        """Whether the steps are told; a client that does not ask takes the first block for the answer."""
        return (self.thinking or {}).get("type") not in [None, "disabled"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is said of the members that are ignored, or have no effect."""
        found = [f"{name} has no effect." for name in _WITHOUT_EFFECT if getattr(self, name)]
        if "budget_tokens" in (self.thinking or {}):
            found.append("thinking.budget_tokens has no effect: max_tokens bounds all that is written.")
        return (*super().warnings, *found)


def read_message_request(params: MessageParams, catalogue: ModelCatalogue) -> Asked:
    """Return what `params` ask for; with tools, or with results for a turn that waits here, it is a turn.

    Raises:
        StrategyNotFoundError: there is no such model.
        InvalidRequestError: a parameter cannot be done, or contradicts the model.
    """
    config = params.output_config or {}
    field = "output_config.format" if config.get("format") else "output_format"
    schema, wrong = read_format(field, config.get("format") or params.output_format)
    dialogue = read_messages(params.messages, system=read_system(params.system))
    given = {name: getattr(params, name) for name in _SAMPLING} | {"reasoning_effort": config.get("effort")}
    inputs = RequestInputs(
        model=params.model,
        system=dialogue.system,
        question=_find_question(dialogue),
        own=params.reasond,
        offer=_read_offer(params.tools or (), params.tool_choice or {}),
        schema=schema,
        problems=wrong,
        budget=read_bounds(params.reasond, params.max_tokens),
        sampling={name: each for name, each in given.items() if each is not None},
        parallel_tool_calls=(params.tool_choice or {}).get("disable_parallel_tool_use") is not True,
        stop=params.stop_sequences or (),
    )
    asked = plan(inputs, catalogue)
    return replace(asked, warnings=(*params.warnings, *dialogue.warnings, *asked.warnings))


def _find_question(dialogue: Dialogue) -> LastMessage:
    """Return what is asked; what the user says behind results of tools goes with the last one to a turn that waits.

    Agents put reminders there. A turn that does not wait here takes them as its question.
    """
    question = require_question(dialogue, "messages")
    before = find_question(dialogue.said[:-1]) if not question.results else None
    if before is None or not before.results or question.images:
        return question
    *others, last = before.results
    result = from_json(last.result_json)
    text = BETWEEN.join((result if isinstance(result, str) else last.result_json, dialogue.said[-1].text))
    return replace(question, results=(*others, replace(last, result_json=to_json(text).decode())))


def _read_offer(tools: Sequence[Mapping[str, Any]], choice: Mapping[str, Any]) -> OfferedTools:
    kind = choice.get("type", "auto")
    wanted: object = _CHOICES.get(str(kind)) if kind != "tool" else {"name": choice.get("name")}
    if wanted is None:
        text = f"must be 'auto', 'any', 'tool' or 'none', got {show(kind)}"
        return OfferedTools(problems=[Violation(field="tool_choice.type", description=text)])
    return read_offer([_describe_tool(tool) for tool in tools], wanted)


def _describe_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool as it is read here; what its vendor's server would run keeps its type, and is not offered."""
    if tool.get("type") not in [None, "custom"]:
        return tool
    return {**tool, "type": "function", "parameters": tool.get("input_schema")}

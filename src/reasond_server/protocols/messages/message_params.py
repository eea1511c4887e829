"""The body of `POST /v1/messages`, by Anthropic's names, and what it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field
from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation, show
from reasond_server.http_api.params import Whole  # noqa: TC001 - pydantic reads it
from reasond_server.protocols.conversations import BETWEEN, Dialogue, LastMessage, find_question
from reasond_server.protocols.messages.message_blocks import read_messages, read_system
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked

_MOST_MESSAGES: Final = 10_000
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_WITHOUT_EFFECT: Final = ("context_management", "container", "mcp_servers")


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

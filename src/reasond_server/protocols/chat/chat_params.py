"""The body of `POST /v1/chat/completions`: which parameters are taken or refused, and its messages.

No parameter is dropped in silence: what cannot be done is refused with its name, and what has no effect, because the
strategy lacks it or because nobody here knows it, is named in the warnings. Messages are taken as texts: nothing in
them chooses anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import Params, Whole
from reasond_server.protocols.conversations import ConversationBuilder, Dialogue, write_arguments
from reasond_server.protocols.message_parts import MOST_PROBLEMS
from reasond_server.protocols.openai_requests import (
    SAMPLING,
    RequestInputs,
    plan,
    read_bounds,
    read_format,
    read_offer,
    require_question,
)
from reasond_server.protocols.wire_params import OpenAiParams
from reasond_server.types import Task, ToolCall

if TYPE_CHECKING:
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked

_SYSTEM: Final = frozenset({"system", "developer"})
_RESULTS: Final = frozenset({"tool", "function"})
_ROLES: Final = frozenset({*_SYSTEM, *_RESULTS, "user", "assistant"})
_NO_CONTENT: Final = "must be a text or a list of parts, got None"
_MEMBERS: Final = frozenset({"role", "content"})
# Members of single authors; an assistant's last four are those of earlier answers, which are not shown again.
_OWN_MEMBERS: Final = {
    "assistant": frozenset({"tool_calls", "function_call", "reasoning_content", "reasoning"})
    | {"refusal", "annotations", "audio", "reasoning_details"},
    "tool": frozenset({"tool_call_id", "name"}),
    "function": frozenset({"name"}),
}
_MOST_MESSAGES: Final = 10_000
_OLD_TOOLS: Final = "is not supported: it is the older name of tools; leave it out"
_MOST_ANSWERS: Final = 8
_SOME_ANSWERS: Final = f"must be a whole number from 1 to {_MOST_ANSWERS}; leave it out"
_NO_LOGPROBS: Final = (
    "cannot be told: only the model reasond/direct, whose one reply is the answer, has them, without tools; ask for "
    "it, or leave it out"
)
_NO_NUMBER: Final = "must be true or false, with top_logprobs from 0 to 20 beside true; leave it out"
_TEXT_ONLY: Final = "is not supported: answers are text; leave it out"
_SENT: Final = [name for name in SAMPLING if name != "top_logprobs"]
# Values that ask for nothing, and why any other value is refused.
_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "functions": (([],), _OLD_TOOLS),
    "function_call": (("none", "auto"), _OLD_TOOLS),
    "n": ((*range(1, _MOST_ANSWERS + 1),), _SOME_ANSWERS),
    "logprobs": ((False, True), _NO_NUMBER),
    "top_logprobs": ((*range(21),), _NO_NUMBER),
    "modalities": ((["text"],), _TEXT_ONLY),
    "audio": ((), _TEXT_ONLY),
    "web_search_options": ((), "is not supported: nothing is searched in the web; leave it out"),
}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Dialogue, Sequence[str]]:
    """Return the conversation, and warnings about what is not shown to the model.

    Raises:
        InvalidRequestError: a message has a role or content that is not supported.
    """
    builder = ConversationBuilder()
    unknown: dict[str, None] = {}
    for place, message in enumerate(messages):
        field, role = f"messages.{place}", message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            description = f"must be 'system', 'developer', 'user', 'assistant' or 'tool', got {show(role)}"
            builder.refuse(f"{field}.role", description)
        else:
            unknown |= dict.fromkeys(message.keys() - _MEMBERS - _OWN_MEMBERS.get(role, frozenset()))
            _read_message(field, role, message, builder)
    dialogue = builder.build()
    names = sorted(str(name)[:64] for name in unknown)[:MOST_PROBLEMS]
    return dialogue, [
        *dialogue.warnings,
        *(f"The member {name} of messages is not shown to the model." for name in names),
    ]


def _read_message(field: str, role: str, message: Mapping[str, Any], builder: ConversationBuilder) -> None:
    """Read one message into `builder`."""
    given, calls = message.get("content"), list[ToolCall]()
    if given is None and role in {*_SYSTEM, "user"}:
        builder.refuse(f"{field}.content", _NO_CONTENT)
    if role in _RESULTS:
        text = builder.read(f"{field}.content", given).text
        builder.add_result(str(message.get("tool_call_id") or message.get("name") or "call"), text)
        return
    if role == "assistant":
        calls = _read_calls(field, message, builder)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        builder.add_reasoning(reasoning if isinstance(reasoning, str) else "")
    builder.say(field, role, given, calls)


def _read_calls(field: str, message: Mapping[str, Any], builder: ConversationBuilder) -> list[ToolCall]:
    """Return the calls of an earlier answer; none of them if one is malformed."""
    given = message.get("tool_calls") or []
    if old := message.get("function_call"):
        given = [{"id": old.get("name") if isinstance(old, dict) else "", "function": old}]
    calls: list[ToolCall] = []
    for call in given if isinstance(given, list) else [None]:
        made = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        text = made.get("input") if isinstance(made, dict) else None
        if not isinstance(call, dict) or not isinstance(made, dict):
            builder.refuse(f"{field}.tool_calls", "must be a list of calls of functions")
            return []
        calls.append(
            ToolCall(
                call_id=str(call.get("id") or made.get("name") or "call"),
                name=str(made.get("name") or "unnamed"),
                arguments_json=str(made.get("arguments") or "{}") if text is None else write_arguments(text),
            )
        )
    return calls


class ModelParams(Params):
    """The parameters of the models: the name of one, or empty for all."""

    model: str = ""


class ChatParams(OpenAiParams):
    """The parameters of a chat completion, by OpenAI's names, and `reasond` for our own."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=_MOST_MESSAGES)]
    stop: str | list[str] | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    response_format: dict[str, Any] | None = None
    # More of sampling.
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    prediction: Any = None
    # Refused unless they ask for nothing.
    functions: Any = None
    function_call: Any = None
    n: Any = None
    logprobs: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    # Without any effect on an answer.
    metadata: Any = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and self.stream_options.get("include_usage") is True


def read_chat(params: ChatParams, catalogue: ModelCatalogue) -> Asked:
    """Return what `params` ask for; a chat with tools, or with results for a turn that waits here, is a turn.

    Raises:
        StrategyNotFoundError: there is no such model.
        InvalidRequestError: a parameter cannot be done, or contradicts the model.
    """
    answers = params.n or 1
    schema, wrong = read_format("response_format", params.response_format, inner="json_schema")
    dialogue, found = read_messages(params.messages)
    stop = params.stop or ()
    is_plain = params.model_fields_set.isdisjoint(SAMPLING)
    sampling = {} if is_plain else {name: each for name in _SENT if (each := getattr(params, name)) is not None}
    if params.logprobs:
        sampling["top_logprobs"] = params.top_logprobs or 0
    inputs = RequestInputs(
        model=params.model,
        system=dialogue.system,
        question=require_question(dialogue, "messages"),
        own=params.reasond,
        offer=read_offer(params.tools or (), params.tool_choice),
        schema=schema,
        problems=(*_find_refused(params), *wrong),
        budget=read_bounds(params.reasond, params.max_tokens, params.max_completion_tokens),
        sampling=sampling,
        answers=answers,
        parallel_tool_calls=params.parallel_tool_calls is not False,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )
    asked = plan(inputs, catalogue)
    if params.logprobs and not (isinstance(asked.source, Task) and "top_logprobs" in asked.source.config):
        raise InvalidRequestError.at("logprobs", _NO_LOGPROBS)
    return replace(asked, warnings=(*params.warnings, *found, *asked.warnings))


def _find_refused(params: ChatParams) -> list[Violation]:
    """Return the parameters that ask for what cannot be done, in the order of the table."""
    if params.model_fields_set.isdisjoint(_REFUSED):
        return []
    return [
        Violation(field=name, description=description)
        for name, (nothing, description) in _REFUSED.items()
        if not _asks_for_nothing(getattr(params, name), nothing)
    ]


def _asks_for_nothing(given: object, nothing: tuple[Any, ...]) -> bool:
    # A boolean is no number here, although it equals one.
    return given is None or any(type(given) is type(each) and given == each for each in nothing)

"""The body of `POST /v1/chat/completions`: which parameters are taken or refused, and what task becomes of it.

No parameter is dropped in silence: what cannot be done is refused with its name, and what has no effect, because the
strategy lacks it or because nobody here knows it, is named in the warnings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import Params, Whole
from reasond_server.protocols.chat.messages import read_messages
from reasond_server.protocols.conversations import find_question
from reasond_server.protocols.model_catalogue import narrow
from reasond_server.protocols.wire_params import WireParams
from reasond_server.types import NO_BUDGET, Budget, Task
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.protocols.conversations import Dialogue, Question
    from reasond_server.protocols.model_catalogue import ModelCatalogue, ModelPreset
    from reasond_server.types import Json

_MOST_MESSAGES: Final = 10_000
SAMPLING: Final = (
    "temperature",
    "top_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "reasoning_effort",
    "verbosity",
    "prediction",
)
_OLD_TOOLS: Final = "is not supported: it is the older name of tools; leave it out"
_ONE_ANSWER: Final = "must be 1: a strategy gives one answer; leave it out"
_NO_LOGPROBS: Final = "is not supported: the answer of a strategy has no log probabilities; leave it out"
_TEXT_ONLY: Final = "is not supported: answers are text; leave it out"
# Values that ask for nothing, and why any other value is refused.
_REFUSED: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "functions": (([],), _OLD_TOOLS),
    "function_call": (("none", "auto"), _OLD_TOOLS),
    "n": ((1,), _ONE_ANSWER),
    "logprobs": ((False,), _NO_LOGPROBS),
    "top_logprobs": ((0,), _NO_LOGPROBS),
    "modalities": ((["text"],), _TEXT_ONLY),
    "audio": ((), _TEXT_ONLY),
    "web_search_options": ((), "is not supported: nothing is searched in the web; leave it out"),
}


class ModelParams(Params):
    """The parameters of the models: the name of one, or empty for all."""

    model: str = ""


class ChatParams(WireParams):
    """The parameters of a chat completion, by OpenAI's names, and `reasond` for our own."""

    model: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=_MOST_MESSAGES)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    max_tokens: Whole | None = None
    max_completion_tokens: Whole | None = None
    response_format: dict[str, Any] | None = None
    # Sampling: the strategy's own parameter of that name, or a warning.
    temperature: Any = None
    top_p: Any = None
    seed: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    logit_bias: Any = None
    top_k: Any = None
    min_p: Any = None
    repetition_penalty: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    prediction: Any = None
    # Tools of the client: the chat is a turn.
    tools: list[dict[str, Any]] | None = None
    # Refused unless they ask for nothing.
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    n: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    store: Any = None
    # Without any effect on an answer.
    user: Any = None
    metadata: Any = None
    service_tier: Any = None
    parallel_tool_calls: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of the usage."""
        return self.stream_options is not None and self.stream_options.get("include_usage") is True


@value
class ChatTask:
    """What a body asks for: a task, the id by which it is asked for once, and what the answer must say beside it."""

    task: Task
    request_id: str
    include_deltas: bool
    warnings: tuple[str, ...]


def read_chat(params: ChatParams, catalogue: ModelCatalogue) -> ChatTask:
    """Return what `params` ask for.

    Raises:
        StrategyNotFoundError: there is no such model.
        InvalidRequestError: a parameter cannot be done, or contradicts the model.
    """
    preset = catalogue.find(params.model)
    own = params.reasond
    schema, wrong = read_format(params.response_format)
    problems = [*find_refused(params), *_find_conflicts(params, preset), *wrong]
    if problems:
        raise InvalidRequestError.of(*problems)
    conversation, found = read_messages(params.messages)
    question = require_question(conversation)
    config, warnings = _choose_config(params, preset, catalogue)
    stop = params.stop or ()
    task = Task(
        query=question.query,
        material=own.material,
        strategy=preset.strategy,
        config=config,
        agent=preset.agent or own.agent,
        budget=narrow(read_budget(params), preset.budget),
        system=conversation.system,
        history=question.history,
        images=question.images,
        model=own.model,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        answer_schema=schema,
    )
    include_deltas = preset.include_deltas if own.include_deltas is None else own.include_deltas
    return ChatTask(
        task=task,
        request_id=own.request_id,
        include_deltas=include_deltas,
        warnings=(*params.warnings, *found, *question.warnings, *warnings),
    )


def require_question(conversation: Dialogue) -> Question:
    """Return what the conversation asks.

    Raises:
        InvalidRequestError: nothing was said.
    """
    question = find_question(conversation.said)
    if question is None:
        description = "must have a message of role 'user' with a text or an image: it is what is asked"
        raise InvalidRequestError.of(Violation(field="messages", description=description))
    return question


def find_refused(params: ChatParams) -> list[Violation]:
    """Return the parameters that ask for what cannot be done, in the order of the table."""
    if params.model_fields_set.isdisjoint(_REFUSED):
        return []
    return [
        Violation(field=name, description=description)
        for name, (nothing, description) in _REFUSED.items()
        if not _asks_for_nothing(getattr(params, name), nothing)
    ]


def read_budget(params: ChatParams) -> Budget:
    """Return the bounds of the request: its own ones, and those of OpenAI's parameters."""
    own = params.reasond.budget
    budget = NO_BUDGET if own is None else own.budget()
    # Some clients say -1 or 0 where they mean no bound.
    written = [bound for bound in (params.max_tokens, params.max_completion_tokens) if bound is not None and bound > 0]
    return narrow(budget, Budget(max_output_tokens=min(written))) if written else budget


def read_format(given: dict[str, Any] | None) -> tuple[Json | None, list[Violation]]:
    """Return the schema that `response_format` asks for, and what is wrong with it; None for text."""
    kind = "text" if given is None else given.get("type")
    if given is None or kind == "text":
        return None, []
    if kind == "json_object":
        return {"type": "object"}, []
    if kind != "json_schema":
        description = f"must be 'text', 'json_object' or 'json_schema', got {show(kind)}"
        return None, [Violation(field="response_format.type", description=description)]
    described = given.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        return None, [Violation(field="response_format.json_schema.schema", description="must be an object")]
    return schema, []


def _asks_for_nothing(given: object, nothing: tuple[Any, ...]) -> bool:
    # A boolean is no number here, although it equals one.
    return given is None or any(type(given) is type(each) and given == each for each in nothing)


def _find_conflicts(params: ChatParams, preset: ModelPreset) -> list[Violation]:
    """Return where the request contradicts its model."""
    own = params.reasond
    is_fixed = f"is fixed by the model {params.model!r}; leave it out"
    found = [
        Violation(field=f"reasond.config.{name}", description=is_fixed) for name in own.config if name in preset.config
    ]
    if preset.agent is not None and own.agent not in {None, preset.agent}:
        found.append(Violation(field="reasond.agent", description=is_fixed))
    return found


def _choose_config(
    params: ChatParams, preset: ModelPreset, catalogue: ModelCatalogue
) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters of the strategy, and a warning for each sampling value that has no effect."""
    config = {**params.reasond.config, **preset.config}
    warnings: list[str] = []
    if params.model_fields_set.isdisjoint(SAMPLING):
        return config, warnings
    given = [name for name in SAMPLING if getattr(params, name) is not None]
    known = catalogue.find_parameters(preset, params.reasond.agent) if given else frozenset()
    for name in given:
        if name in preset.config:
            warnings.append(f"{name} has no effect: the model {params.model!r} fixes it.")
        elif name in known:
            config.setdefault(name, getattr(params, name))
        else:
            warnings.append(f"{name} has no effect: the strategy has no such parameter.")
    return config, warnings

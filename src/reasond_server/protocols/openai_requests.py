"""What a request of OpenAI's clients asks for, whichever of their wires it came over.

A wire reads its own names into `RequestInputs`, and `plan` makes of them a task of reasoning, or a turn where the model
may call tools of the client. What has no effect is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.dialects.native_calls import drop_nulls
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.conversations import Dialogue, LastMessage, describe_text, find_question, find_reentry
from reasond_server.protocols.message_parts import MOST_PROBLEMS
from reasond_server.protocols.model_catalogue import ModelCatalogue, ModelPreset, narrow
from reasond_server.types import NO_BUDGET, Budget, Json, Task
from reasond_server.types.turns import ClientTool, TurnReentry, TurnStart
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.wire_params import ReasondParams

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
    "top_logprobs",
)
"""The parameters of sampling: each is the strategy's own parameter of that name, or has no effect."""
_OF_TURNS: Final = frozenset({"temperature", "seed"})
# The words of others for a choice, as an object or a text.
_CHOICES: Final = {"any": "required", "required": "required", "none": "none"}
_NESTED: Final = ("function", "custom", "allowed_tools")
_FOLLOW: Final = "Do what your instructions say."
_NOTHING_SAID: Final = "must have a message of role 'user' with a text or an image: it is what is asked"


_ONE_ANSWER: Final = Violation(
    field="n",
    description="must be 1 with tools, and with a strategy whose calls are not constant in number; ask for "
    "reasond/direct or reasond/chain_of_thought, or leave it out",
)


@value
class OfferedTools:
    """The tools that a model may call, and what it must call: see `TurnStart.tool_choice`."""

    tools: Sequence[ClientTool] = ()
    choice: str = ""
    warnings: Sequence[str] = ()
    problems: Sequence[Violation] = ()


@value
class RequestInputs:
    """What a request says, by the names of the core. `sampling` has what was sent of SAMPLING.

    `problems` are what its wire has found wrong with it.
    """

    model: str
    system: str
    question: LastMessage
    own: ReasondParams
    offer: OfferedTools
    schema: Json | None
    budget: Budget
    sampling: Mapping[str, Any]
    parallel_tool_calls: bool = True
    stop: Sequence[str] = ()
    answers: int = 1
    problems: Sequence[Violation] = ()


@value
class Asked:
    """What a request asks for. `instead` is the turn that begins where a re-entry settles nothing here.

    With several `answers` a task is worked on so often.
    """

    source: Task | TurnStart | TurnReentry
    warnings: Sequence[str] = ()
    request_id: str = ""
    instead: TurnStart | None = None
    include_deltas: bool = False
    answers: int = 1


def plan(inputs: RequestInputs, catalogue: ModelCatalogue) -> Asked:
    """Return what `inputs` asks for.

    Raises:
        StrategyNotFoundError: there is no such model.
        InvalidRequestError: something is wrong with it, or it contradicts the model.
    """
    preset, own, question = catalogue.find(inputs.model), inputs.own, inputs.question
    problems = [*inputs.problems, *inputs.offer.problems, *_find_conflicts(inputs, preset)]
    if problems:
        raise InvalidRequestError.of(*problems[:MOST_PROBLEMS])
    reentry = find_reentry(question.results)
    is_turn = bool(inputs.offer.tools) or reentry is not None
    config, warnings = _choose_config(inputs, preset, catalogue, is_turn=is_turn)
    warnings = [*inputs.offer.warnings, *question.warnings, *warnings]
    include_deltas = preset.include_deltas if own.include_deltas is None else own.include_deltas
    shared: dict[str, Any] = {
        "material": own.material,
        "budget": narrow(inputs.budget, preset.budget),
        "system": inputs.system,
        "history": question.history,
        "images": question.images,
        "stop": tuple(filter(None, inputs.stop)),
    }
    if not is_turn:
        task = Task(
            query=question.query,
            strategy=preset.strategy,
            config=config,
            agent=preset.agent or own.agent,
            model=own.model,
            answer_schema=inputs.schema,
            **shared,
        )
        if inputs.answers > 1 and not catalogue.is_cheap(preset, task.agent):
            raise InvalidRequestError.of(_ONE_ANSWER)
        return Asked(
            source=task,
            warnings=warnings,
            request_id=own.request_id,
            include_deltas=include_deltas,
            answers=inputs.answers,
        )
    if inputs.answers > 1:
        raise InvalidRequestError.of(_ONE_ANSWER)
    warnings += [
        f"reasond.{name} has no effect with tools." for name in ("config", "agent", "model") if getattr(own, name)
    ]
    if preset.strategy is not None or preset.config or preset.agent is not None:
        warnings.append(f"The strategy of {show(inputs.model)} has no effect: with tools the model answers in a turn.")
    start = TurnStart(
        message=question.query,
        client_tools=tuple(inputs.offer.tools),
        tool_choice=inputs.offer.choice,
        parallel_tool_calls=inputs.parallel_tool_calls,
        answer_schema_json="" if inputs.schema is None else to_json(inputs.schema).decode(),
        temperature=config.get("temperature"),
        seed=config.get("seed"),
        uses_server_tools=preset.server_tools,
        **shared,
    )
    if reentry is None:
        return Asked(source=start, warnings=warnings, request_id=own.request_id, include_deltas=include_deltas)
    return Asked(source=reentry, instead=start, warnings=warnings, include_deltas=include_deltas)


def write_input(asked: Asked) -> str:
    """Return the texts that a request has the model read, for counting them."""
    source = asked.instead or asked.source
    if isinstance(source, TurnReentry):
        return ""
    if isinstance(source, Task):
        texts, last = [], source.query
    else:
        texts = [f"{tool.name} {tool.description} {tool.parameters_json}" for tool in source.client_tools]
        last = source.message
    said = [each for message in source.history for each in message.list_texts()]
    return "\n".join((*texts, source.system, source.material, *said, last))


def require_question(dialogue: Dialogue, field: str) -> LastMessage:
    """Return what a conversation asks.

    Raises:
        InvalidRequestError: nothing was said.
    """
    question = find_question(dialogue.said)
    if question is None and dialogue.system:
        return LastMessage(query=_FOLLOW, history=())
    if question is None:
        raise InvalidRequestError.at(field, _NOTHING_SAID)
    return question


def read_bounds(own: ReasondParams, *output_tokens: int | None, tool_calls: int | None = None) -> Budget:
    """Return the bounds of a request: its own ones, and those by names of OpenAI."""
    budget = NO_BUDGET if own.budget is None else own.budget.build_budget()
    # Some clients say -1 or 0 where they mean no bound.
    written = [bound for bound in output_tokens if bound is not None and bound > 0]
    limits = Budget(max_output_tokens=min(written, default=None), max_tool_calls=tool_calls)
    return narrow(budget, limits)


def read_format(field: str, given: object, *, inner: str = "") -> tuple[Json | None, list[Violation]]:
    """Return the schema that a format asks for, in its member `inner`, and what is wrong with it; None for text."""
    if given is None:
        return None, []
    if not isinstance(given, dict):
        return None, [Violation(field=field, description=f"must be an object, got {show(given)}")]
    kind = given.get("type")
    if kind == "text" or (kind == "json_object" and not isinstance(given.get("schema"), dict)):
        return (None if kind == "text" else {"type": "object"}), []
    if kind not in ["json_schema", "json_object"]:
        description = f"must be 'text', 'json_object' or 'json_schema', got {show(kind)}"
        return None, [Violation(field=f"{field}.type", description=description)]
    # Servers of models also take the schema beside the type.
    described = (given.get(inner) if inner else None) or given
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        name = ".".join((field, *([inner] if inner else ()), "schema"))
        return None, [Violation(field=name, description="must be an object")]
    return schema, []


def read_offer(given: Sequence[Mapping[str, Any]], choice: object) -> OfferedTools:
    """Return the tools that a client offers, and which call is forced.

    A tool of free text is called as a function; tools that somebody else would run are not offered.
    """
    tools: list[ClientTool] = []
    warnings: list[str] = []
    for tool in given:
        kind = tool.get("type") or "function"
        function = tool.get(kind, tool) if isinstance(kind, str) else tool
        name = function.get("name") if isinstance(function, dict) else None
        if kind == "function" and isinstance(function, dict):
            tools.append(_build_tool(function, function.get("parameters")))
        elif kind == "custom" and isinstance(function, dict):
            tools.append(_build_tool(function, describe_text(function)))
            if function.get("format") not in [None, {"type": "text"}]:
                warnings.append(f"The format of the custom tool {show(name)} is shown to the model, and not enforced.")
        else:
            warnings.append(
                f"The tool {show(name or kind)} is not supported and is not offered; a function that does it would be."
            )
    # A tool of two servers of a host comes twice.
    return _choose([*dict.fromkeys(tools)], choice or "auto", warnings)


def _choose(tools: list[ClientTool], choice: object, warnings: list[str]) -> OfferedTools:
    wanted = choice
    if isinstance(choice, dict):
        named = _unwrap(choice)
        wanted = named.get("name") or named.get("mode") or _CHOICES.get(str(choice.get("type")), "auto")
        if isinstance(allowed := named.get("tools"), list):
            names = [_unwrap(each).get("name") for each in allowed if isinstance(each, dict)]
            tools = [tool for tool in tools if tool.name in names]
    if wanted == "any" and not any(tool.name == "any" for tool in tools):
        wanted = "required"
    if wanted == "none":
        return OfferedTools(warnings=warnings)
    if wanted not in ["auto", "required", *(tool.name for tool in tools)]:
        text = f"must be 'auto', 'none', 'required' or name a function that is offered, got {show(choice)}"
        return OfferedTools(warnings=warnings, problems=[Violation(field="tool_choice", description=text)])
    if not tools and wanted == "required":
        warnings.append("tool_choice has no effect: no tool is offered.")
    return OfferedTools(tools=tools, choice=str(wanted) if tools and wanted != "auto" else "", warnings=warnings)


def _unwrap(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object within a choice or a tool that has its members, which one of the wires nests by their type."""
    return next((inner for name in _NESTED if isinstance(inner := given.get(name), dict)), given)


def _build_tool(function: Mapping[str, Any], schema: object) -> ClientTool:
    """Return a tool that a client offers; the turn checks its parts."""
    parameters = drop_nulls(schema) or {"type": "object", "properties": {}}
    return ClientTool(
        name=str(function.get("name") or ""),
        description=str(function.get("description") or ""),
        parameters_json=to_json(parameters).decode(),
    )


def _find_conflicts(inputs: RequestInputs, preset: ModelPreset) -> list[Violation]:
    """Return where the request contradicts its model."""
    own = inputs.own
    is_fixed = f"is fixed by the model {inputs.model!r}; leave it out"
    found = [
        Violation(field=f"reasond.config.{name}", description=is_fixed) for name in own.config if name in preset.config
    ]
    if preset.agent is not None and own.agent not in {None, preset.agent}:
        found.append(Violation(field="reasond.agent", description=is_fixed))
    return found


def _choose_config(
    inputs: RequestInputs, preset: ModelPreset, catalogue: ModelCatalogue, *, is_turn: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters of the strategy or the turn, and a warning for each sampling value without effect."""
    config = {} if is_turn else {**inputs.own.config, **preset.config}
    warnings: list[str] = []
    if not inputs.sampling:
        return config, warnings
    known = _OF_TURNS if is_turn else catalogue.find_parameters(preset, inputs.own.agent)
    who = "a turn" if is_turn else "the strategy"
    for name, given in inputs.sampling.items():
        if name in preset.config and not is_turn:
            warnings.append(f"{name} has no effect: the model {inputs.model!r} fixes it.")
        elif name not in known:
            warnings.append(f"{name} has no effect: {who} has no such parameter.")
        elif is_turn and (isinstance(given, bool) or not isinstance(given, int | float)):
            warnings.append(f"{name} has no effect: it must be a number, got {show(given)}.")
        else:
            config.setdefault(name, int(given) if is_turn and name == "seed" else given)
    return config, warnings

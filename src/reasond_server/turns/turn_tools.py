"""The tools of one turn: those of the server, those of the client, and the two that every turn has.

`mode_state_change` switches the mode, `read_tool_result` reads results that prompts show in part. The JSON Schemas of
client tools are checked here: their size and depth, and the form of each keyword. The server only passes a schema on to
the model, so it needs no package that evaluates one. The keywords are those of JSON Schema 2020-12; unknown keywords
are accepted, as the standard says.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import Violation, show
from reasond_server.llm.model import ToolSpec
from reasond_server.reasoning.run_tools import TracedToolbox
from reasond_server.requests.payloads import MAX_DEPTH, measure_depth
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.tools.read_result import READ_TOOL_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.tools.tool import ToolContext, ToolSource
    from reasond_server.turns.policy import Mode, TurnPolicy
    from reasond_server.types import Json, ToolCall, ToolResult
    from reasond_server.types.turns import ClientTool


MODE_STATE_CHANGE: Final = "mode_state_change"
OWN_TOOLS: Final = frozenset({MODE_STATE_CHANGE, READ_TOOL_RESULT})
"""The tools of every turn; one whose name a client offers steps aside."""


class ModeStateChange:
    """The tool by which the model switches the mode; the turn carries the switch out. See `tools.tool.Tool`."""

    name = MODE_STATE_CHANGE
    timeout_s = None
    max_output_bytes = None
    is_idempotent = True

    def __init__(self, modes: Sequence[str]) -> None:
        self._modes = sorted(modes)
        self.description = (
            "Switches the mode of this conversation, from the next reply on; the mode decides which tools there are. "
            f"Modes: {', '.join(self._modes)}."
        )

    @property
    def parameters(self) -> Json:
        """JSON Schema of the arguments."""
        mode = {"type": "string", "enum": self._modes, "description": "The mode to switch to."}
        return {"type": "object", "properties": {"mode": mode}, "required": ["mode"], "additionalProperties": False}

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return what is wrong with `arguments`."""
        if arguments.keys() != {"mode"} or arguments["mode"] not in self._modes:
            return (Violation(field="mode", description=f"must be one of {', '.join(self._modes)}"),)
        return ()

    async def invoke(self, arguments: Json, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        """Confirm the switch."""
        return {"mode": arguments["mode"]}


class TurnTools:
    """The tools of one turn of the execution `execution_id`.

    Without `may_use_server_tools` the turn has only tools of its client. `call` executes calls of the server's tools
    and traces them in `trace`. Tools of the client are described, and their arguments are checked, but the client
    executes them.
    """

    def __init__(
        self,
        *,
        source: ToolSource,
        policy: TurnPolicy,
        client_tools: Sequence[ClientTool],
        execution_id: str,
        may_use_server_tools: bool,
        trace: RunTrace,
    ) -> None:
        modes = sorted({policy.default_mode, *policy.modes})
        also = [ModeStateChange(modes)] if len(modes) > 1 else []
        toolbox = source.open_toolbox(max_calls=None, execution_id=execution_id, also=also, keeps_whole=True)
        if trace.tracing is not None:
            toolbox = TracedToolbox(toolbox=toolbox, trace=trace, tracing=trace.tracing)
        self._toolbox = toolbox
        self._approval = frozenset(policy.needs_approval)
        self._client = {tool.name: _build_spec(tool) for tool in client_tools}
        served = {spec.name: spec for spec in self._toolbox.specs if may_use_server_tools or spec.name in OWN_TOOLS}
        self._specs: Mapping[str, ToolSpec] = dict(sorted((served | self._client).items()))

    def offered_in(self, mode: Mode, *, with_own: bool = True, with_reading: bool = True) -> Sequence[ToolSpec]:
        """Return the tools that a model call in `mode` may use, ordered by name; nobody needs only the turn's own.

        Without `with_own` they are those of the client, and of the server where the turn may use them; without
        `with_reading` the one that reads results is left out.
        """
        names = [name for name in self._specs if self._is_offered(name, mode)]
        if not with_own:
            names = [name for name in names if name not in OWN_TOOLS or name in self._client]
        if not with_reading:
            names = [name for name in names if name != READ_TOOL_RESULT or name in self._client]
        return () if OWN_TOOLS.issuperset(names) and MODE_STATE_CHANGE not in names else [self._specs[n] for n in names]

    def is_clients(self, name: str) -> bool:
        """Return whether the client executes the tool."""
        return name in self._client

    def needs_approval(self, name: str) -> bool:
        """Return whether a person has to approve each call of the tool."""
        return name in self._approval and name not in self._client

    def is_idempotent(self, name: str) -> bool:
        """Return whether two calls of the tool have the same effect as one."""
        return self._toolbox.is_idempotent(name)

    def find_mistakes(self, call: ToolCall) -> str:
        """Return what is wrong with the arguments of a call of a client's tool, for the model; empty if nothing is."""
        try:
            # Clients read with any parser: none takes NaN, and not all take an infinite number or half a character.
            arguments = read_strict_json(call.arguments_json or "{}")
        except ValueError:
            return "the arguments are no valid JSON"
        if not isinstance(arguments, dict):
            return "the arguments must be a JSON object"
        return "; ".join(_list_mistakes(self._client[call.name].parameters, arguments))

    async def call(self, call: ToolCall, *, idempotency_key: str) -> ToolResult:
        """Execute a call of a server's tool. Raises as `tools.execution.RunToolbox.call`."""
        return await self._toolbox.call(call, idempotency_key=idempotency_key)

    def keep(self, call: ToolCall, result: ToolResult) -> None:
        """Keep a result that another process or the client produced, so that the model can read it in parts."""
        self._toolbox.restore(call, result)

    def _is_offered(self, name: str, mode: Mode) -> bool:
        return name in OWN_TOOLS or name in self._client or mode.tools is None or name in mode.tools


def _build_spec(tool: ClientTool) -> ToolSpec:
    parameters = json.loads(tool.parameters_json) if tool.parameters_json else NO_ARGUMENTS
    return ToolSpec(name=tool.name, description=tool.description, parameters=parameters)


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _list_mistakes(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return what of `schema` the arguments break at their top level; the client's own check does the rest."""
    properties = schema.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    missing = [name for name in required if name not in arguments] if isinstance(required, list) else []
    found = [f"{name} is required" for name in missing]
    if schema.get("additionalProperties") is False:
        found += [f"{name} is unknown" for name in arguments if name not in known]
    return found + [
        f"{name} must be of type {known[name]['type']}"
        for name, value in arguments.items()
        if isinstance(known.get(name), dict) and not _is_of_type(value, known[name].get("type"))
    ]


def _is_of_type(value: object, wanted: object) -> bool:
    """Return whether `value` is of the JSON type or types `wanted`; anything else says nothing about it."""
    names: list[str] = wanted if isinstance(wanted, list) else [str(wanted)]
    if not all(name in _TYPES for name in names):
        return True
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        return True
    return any(isinstance(value, _TYPES[name]) for name in names)


MAX_SCHEMA_BYTES: Final = 65_536
NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The schema of a tool without arguments."""

_TYPE_NAMES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_SCHEMAS_BY_NAME: Final = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS: Final = frozenset(
    {
        *("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"),
        *("unevaluatedItems", "unevaluatedProperties"),
    }
)


def read_schema(text: str) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments; empty text is one of an object without members.

    Raises:
        ValueError: it cannot be used; the text says what is wrong.
    """
    if not text:
        return NO_ARGUMENTS
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_SCHEMA_BYTES:
        message = f"must be at most {MAX_SCHEMA_BYTES} bytes of UTF-8, got {size}; shorten its descriptions"
        raise ValueError(message)
    schema = _parse(text)
    if not isinstance(schema, dict):
        message = f"must be the JSON Schema of an object, got {show(schema)}"
        raise ValueError(message)  # noqa: TRY004 - callers turn each problem of a schema into the same violation
    if measure_depth(schema) > MAX_DEPTH:
        message = f"must be nested at most {MAX_DEPTH} levels deep; put deep parts under $defs"
        raise ValueError(message)
    if schema.get("type", "object") != "object":
        message = f'must have "type": "object", because arguments are an object, got {show(schema["type"])}'
        raise ValueError(message)
    problem = next(_find_problems(schema, ""), None)
    if problem is not None:
        raise ValueError(problem)
    return schema


def _parse(text: str) -> object:
    try:
        return read_strict_json(text)
    except ValueError:
        message = "must be valid JSON of finite numbers and valid Unicode"
        raise ValueError(message) from None


def _find_problems(schema: object, path: str) -> Iterator[str]:
    """Yield the keywords with values of the wrong form; the depth of `schema` must be checked before."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        yield f"must be a JSON Schema, but {path[1:]} must be an object or a boolean, got {show(schema)}"
        return
    for key, value in schema.items():
        place = f"{path}.{key}"
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
            for name, inner in value.items():
                yield from _find_problems(inner, f"{place}.{name}")
        elif key in _SCHEMA_LISTS and isinstance(value, list) and value:
            for index, inner in enumerate(value):
                yield from _find_problems(inner, f"{place}[{index}]")
        elif key in _SCHEMAS:
            yield from _find_problems(value, place)
        elif key in _FORMS and not _FORMS[key][0](value):
            yield f"must be a JSON Schema, but {place[1:]} must be {_FORMS[key][1]}, got {show(value)}"


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPE_NAMES for name in names)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole or (isinstance(value, float) and math.isfinite(value))


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value >= 0 and (isinstance(value, int) or value.is_integer())


_NUMBER: Final = (_is_number, "a number")
_COUNT: Final = (_is_count, "a whole number of at least 0")
_TEXT: Final = (_is_text, "a string")
_OBJECT: Final = (lambda value: isinstance(value, dict), "an object of schemas")
_LIST: Final = (lambda value: isinstance(value, list) and bool(value), "a list of schemas that is not empty")
_FORMS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"), _COUNT),
    **dict.fromkeys(("$ref", "description", "format", "pattern", "title"), _TEXT),
    **dict.fromkeys(sorted(_SCHEMAS_BY_NAME), _OBJECT),
    **dict.fromkeys(sorted(_SCHEMA_LISTS), _LIST),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_is_names, "a list of different strings"),
    "type": (_is_type, f"one of {', '.join(sorted(_TYPE_NAMES))}, or a list of them"),
}
"""Keywords with the form of their values."""

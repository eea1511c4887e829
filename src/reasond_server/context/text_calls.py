"""Tool calls in the text of models without native tools, for everything that offers tools to a model.

Such a model calls a tool by ending its reply with

    <action>{"tool": "calculator", "arguments": {"expression": "12.5 / 100 * 640"}}</action>

The parser closes the reply there, so text after it, such as an invented observation, is never read. The result of a
tool is returned in a fence with the run's nonce (`context.step_records`).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json

from reasond_server.context.tags import neutralize
from reasond_server.dialects.written_calls import read_text_calls
from reasond_server.types import Json, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.llm.model import ToolSpec

ACTION_RULE: Final = (
    'To call a tool, end your reply with <action>{"tool": "NAME", "arguments": {...}}</action>, one call and nothing '
    "after it. "
)
INVENTED_OBSERVATION: Final = (
    "You wrote the result of a tool yourself, and what followed was not read: only tools give results. Call the tool."
)
_LIMITS: Final = ("enum", "default", "minimum", "maximum", "pattern", "format")
_OF_TYPE: Final = MappingProxyType({"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}})
_TOLD: Final = frozenset({"type", "examples", "minLength", "maxLength", "title", "description", *_LIMITS})
_NAMES: Final = frozenset({"tool", "name"})
_NO_JSON: Final = object()
_MAX_DESCRIPTION = 1_000
_MAX_TOOL_NAME = 128
_INVENTED: Final = re.compile(
    r"^[ \t>*_#-]{0,8}observation[ \t*_]{0,4}:|<\s{0,2}observation\b", re.IGNORECASE | re.MULTILINE
)


class UnreadableActionError(ValueError):
    """The content of an action is not a call; the error text explains why to the model."""


def write_tools(specs: Sequence[ToolSpec]) -> str:
    """Return the end of the system message that lists the tools, with a call of one; `specs` are from `bound_specs`."""
    listed = "".join([f"\n- {spec.name}: {_describe(spec)}" for spec in specs])
    shown = next((spec for spec in specs if spec.parameters.get("required")), specs[0] if specs else None)
    return f" Tools:{listed}\n{_write_example(shown) if shown else ''}"


def _write_example(spec: ToolSpec) -> str:
    properties = spec.parameters.get("properties")
    given = {name: _give_example(properties, name) for name in spec.parameters.get("required", ())}
    return f'A call: <action>{{"tool": {_write_compact(spec.name)}, "arguments": {_write_compact(given)}}}</action>\n'


def _give_example(properties: object, name: str) -> object:
    """Return an argument as its schema shows one, else one of its type."""
    schema = properties.get(name) if isinstance(properties, dict) else None
    if not isinstance(schema, dict):
        return "text"
    shown = [
        *schema.get("examples", ()),
        *([schema["default"]] if "default" in schema else ()),
        *schema.get("enum", ()),
    ]
    return shown[0] if shown else _OF_TYPE.get(str(schema.get("type")), "text")


def bound_specs(specs: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
    """Return `specs` for the prompt: descriptions on one line, neutralised and of bounded length.

    They are sorted by name, so that the beginning of the prompt is always the same.
    """
    return tuple(_bound_spec(spec) for spec in sorted(specs, key=lambda spec: spec.name))


def read_action(content: str, *, call_id: str, tools: Mapping[str, Json] = MappingProxyType({})) -> ToolCall:
    """Return the first call in the content of an action; a code fence around it is ignored.

    A call of one of `tools`, the schemas of their arguments by name, is also read in the forms of models' own.

    Raises:
        UnreadableActionError: the content is not a JSON object with the name of a tool and an object of arguments.
    """
    text = re.sub(r"^```[a-z]*", "", content.strip()).removesuffix("```").strip()
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = _NO_JSON
    is_named = isinstance(value, dict) and bool(value.keys() & _NAMES)
    is_ours = is_named and (isinstance(value.get("arguments"), dict) or not value.keys() - _NAMES)
    if not is_ours and (found := read_text_calls(f"<action>{text}</action>", tools)) and found.calls:
        return clean_call(found.calls[0], call_id=call_id)
    if value is _NO_JSON:
        raise UnreadableActionError("The action is no valid JSON")
    if not isinstance(value, dict):
        raise UnreadableActionError("The action must be a JSON object")
    name, arguments = value.get("tool", value.get("name")), value.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise UnreadableActionError('The action must name a tool, as "tool"')
    if not isinstance(arguments, dict):
        raise UnreadableActionError('The "arguments" of an action must be a JSON object')
    written = json.dumps(arguments, ensure_ascii=False)
    return clean_call(ToolCall(call_id=call_id, name=name, arguments_json=written), call_id=call_id)


def cut_invention(text: str) -> str | None:
    """Return the text before an observation that the model invented; None if there is none."""
    found = _INVENTED.search(text)
    return None if found is None else text[: found.start()].rstrip()


def clean_call(call: ToolCall, *, call_id: str) -> ToolCall:
    """Return `call` with our id, a name of at most 128 characters, and text that UTF-8 can encode."""
    return replace(
        call,
        call_id=call_id,
        name=_make_encodable(call.name)[:_MAX_TOOL_NAME],
        arguments_json=_make_encodable(call.arguments_json),
    )


def _make_encodable(text: str) -> str:
    """Return `text` with "?" for characters without UTF-8 form."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _bound_spec(spec: ToolSpec) -> ToolSpec:
    description = " ".join(spec.description.split())[:_MAX_DESCRIPTION]
    # In JSON a tag can only be inside a string, where the neutralised form is valid too.
    parameters = json.loads(neutralize(_make_encodable(json.dumps(spec.parameters, ensure_ascii=False))))
    return replace(spec, description=_make_encodable(neutralize(description)), parameters=parameters)


def _describe(spec: ToolSpec) -> str:
    """Return the description with the arguments as a list of names: models copy a schema as if it were arguments."""
    properties = spec.parameters.get("properties")
    if spec.parameters.keys() - {"type", "properties", "required", "additionalProperties", "title", "description"}:
        properties = None
    if spec.parameters.keys() <= {"type"}:
        properties = {}
    if not isinstance(properties, dict) or not all(_is_plain(one) for one in properties.values()):
        return f"{spec.description} Schema of its arguments: {_write_compact(spec.parameters)}"
    required = spec.parameters.get("required", ())
    named = [_describe_argument(name, one, is_required=name in required) for name, one in properties.items()]
    return f"{spec.description} Arguments: {'; '.join(named) or 'none'}"


def _is_plain(schema: object) -> bool:
    """Return whether the schema of an argument can be told in words: its type, and what it is for."""
    return isinstance(schema, dict) and schema.keys() <= _TOLD


def _describe_argument(name: str, schema: Mapping[str, Any], *, is_required: bool) -> str:
    facts = [schema["type"]] if isinstance(schema.get("type"), str) else []
    facts += [] if is_required else ["optional"]
    facts += [f"{key} {_write_compact(schema[key])}" for key in _LIMITS if key in schema]
    about = f": {' '.join(str(schema['description']).split())}" if schema.get("description") else ""
    kind = f" ({', '.join(facts)})" if facts else ""
    return f"{name}{kind}{about}"


def _write_compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

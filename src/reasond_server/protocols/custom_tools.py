"""Custom tools of OpenAI's wires, which are called with a text.

Models call functions, so each of them is a function with one member, and its calls are texts again for the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json, to_json


def describe_text(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of the function that stands for a custom tool; it shows the model the grammar, if any."""
    text: dict[str, Any] = {"type": "string"}
    form = tool.get("format")
    grammar = form.get("grammar", form) if isinstance(form, dict) else None
    if isinstance(grammar, dict) and (definition := grammar.get("definition")):
        text["description"] = f"A text that this {grammar.get('syntax') or ''} grammar allows:\n{definition}"
    return {"type": "object", "properties": {"input": text}, "required": ["input"]}


def find_custom_names(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the custom tools among those that a client has sent."""
    custom = [tool.get("custom") or tool for tool in tools if tool.get("type") == "custom"]
    return frozenset(str(tool.get("name")) for tool in custom if isinstance(tool, dict))


def read_text(arguments_json: str) -> str:
    """Return the text in the arguments of a call; arguments of another form as they are."""
    try:
        arguments = from_json(arguments_json)
    except ValueError:
        return arguments_json
    text = arguments.get("input") if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else arguments_json


def write_arguments(text: object) -> str:
    """Return the arguments with `text` in them, as JSON."""
    return to_json({"input": text}).decode()

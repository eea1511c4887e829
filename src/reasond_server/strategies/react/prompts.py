"""The texts of ReAct: instructions about tools, and messages between cycles.

For models with native tools, the prompt does not describe the form of calls; for others it does (`context.text_calls`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json

from reasond_server.context.text_calls import ACTION_RULE, write_tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.types import ToolCall

_TASK = "Work out what <question> asks. Think step by step. "
_ANSWER = "When you know the answer, write <answer>the final answer</answer> and nothing after it."
_TOOLS = (
    "Call a tool for every calculation and for whatever you do not know for certain. Results come as <observation>; "
    "never write one yourself. A result that is left out or shortened can be read with read_tool_result. "
)
_CONTINUE = "If you need more room to think, end with <continue>what you have so far</continue>; you will go on. "

ANSWER_NOW: Final = "No tools can be called any more. Write <answer>the final answer</answer> from what you know now."
GO_ON: Final = "Go on."
CUT_OFF: Final = "Your reply was cut off at its limit of {tokens} tokens. Go on, more briefly."
NOTHING_WRITTEN: Final = "You wrote nothing. Call a tool, or write <answer>the final answer</answer>."
NO_ACTION: Final = (
    'There is neither a call nor an answer. End with <action>{"tool": "NAME", "arguments": {...}}</action> or with '
    "<answer>the final answer</answer>."
)
UNREAD_CALL: Final = (
    "Your call of a tool could not be read. Call the tool in the form in which it is offered, with its arguments as "
    "one JSON object."
)
REPEATED: Final = "The same call was made before, as {call_id}; making it again tells nothing new."


def write_instructions(specs: Sequence[ToolSpec], *, is_native: bool) -> str:
    """Return the rules of the system message; `specs` are from `text_calls.bound_specs`."""
    if not specs:
        return _TASK + _CONTINUE + _ANSWER
    if is_native:
        return _TASK + _TOOLS + _ANSWER
    return _TASK + _TOOLS + ACTION_RULE + _ANSWER + write_tools(specs)


def compute_action_key(call: ToolCall) -> str:
    """Return a key that equal calls share: the name, and the arguments in a canonical form."""
    try:
        value = from_json(call.arguments_json.strip() or "{}")
        arguments = json.dumps(value, sort_keys=True)
    except ValueError:
        arguments = call.arguments_json.strip()
    return f"{call.name} {arguments}"

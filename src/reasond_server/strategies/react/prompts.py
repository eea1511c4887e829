"""The texts of ReAct: instructions about tools, and messages between cycles.

For models with native tools, the prompt does not describe the form of calls; for others it does (`context.text_calls`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pydantic_core import from_json

from reasond_server.context.final_replies import EXAMPLE
from reasond_server.context.tags import neutralize
from reasond_server.context.text_calls import ACTION_RULE, write_tools
from reasond_server.tools.read_result import READ_TOOL_RESULT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ToolSpec
    from reasond_server.types import ToolCall

_TASK: Final = "Think step by step first. "
_ANSWER: Final = f"When you know the answer, end with it alone between tags, {EXAMPLE}"
_IN_TEXT: Final = (
    "Call a tool for every calculation and for whatever you do not know for certain. Results come as <observation>; "
    f"never write one yourself. {ACTION_RULE}"
)
# Without tags: models that are told of them write an answer between them, instead of calling anything. And look-ups
# first: models that are told to calculate make up the numbers.
_NATIVE: Final = (
    "First look up with tools whatever the question does not tell; then calculate, with a tool if there is one. When "
    "the results tell the answer, write it."
)
BETWEEN_TAGS: Final = "and"
"""What the tag of `_CONTINUE` holds in the reply of a weak model that repeats this rule at its end."""
_CONTINUE: Final = (
    f"If you need more room to think, end with what you have so far between <continue> {BETWEEN_TAGS} </continue>. "
)

ANSWER_NOW: Final = f"No tools can be called any more. End with the answer from what you know now, {EXAMPLE}"
GO_ON: Final = "Go on."
CUT_OFF: Final = "Your reply was cut off at its limit of {tokens} tokens. Go on, more briefly."
NOTHING_WRITTEN: Final = f"Your reply was empty. Call a tool, or end with the answer, {EXAMPLE}"
NO_ACTION: Final = f"Your reply had neither a call nor an answer. {ACTION_RULE}Or end with the answer, {EXAMPLE}"
UNREAD_CALL: Final = (
    "Your call of a tool could not be read. Call the tool in the form in which it is offered, with its arguments as "
    "one JSON object."
)
_SHOWN_CHARACTERS: Final = 120
REPEATED: Final = "The same call was made before, as {call_id}. Write the answer now, or make another call."
FAILED: Final = "This call failed. Do what its error says, or make another call."
FAILED_AGAIN: Final = "The same call was made before, as {call_id}. Change its arguments, or make another call."


def write_instructions(specs: Sequence[ToolSpec], *, is_native: bool) -> str:
    """Return what stands behind the question; `specs` are the tools."""
    if not specs:
        return _TASK + _CONTINUE + _ANSWER
    return _NATIVE if is_native else _TASK + _IN_TEXT + _ANSWER


def list_tools(specs: Sequence[ToolSpec]) -> str:
    """Return the list of tools for the system message; `specs` are from `text_calls.bound_specs`.

    Models imitate what the list shows, so the tool that reads results is not in it: where there is one to read, the
    prompt says how.
    """
    return write_tools([spec for spec in specs if spec.name != READ_TOOL_RESULT])


def tell_unread(problem: str, content: str) -> str:
    """Return the correction of an action that cannot be read, with how it begins."""
    begins = " ".join(neutralize(content).split())[:_SHOWN_CHARACTERS]
    return f"Your last reply was not read. {problem}. It began with: {begins}\n{ACTION_RULE.strip()}"


def compute_action_key(call: ToolCall) -> str:
    """Return a key that equal calls share: the name, and the arguments in a canonical form."""
    try:
        value = from_json(call.arguments_json.strip() or "{}")
        arguments = json.dumps(value, sort_keys=True)
    except ValueError:
        arguments = call.arguments_json.strip()
    return f"{call.name} {arguments}"

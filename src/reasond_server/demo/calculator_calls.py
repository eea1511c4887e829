"""Computations of the demo model with a calculator: one call for each step, and its result is the answer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from reasond_server.demo.computation import compute
from reasond_server.demo.extraction import split_question
from reasond_server.demo.numerals import has_value
from reasond_server.demo.prompt import is_question
from reasond_server.llm.model import Role
from reasond_server.types import ToolCall
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.demo.computation import Worked
    from reasond_server.demo.prompt import Prompt
    from reasond_server.llm.model import ChatRequest, Message

CALCULATOR = "calculator"
_MAX_CALLS = 6
_PLAIN = re.compile(r"[\d.\s+\-*/()]+|sqrt\([\d.]+\)")
_ROOT = re.compile(r"the square root of ([\d.]+)")
_RESULT = re.compile(r'"result":("?)(-?[\d.]+(?:e[+-]?\d+)?)\1', re.IGNORECASE)


@value
class Act:
    """The text of a reply, and the tool call after it; None for an answer."""

    text: str
    call: ToolCall | None = None


def choose_act(request: ChatRequest, prompt: Prompt) -> Act | None:
    """Return the reply to a computation if a calculator is offered or was called; None to answer without it."""
    is_offered = any(tool.name == CALCULATOR for tool in request.tools) and request.tool_choice != "none"
    results = list(_read_results(find_messages_since_question(request.messages)))
    if not is_offered and not results:
        return None
    worked = compute(split_question(prompt.question)[0])
    steps = [] if worked is None else write_expressions(worked)
    if worked is None or not steps:
        return None
    done, needed = len(results), len(steps)
    if is_offered and done < needed and None not in results:
        arguments = json.dumps({"expression": steps[done]})
        call = ToolCall(call_id=f"demo{done + 1}", name=CALCULATOR, arguments_json=arguments)
        return Act(text=f"Step {done + 1} of {needed}: I have {steps[done]} calculated.", call=call)
    value = results[-1] if done == needed else None
    if value is None:
        return None
    answer = worked.answer if has_value(worked.answer, value) else f"{value:.10g}"
    return Act(text=f"The calculator says {value:.15g}.\n<answer>{answer}</answer>")


def write_expressions(worked: Worked) -> list[str]:
    """Return the steps of a computation as expressions for the calculator, at most 6."""
    return [one for step in worked.steps if (one := _to_expression(step))][:_MAX_CALLS]


def find_messages_since_question(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the last question: tools were called for earlier ones of the conversation, too."""
    places = [place for place, one in enumerate(messages) if one.role is Role.USER and is_question(one.content)]
    return messages[places[-1] + 1 :] if places else messages


def name_calls(messages: Sequence[Message]) -> Mapping[str, str]:
    """Return the tool of each call in `messages` by the id of the call."""
    return {call.call_id: call.name for message in messages for call in message.tool_calls}


def read_number(content: str) -> float | None:
    """Return the number in a result of the calculator; None for a failed or unreadable result."""
    found = _RESULT.search(content)
    return float(found[2]) if found else None


def _to_expression(step: str) -> str:
    """Return the left side of a step as an expression for the calculator, empty if that is not possible."""
    left, equals, _ = step.partition(" = ")
    text = _ROOT.sub(r"sqrt(\1)", left.strip()).replace(",", "").replace("% of ", " / 100 * ")
    text = re.sub(r"[$€£¥]", "", text.replace(" of ", " * ").replace("^", "**"))
    return text if equals and _PLAIN.fullmatch(text) else ""


def _read_results(messages: Sequence[Message]) -> Iterator[float | None]:
    """Yield the results of the calculator in order; None for a failed or unreadable result."""
    names = name_calls(messages)
    for message in messages:
        if message.role is Role.TOOL and names.get(message.tool_call_id) == CALCULATOR:
            yield read_number(message.content)

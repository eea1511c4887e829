"""How the demo model uses a calculator that it is offered: one call for each step of a computation, then the answer.

The steps are those that it works out itself; what it says in the end is what the calculator returned.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.llm.demo.computation import compute
from reasond_server.llm.demo.saying import says
from reasond_server.llm.demo.sentences import split_question
from reasond_server.llm.model import Role
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.demo.prompt import Prompt
    from reasond_server.llm.model import ChatRequest, Message

CALCULATOR = "calculator"
_MAX_CALLS = 6
_PLAIN = re.compile(r"[\d.\s+\-*/()]+|sqrt\([\d.]+\)")
_ROOT = re.compile(r"the square root of ([\d.]+)")
_RESULT = re.compile(r'"result":("?)(-?[\d.]+(?:e[+-]?\d+)?)\1', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What is written, and the call that follows it; none with an answer."""

    text: str
    call: ToolCall | None = None


def next_act(request: ChatRequest, prompt: Prompt) -> Act | None:
    """Return what to do about a computation where a calculator is or was at hand; None to answer as without."""
    is_offered = any(tool.name == CALCULATOR for tool in request.tools) and request.tool_choice != "none"
    results = list(_results(request.messages))
    if not is_offered and not results:
        return None
    worked = compute(split_question(prompt.question)[0])
    steps = [] if worked is None else [one for step in worked.steps if (one := _expression(step))]
    if worked is None or not steps:
        return None
    done, needed = len(results), min(len(steps), _MAX_CALLS)
    if is_offered and done < needed and None not in results:
        arguments = json.dumps({"expression": steps[done]})
        call = ToolCall(call_id=f"demo{done + 1}", name=CALCULATOR, arguments_json=arguments)
        return Act(text=f"Step {done + 1} of {needed}: I have {steps[done]} calculated.", call=call)
    value = results[-1] if done == needed else None
    if value is None:
        return None
    answer = worked.answer if says(worked.answer, value) else f"{value:.10g}"
    return Act(text=f"The calculator says {value:.15g}.\n<answer>{answer}</answer>")


def _expression(step: str) -> str:
    """Return the left side of a step as an expression of the calculator, empty if it is none."""
    left, equals, _ = step.partition(" = ")
    text = _ROOT.sub(r"sqrt(\1)", left.strip()).replace(",", "").replace("% of ", " / 100 * ")
    text = re.sub(r"[$€£¥]", "", text.replace(" of ", " * ").replace("^", "**"))
    return text if equals and _PLAIN.fullmatch(text) else ""


def _results(messages: Sequence[Message]) -> Iterator[float | None]:
    """Yield the results of the calculator in order; None for one that failed or cannot be read."""
    names = {call.call_id: call.name for message in messages for call in message.tool_calls}
    for message in messages:
        if message.role is Role.TOOL and names.get(message.tool_call_id) == CALCULATOR:
            found = _RESULT.search(message.content)
            yield float(found[2]) if found else None

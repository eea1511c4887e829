"""A model without memory: its reply depends on the prompt alone, so that any process can resume any run.

The question controls a run. `(compat__note:{"text": "one"})` makes a ReAct run call that tool in its next cycle;
several calls of one cycle are joined with ` & `.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ChatRequest

ANSWER: Final = "42"
_QUESTION: Final = re.compile(r"<question \w+>\n(.*?)\n</question", re.DOTALL)
_JUDGED: Final = re.compile(r'<passage \w+ number="\d+">\n(.*?)\n</passage', re.DOTALL)
_PROPOSE: Final = re.compile(r" in (\d+) different ways")
_CYCLE: Final = re.compile(r"\((\w+:.*?\})\)(?= |$)")
_ROUND: Final = re.compile(r"Round (\d+)")
_LAST_ROUND: Final = 3
_DEEPEST: Final = 2


def replying_model(function: Callable[[ChatRequest], Reply] | None = None) -> FunctionModel:
    """Return the model; `function` replaces `reply_to`."""
    return FunctionModel(function or reply_to, name="compat", has_native_tools=True)


def question_of(request: ChatRequest) -> str:
    """Return the question in a prompt."""
    found = _QUESTION.search(request.messages[1].content)
    assert found is not None, "every prompt shows the question"
    return found[1]


def reply_to(request: ChatRequest) -> Reply:
    """Return the reply of the model."""
    last = request.messages[-1].content
    rule = last.rpartition(">\n")[2]
    if any(words in rule for words in ("different ways", "the thought", "thoughts", "Using the notes")):
        return Reply(text=_search(last))
    if cycles := _CYCLE.findall(question_of(request)):
        return _act(request, cycles)
    if "<continue>" in request.messages[0].content:
        return Reply(text=_read(last))
    return Reply(text=_sample(request.temperature))


def _search(prompt: str) -> str:
    """Propose, judge or answer, as the prompt of the tree search asks."""
    judged = _JUDGED.findall(prompt)
    if judged:
        points = [sum(map(ord, text)) % 11 for text in judged]
        listed = ", ".join(f"{number}: {each}" for number, each in enumerate(points, start=1))
        return f"Weighed. <answer>{points[0] if len(points) == 1 else listed}</answer>"
    if "Using the notes" in prompt:
        return f"All thoughts together. <answer>{ANSWER}</answer>"
    depth = prompt.count("Step ")
    count = int(found[1]) if (found := _PROPOSE.search(prompt)) else 1
    ending = f" <answer>{ANSWER}</answer>" if depth == _DEEPEST else ""
    return "\n".join(f"Thought {number}: way {'abc'[depth]}{number}{ending}" for number in range(1, count + 1))


def _act(request: ChatRequest, cycles: list[str]) -> Reply:
    """Make the calls of the next cycle; after the last, answer."""
    done = sum(bool(message.tool_calls) for message in request.messages)
    if done >= len(cycles):
        return Reply(text=f"All is done. <answer>{ANSWER}</answer>")
    calls = [
        ToolCall(call_id=f"c{done}{place}", name=name, arguments_json=arguments)
        for place, (name, _, arguments) in enumerate(call.partition(":") for call in cycles[done].split(" & "))
    ]
    return Reply(text=f"Cycle {done + 1}.", tool_calls=calls)


def _read(prompt: str) -> str:
    """Take notes until the last round, then answer."""
    passed = [int(number) for number in _ROUND.findall(prompt)]
    number = max(passed, default=0) + 1
    if number < _LAST_ROUND or "<passage" in prompt:
        return f"I read on. <continue>Round {number}: the wall has {number} gates.</continue>"
    return f"Every gate is counted. <answer>{ANSWER}</answer>"


def _sample(temperature: float) -> str:
    """Think, and give a wrong answer at some temperatures."""
    answer = "41" if round(temperature * 100) % 3 == 0 else ANSWER
    return f"Six times seven is {answer}. <answer>{answer}</answer>"

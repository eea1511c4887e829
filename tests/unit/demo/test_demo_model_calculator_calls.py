from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from reasond_server.demo import DemoModel
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, ToolSpec
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

CALCULATOR = ToolSpec(name="calculator", description="Calculates.", parameters={})
OTHER = ToolSpec(name="other", description="Something else.", parameters={})


async def reply(
    question: str,
    *results: str,
    tools: Sequence[ToolSpec] = (CALCULATOR,),
    tool_choice: str = "auto",
    max_tokens: int = 500,
    said: str = "",
) -> tuple[str, ToolCall | None, Finished]:
    messages = [Message(role=Role.USER, content=f"<question>\n{question}\n</question>")]
    for at, result in enumerate(results):
        call = ToolCall(call_id=f"w{at}", name="calculator", arguments_json="{}")
        messages.append(Message(role=Role.ASSISTANT, content="", tool_calls=(call,)))
        messages.append(Message(role=Role.TOOL, content=result, tool_call_id=f"w{at}"))
    if said:
        messages.append(Message(role=Role.USER, content=said))
    request = ChatRequest(messages=messages, max_tokens=max_tokens, tools=tools, tool_choice=tool_choice)
    events = [event async for event in DemoModel().stream(request)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    text = "".join(event.text for event in events if isinstance(event, Text))
    return text, next((event for event in events if isinstance(event, ToolCall)), None), finished


def result(value: object) -> str:
    return f'<observation call="c1">\n{{"expression":"x","result":{json.dumps(value)}}}\n</observation>'


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 12.5% of 640?", "0.125 * 640"),
        ("What is 1,000 plus 2?", "1000 + 2"),
        ("What is 2 to the power of 10?", "2 ** 10"),
        ("What is the square root of 2?", "sqrt(2)"),
        ("Reduce $80 by 15%", "15 / 100 * 80.00"),
        ("What percentage of 80 is 12?", "12 / 80 * 100"),
    ],
)
async def test_each_step_of_a_computation_is_given_to_the_calculator(question: str, expression: str) -> None:
    text, call, finished = await reply(question)
    assert call is not None
    assert json.loads(call.arguments_json) == {"expression": expression}
    assert expression in text
    assert "<answer>" not in text
    assert finished.reason is ModelFinish.TOOL_CALLS


async def test_the_answer_is_what_the_calculator_returned() -> None:
    text, call, finished = await reply("What is 12.5% of 640?", result(80))
    assert (text, call) == ("The calculator says 80.\n<answer>80</answer>", None)
    assert finished.reason is ModelFinish.STOP
    assert "<answer>81</answer>" in (await reply("What is 12.5% of 640?", result(81)))[0]
    assert "<answer>$92.00</answer>" in (await reply("Increase $80 by 15%", result(12), result(92)))[0]


async def test_steps_follow_one_another() -> None:
    _, call, _ = await reply("What is (3 + 4) * 5?", result(7))
    assert call is not None
    assert json.loads(call.arguments_json) == {"expression": "7 * 5"}
    assert call.call_id == "demo2"


@pytest.mark.parametrize("observed", ['{"error":"failed"}', "[left out, 9 tokens]"])
async def test_without_a_result_it_works_the_question_out_itself(observed: str) -> None:
    text, call, _ = await reply("What is 12.5% of 640?", observed)
    assert "<answer>80</answer>" in text
    assert "calculator" not in text
    assert call is None


async def test_it_calls_only_a_calculator_that_is_offered_and_only_for_computations() -> None:
    for tools, choice in (((), "auto"), ((OTHER,), "auto"), ((CALCULATOR,), "none")):
        text, call, _ = await reply("What is 12.5% of 640?", tools=tools, tool_choice=choice)
        assert "<answer>80</answer>" in text
        assert call is None
    assert (await reply("Write a poem."))[1] is None


async def test_what_is_said_between_calls_does_not_hide_the_question() -> None:
    text, _, _ = await reply("What is 12.5% of 640?", result(80), said="Write <answer> now.")
    assert "<answer>80</answer>" in text


async def test_a_call_that_does_not_fit_is_not_made_and_one_that_does_is_counted() -> None:
    _, call, finished = await reply("What is 12.5% of 640?", max_tokens=12)
    assert call is None
    assert finished.usage.output_tokens <= 12
    _, call, finished = await reply("What is 12.5% of 640?")
    counter = DemoModel().counter
    assert call is not None
    assert finished.usage.output_tokens > counter.count_text(call.arguments_json)

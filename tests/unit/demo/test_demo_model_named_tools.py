from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.demo import DemoModel
from reasond_server.llm.model import ChatRequest, Message, ModelEvent, Role, Text, ToolSpec
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence


def tool(name: str, *required: str, **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name=name, description="", parameters=schema)


CALCULATOR = tool("calculator", "expression", expression={"type": "string"})
TITLE = tool("book_title")
TIME = tool("current_time", zone={"type": "string"})
WRITE = tool("write_file", "path", "text", path={"type": "string"}, text={"type": "string"})
LIMIT = tool("set_limit", "count", "unit", count={"type": "integer"}, unit={"enum": ["days", "hours"]})
TOOLS = (CALCULATOR, TITLE, TIME, WRITE, LIMIT)
REQUEST = "What is 15% of 240? Read the book title. Tell the current time."
INSTRUCTIONS = Message(role=Role.SYSTEM, content="Work on the request.")


def ask(question: str) -> Message:
    return Message(role=Role.USER, content=f"<question abc>\n{question}\n</question abc>")


def answer(number: int, name: str, result: str) -> list[Message]:
    call = ToolCall(call_id=f"w{number}", name=name, arguments_json="{}")
    content = f'<observation abc call="c{number}">\n{result}\n</observation abc>'
    return [
        Message(role=Role.ASSISTANT, content="", tool_calls=(call,)),
        Message(role=Role.TOOL, content=content, tool_call_id=call.call_id),
    ]


async def reply(
    *messages: Message, tools: Sequence[ToolSpec] = TOOLS, tool_choice: str = "auto"
) -> tuple[str, ToolCall | None]:
    request = ChatRequest(
        messages=[INSTRUCTIONS, *messages], max_tokens=2000, tools=tools, tool_choice=tool_choice, temperature=0
    )
    events: list[ModelEvent] = [event async for event in DemoModel().stream(request)]
    text = "".join(event.text for event in events if isinstance(event, Text))
    return text, next((event for event in events if isinstance(event, ToolCall)), None)


RESULTS = (
    answer(1, "calculator", '{"expression":"0.15 * 240","result":36}'),
    answer(2, "book_title", '"Opticks"'),
    answer(3, "current_time", '{"error":"not_called","message":"a person refused the call: too late"}'),
)


async def test_each_sentence_that_names_a_tool_is_a_call_of_it_in_order() -> None:
    called = []
    for count in range(3):
        _, call = await reply(ask(REQUEST), *[one for pair in RESULTS[:count] for one in pair])
        assert call is not None
        called.append((call.name, json.loads(call.arguments_json)))
    assert called == [("calculator", {"expression": "0.15 * 240"}), ("book_title", {}), ("current_time", {})]


async def test_the_answer_quotes_what_the_tools_returned_without_tags_that_nobody_asked_for() -> None:
    text, call = await reply(ask(REQUEST), *[one for pair in RESULTS for one in pair])
    assert call is None
    assert text.splitlines() == [
        "The calculator says 36.",
        "book_title says: Opticks",
        "current_time gave no result: a person refused the call: too late",
    ]


async def test_other_results_are_other_answers() -> None:
    messages = (*answer(1, "calculator", '{"result":37}'), *answer(2, "book_title", '{"title":"Micrographia"}'))
    text, _ = await reply(ask(REQUEST), *messages, tool_choice="none")
    assert text.splitlines() == [
        "The calculator says 37.",
        'book_title says: {"title": "Micrographia"}',
        "current_time was not called.",
    ]


async def test_only_offered_tools_are_called() -> None:
    _, call = await reply(ask(REQUEST), tools=(TIME,))
    assert call is not None
    assert call.name == "current_time"
    _, call = await reply(ask("Read the book title."), tools=(CALCULATOR, TIME))
    assert call is None


async def test_results_of_earlier_turns_are_not_taken_for_those_of_this_one() -> None:
    earlier = [ask(REQUEST), *[one for pair in RESULTS for one in pair], Message(role=Role.ASSISTANT, content="Done.")]
    _, call = await reply(*earlier, ask("Read the book title."))
    assert call is not None
    assert call.name == "book_title"
    _, call = await reply(*earlier, ask("What is 10% of 50?"))
    assert call is not None
    assert json.loads(call.arguments_json) == {"expression": "0.1 * 50"}


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ('Write the file "a.txt" with "One. Two."', {"path": "a.txt", "text": "One. Two."}),
        ("Write the file `a.txt` with `1`, please.", {"path": "a.txt", "text": "1"}),
        ('Set the limit to "3" hours.', {"count": 3, "unit": "hours"}),
        ('Tell the current time in "Asia/Tokyo".', {"zone": "Asia/Tokyo"}),
    ],
)
async def test_what_is_quoted_fills_the_arguments(question: str, arguments: dict[str, Any]) -> None:
    _, call = await reply(ask(question))
    assert call is not None
    assert json.loads(call.arguments_json) == arguments


async def test_a_sentence_may_end_within_its_quotation_marks() -> None:
    request = ask('Write the file "a.txt" with "One. Two." Read the book title.')
    _, call = await reply(request, *answer(1, "write_file", "{}"))
    assert call is not None
    assert call.name == "book_title"


@pytest.mark.parametrize("question", ['Write the file "a.txt".', 'Set the limit to "three" hours.'])
async def test_a_call_whose_arguments_are_not_given_is_not_made(question: str) -> None:
    text, call = await reply(ask(f"{question} Read the book title."), *answer(1, "book_title", '"Opticks"'))
    assert call is None
    assert text.splitlines() == [f"This needs a language model: {question}", "book_title says: Opticks"]


async def test_a_failed_calculator_is_not_quoted() -> None:
    failed = answer(1, "calculator", '{"error":"failed","message":"no"}')
    text, _ = await reply(ask("What is 15% of 240? Read the book title."), *failed, *answer(2, "book_title", '"x"'))
    assert text.splitlines()[0] == "Without the calculator: 36"


async def test_a_long_result_is_quoted_in_part_and_its_length_told() -> None:
    text, _ = await reply(ask("Read the book title."), *answer(1, "book_title", json.dumps("x" * 1000)))
    assert text == f"book_title says: {'x' * 600} … (1,000 characters)"

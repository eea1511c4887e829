"""Calls in the text of a reply, in the forms of many templates; and texts that are none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.dialects.written_calls import may_begin_call, read_text_calls
from tests.reports.rows import load_rows

if TYPE_CHECKING:
    from collections.abc import Sequence


def join_content(events: Sequence[dict[str, Any]]) -> str:
    """Return the content of a stream."""
    deltas = [choice["delta"] for chunk in events for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


TOOLS = {
    "calculator": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
KIND = "call as text by a model with native tools"
CALLS = [text for row in load_rows("chat") if row.kind.startswith(KIND) and (text := join_content(row.input["events"]))]
NO_CALLS = [
    "The tag `<tool_call>` opens it.",
    '{"name": "Bob", "parameters": {"x": 1}}',
    'Use\n```\n<tool_call>{"name": "calculator", "arguments": {}}</tool_call>\n```\nto call.',
    "plain",
    "[1, 2]",
    '{"expression": "8*9"}',
    "It is 42.",
    'So I wrote `{"name": "calculator", "arguments": {"expression": "8*9"}}` above.',
    'A call is {"name": "calculator", "arguments": {"expression": "8*9"}} in this form.',
    'I set\n{"name": "calculator", "arguments": {"precision": 2}}\nand it is kept.',
    'It has\n{"calculator": "8*9"}\nin it.',
    'A call is `<tool name="calculator" expression="8*9" />` in this form.',
    'As in\n```xml\n<tool name="calculator" expression="8*9" />\n```\nit is written.',
    '<tool name="hammer" weight="2" />',
    'The element is\n<tool name="calculator" version="2" />',
    '<tool name="calculator">',
    'Then {\n{"name": "calculator", "arguments": {"expression": "8*9"}}\nstands within.',
]
CALL = '{"name": "calculator", "arguments": {"expression": "8*9"}}'
SPREAD = '{\n  "name": "calculator",\n  "arguments": {\n    "expression": "8*9"\n  }\n}'
OTHER = CALL.replace("8*9", "72+1")


@pytest.mark.parametrize("text", CALLS)
def test_a_call_is_read_in_the_form_of_its_template(text: str) -> None:
    found = read_text_calls(text, TOOLS)
    assert found is not None
    assert not found.is_unread
    assert found.calls[0].name == "calculator"
    assert json.loads(found.calls[0].arguments_json) == {"expression": "8*9"}
    assert may_begin_call(text) is not None, "a stream would show it"


@pytest.mark.parametrize("text", NO_CALLS)
def test_a_text_that_is_no_call_stays_a_text(text: str) -> None:
    assert read_text_calls(text, TOOLS) is None


@pytest.mark.parametrize(
    "text",
    [
        f"I compute.\n\n```json\n{CALL}\n```\n\nThis gives the product.",
        f"I compute.\n```json\n{SPREAD}\n```\nThen I add:\n```json\n{OTHER}\n```",
        f"I compute.\n{CALL}\nThen:\n{OTHER}",
        f"I compute.\n{SPREAD}\nThe result is 72.",
        f"I compute.\n\n{SPREAD}",
        f"I compute. {CALL}",
        'I compute.\n{"tool": "calculator", "expression": "8*9"}\nThat is it.',
        'I compute.\n{"calculator": {"expression": "8*9"}}\nThat is it.',
        f"I compute.\n{{{CALL}}}",
        f"I compute.\n```json\n{{{CALL}}}\n```",
        f"I compute.\n{{{CALL}\nThat is it.",
        f"I compute.\n<tool_call>\n{{{CALL}}}\n</tool_call>",
        f"I compute.\n<tools>\n{{{CALL}}}}}\n</tools>",
        'I compute.\n<action>calculator(expression="8*9")</action>',
        'I compute.\n<function-call name="calculator" arguments=\'{"expression": "8*9"}\' />\n\nThe result is shown.',
        'I compute.\n<function_call name="calculator" arguments="{&quot;expression&quot;: &quot;8*9&quot;}">',
        "I compute. <tool-call arguments='{\"expression\": \"8*9\"}' name='calculator'/>",
        'I compute.\n<tool name="calculator" expression="8*9" />',
        'I compute.\n<action>[{"name": "calculator", "arguments": {"expression": "8*9"}}]</action>',
    ],
)
def test_the_first_call_in_a_text_that_goes_on_is_read_and_what_follows_is_not(text: str) -> None:
    found = read_text_calls(text, TOOLS)
    assert found is not None
    assert found.text.startswith("I compute.")
    assert "calculator" not in found.text
    assert [(call.name, json.loads(call.arguments_json)) for call in found.calls] == [
        ("calculator", {"expression": "8*9"})
    ]


def test_calls_in_tags_are_read_one_by_one_and_one_without_readable_arguments_is_told() -> None:
    tags = "".join([f"<tool-call name='add' arguments='{{\"a\": {a}, \"b\": 2}}' />\n" for a in (1, 2)])
    found = read_text_calls(tags, TOOLS)
    assert found is not None
    assert [json.loads(call.arguments_json) for call in found.calls] == [{"a": 1, "b": 2}, {"a": 2, "b": 2}]
    empty = read_text_calls("<tool-call name='add' arguments='{}' />", TOOLS)
    assert empty is not None
    assert [call.arguments_json for call in empty.calls] == ["{}"]
    broken = read_text_calls("<tool-call name='add' arguments='{\"a\": ' />", TOOLS)
    assert broken is not None
    assert broken.is_unread


@pytest.mark.parametrize(
    "tag",
    [
        '<function-call name="now" />',
        "<function_call name='now'/>",
        '<tool name="now"></tool>',
        '<function name="now"/>',
        '<ToolCall name = "now" >\n</ToolCall>',
    ],
)
def test_a_tag_with_a_name_alone_calls_a_tool_that_requires_nothing(tag: str) -> None:
    schemas = {"now": {"type": "object", "properties": {"zone": {"type": "string"}}}, **TOOLS}
    found = read_text_calls(f"I look.\n{tag}\nIt is noon.", schemas)
    assert found is not None
    assert [(call.name, call.arguments_json) for call in found.calls] == [("now", "{}")]
    assert found.text == "I look."
    assert read_text_calls(f"Write `{tag}`.", schemas) is None
    needy = read_text_calls(tag.replace("now", "calculator"), schemas)
    assert needy is None or not needy.calls
    within = read_text_calls('<function name="now"><parameter name="zone">UTC</parameter></function>', schemas)
    assert within is not None
    assert [json.loads(call.arguments_json) for call in within.calls] == [{"zone": "UTC"}]


def test_a_call_that_is_told_before_an_answer_is_none() -> None:
    told = f"I called\n{CALL}\nand it was 72."
    assert read_text_calls(told, TOOLS, may_go_on=False) is None
    assert read_text_calls(f"I call.\n{CALL}", TOOLS, may_go_on=False) is not None


@pytest.mark.parametrize("member", ["name", "tool"])
@pytest.mark.parametrize("form", ["CALL", " CALL\n", "```json\nCALL\n```", "{CALL}", "[CALL]", "[CALL, CALL]"])
def test_a_reply_that_is_nothing_but_a_call_is_one_whatever_it_names(form: str, member: str) -> None:
    call = json.dumps({member: "calculate", "arguments": {"expression": "227 * 166"}})
    found = read_text_calls(form.replace("CALL", call), TOOLS)
    assert found is not None
    assert [call.name for call in found.calls] == ["calculate"] * form.count("CALL")
    assert read_text_calls(f"Such a reply is a call:\n```json\n{call}\n```", TOOLS) is None
    assert read_text_calls('{"name": "Ada", "arguments": 3}', TOOLS) is None
    assert read_text_calls('{"name": "Ada", "arguments": {}, "born": 1815}', TOOLS) is None
    assert read_text_calls("[]", TOOLS) is None


def test_arguments_get_the_types_that_their_schema_wants() -> None:
    text = "<function=add><parameter=a>1</parameter><parameter=b>2</parameter></function>"
    found = read_text_calls(text, TOOLS)
    assert found is not None
    assert json.loads(found.calls[0].arguments_json) == {"a": 1, "b": 2}
    found = read_text_calls("[add(1, 2), add(a=3, b=4)]", TOOLS)
    assert found is not None
    assert [json.loads(call.arguments_json) for call in found.calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "calculator", "arguments": {"expr',
        "[TOOL_CALLS] well",
        "<tool_call></tool_call>",
        "<function=add><parameter=a>1",
    ],
)
def test_a_call_that_cannot_be_read_is_no_text(text: str) -> None:
    found = read_text_calls(f"So.\n{text}", TOOLS)
    assert found is not None
    assert (found.text, found.is_unread) == ("So.", True)


CUT = [
    '{"name": "search", "arguments": {"q": "x"}',
    '{"name": "search", "arguments": {"name": "run", "arguments": {"q": "x"}}',
    '{"name": "search", "arguments": {"q": [{"name": "run", "arguments": {}}], "more": "',
    '{"name": "search", "arguments": run {"q": "x"}',
    '{"tool": {"name": "run", "arguments": {"q": "x"}}, "then": ',
]


@pytest.mark.parametrize("cut", CUT)
def test_nothing_within_an_object_of_many_lines_that_is_not_whole_is_a_call(cut: str) -> None:
    spread = cut.replace("{", "\n{", 9)
    assert read_text_calls(f"I look.{spread}", {"search": {}, "run": {}, "arguments": {}}) is None


@pytest.mark.parametrize(
    "text", ["<tools></tools>", "<tools>\n</tools>", "<tool_call></tool_call>", "<action></action>", "</tool_response>"]
)
def test_tags_of_a_call_without_one_are_no_answer(text: str) -> None:
    found = read_text_calls(text, {"search": {}})
    assert found is not None
    assert (list(found.calls), found.is_unread) == ([], True)


@pytest.mark.parametrize("cut", CUT)
@pytest.mark.parametrize("mark", ["<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<tools>", "<action>"])
def test_nothing_within_a_call_that_is_not_whole_is_a_call(mark: str, cut: str) -> None:
    found = read_text_calls(f"I look. {mark}{cut}", {"search": {}, "run": {}, "arguments": {}})
    assert found is not None
    assert (list(found.calls), found.is_unread) == ([], True)


@given(st.lists(st.sampled_from([*CALLS, "a", "\n", "{", "}", '"', "```", "<", "[", "("]), max_size=6))
def test_no_text_breaks_the_reading(parts: list[str]) -> None:
    found = read_text_calls("".join(parts), TOOLS)
    assert found is None or found.is_unread == (not found.calls)

"""A real engine calls tools: llama.cpp parses its model's calls, and enforces them by a grammar if requested.

The models of these tests see only their last token, so their calls are fixed. The engine's part is real: the template,
the grammar, the parser of the model's text, and the resulting stream.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, aclosing
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, Role, Text, ToolSpec
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import build_chat_body
from reasond_server.llm.openai.model_factory import build_model
from reasond_server.llm.profiles import find_profile
from reasond_server.types import ToolCall, UsageSource
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Literal

    from reasond_server.llm.openai.openai_model import OpenAIModel
    from tests.engines.serving import Engine

MISSING = [name for name in ("xllamacpp", "gguf", "openai", "aiohttp") if find_spec(name) is None]
IS_CI = os.environ.get("CI") == "true"
pytestmark = [
    pytest.mark.skipif(bool(MISSING) and not IS_CI, reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.parametrize("protocol", ["chat", "responses"]),
]


def tool(name: str, *numbers: str) -> ToolSpec:
    properties = {number: {"type": "integer"} for number in numbers}
    schema = {"type": "object", "properties": properties, "required": list(numbers), "additionalProperties": False}
    return ToolSpec(name=name, description=f"Does {name}.", parameters=schema)


ADD, HALVE = tool("add", "a", "b"), tool("halve", "c")
QUESTION = Message(role=Role.USER, content="Six and seven?")


@pytest.fixture(scope="module")
def engine_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engine]]:
    running: dict[str, Engine] = {}
    with ExitStack() as stack:

        def start(chain: str) -> Engine:
            if chain not in running:
                folder = tmp_path_factory.mktemp(chain)
                running[chain] = stack.enter_context(running_engine(chain, folder=folder, window=2048))
            return running[chain]

        yield start


LLAMACPP = BackendOptions(
    name="engine", model="any", base_url="http://127.0.0.1:1/v1", profile=find_profile("any", "", "llamacpp")
)


def model_on(engine: Engine, protocol: Literal["chat", "responses"]) -> OpenAIModel:
    return build_model(replace(LLAMACPP, base_url=engine.base_url, protocol=protocol))


async def call_model(model: OpenAIModel, **changes: Any) -> tuple[str, list[ToolCall], Finished]:
    """Return text, calls and end."""
    request = ChatRequest(
        **{"messages": (QUESTION,), "max_tokens": 120, "temperature": 0.0, "tools": (ADD, HALVE), **changes}
    )
    async with aclosing(model), aclosing(model.stream(request)) as events:
        *pieces, end = [event async for event in events]
    assert isinstance(end, Finished)
    text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
    return text, [piece for piece in pieces if isinstance(piece, ToolCall)], end


def list_calls(calls: list[ToolCall]) -> list[tuple[str, str]]:
    assert len({call.call_id for call in calls}) == len(calls)
    assert all(call.call_id for call in calls)
    return [(call.name, call.arguments_json.replace(" ", "")) for call in calls]


async def test_a_call_comes_whole_from_the_pieces_of_the_stream(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    text, calls, end = await call_model(model_on(engine_of("call"), protocol))
    assert (text, list_calls(calls)) == ("", [("add", '{"a":6,"b":7}')])
    assert end.reason is ModelFinish.TOOL_CALLS
    assert end.usage.source is UsageSource.REPORTED
    assert not end.warnings


async def test_several_calls_of_one_reply_keep_their_order_and_their_ids(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    _, calls, end = await call_model(model_on(engine_of("calls"), protocol))
    assert list_calls(calls) == [("add", '{"a":6,"b":7}'), ("halve", '{"c":8}')]
    assert end.reason is ModelFinish.TOOL_CALLS


async def test_a_model_that_must_call_a_tool_cannot_end_without_a_call(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    text, calls, end = await call_model(model_on(engine_of("answer"), protocol))
    assert (text[-9:], calls, end.reason) == ("</answer>", [], ModelFinish.STOP)
    text, calls, end = await call_model(model_on(engine_of("answer"), protocol), tool_choice="required")
    assert text.startswith("Let me see: six times seven makes<answer>42</answer>")
    assert (calls, end.reason) == ([], ModelFinish.LENGTH), "the grammar lets it write before a call, but not end"


async def test_a_demanded_tool_is_the_only_one_that_is_called(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    _, calls, end = await call_model(model_on(engine_of("call"), protocol), tool_choice="add")
    assert list_calls(calls) == [("add", '{"a":6,"b":7}')]
    assert (end.reason, tuple(end.warnings)) == (ModelFinish.TOOL_CALLS, ())
    _, calls, end = await call_model(model_on(engine_of("call"), protocol), tool_choice="halve")
    assert {call.name for call in calls} <= {"halve"}, "its model would call add"
    assert end.reason in {ModelFinish.TOOL_CALLS, ModelFinish.LENGTH}


async def test_no_tool_is_called_if_none_is_allowed(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    text, calls, end = await call_model(model_on(engine_of("call"), protocol), tool_choice="none")
    assert not calls
    assert '"name": "add"' in text
    assert end.reason is ModelFinish.STOP


async def test_a_call_that_the_limit_cuts_is_not_passed_on(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    for limit in range(1, 8):
        _, calls, end = await call_model(model_on(engine_of("call"), protocol), max_tokens=limit)
        assert (calls, end.reason) == ([], ModelFinish.LENGTH), limit
        assert end.usage.output_tokens == limit


async def test_results_are_sent_back_under_the_ids_of_their_calls(
    engine_of: Callable[[str], Engine], protocol: Literal["chat", "responses"]
) -> None:
    _, calls, first = await call_model(model_on(engine_of("calls"), protocol))
    results = [Message(role=Role.TOOL, content="13", tool_call_id=call.call_id) for call in calls]
    sent = (QUESTION, Message(role=Role.ASSISTANT, content="", tool_calls=calls), *results)
    text, again, end = await call_model(model_on(engine_of("answer"), protocol), messages=sent)
    assert text.endswith("<answer>42</answer>")
    assert not again
    body = build_chat_body(ChatRequest(messages=sent, max_tokens=1), LLAMACPP)
    written = {**body.data, "messages": [json.loads(message) for message in body.messages]}
    prompt = engine_of("answer").call("/apply-template", written)
    *_, last = prompt["prompt"].split("<|user|>")
    assert last.count("<tool_call>") == 2
    assert '{"name": "add", "arguments": {"a": 6, "b": 7}}' in last
    assert last.endswith("<|tool|>13<|tool|>13<|assistant|>")
    assert end.usage.input_tokens > first.usage.input_tokens

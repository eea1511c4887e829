"""Run by the tests as python_clients.py is: clients that speak the Responses interface tell what they saw.

Usage: python_responses.py BASE_URL TOKEN.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import openai
import openresponses_types
from agents import Agent as OpenAiAgent
from agents import CustomTool, Runner, function_tool
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, ValidationError
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIResponsesModelSettings

QUESTION = "What is 6 times 7?"
AS_JSON = "What is 6 times 7, as JSON?"
BY_TOOL = "What is 40 plus 2? Use the tool."
BY_TEXT = "Shout that it is 42."
EXACT = "You are exact."
ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


class Number(BaseModel):
    """The answer by a schema."""

    n: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def shout(_: Any, text: str) -> str:
    """Say a text loudly."""
    return text.upper()


def tell(client: str, **seen: Any) -> None:
    print(json.dumps({"client": client, **seen}), flush=True)  # noqa: T201 - the test reads it


def run_openai(client: Any) -> None:
    responses = client.responses
    whole = responses.create(model="reasond", input=QUESTION, metadata={"run": "7"})
    with responses.stream(model="reasond", input=QUESTION) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    parsed = responses.parse(model="reasond", instructions=EXACT, input=AS_JSON, text_format=Number)
    tell("openai", answer=whole.output_text, tokens=whole.usage.total_tokens, metadata=whole.metadata)
    tell("openai", streamed=final.output_text, first=kinds[0], last=kinds[-1], parsed=parsed.output_parsed.n)
    asked = responses.create(model="reasond", input=BY_TOOL, tools=[ADD])
    (call,) = [item for item in asked.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
    used = responses.create(model="reasond", previous_response_id=asked.id, input=[result], tools=[ADD])
    tell("openai", by_tool=used.output_text, arguments=json.loads(call.arguments))
    begun = responses.create(model="reasond", input=QUESTION, background=True, stream=True)
    had = [next(begun) for _ in range(4)]
    begun.close()
    response_id = str(had[0].response.id)
    rest = list(responses.retrieve(response_id, stream=True, starting_after=had[-1].sequence_number))
    again = list(responses.retrieve(response_id, stream=True))
    tell("openai", is_whole=[each.to_dict() for each in (*had, *rest)] == [each.to_dict() for each in again])
    items = responses.input_items.list(response_id).data
    tell("openai", cancelled=responses.cancel(response_id).status, items=len(items))
    responses.delete(response_id)
    tell("openai", errors=[error_of(responses.retrieve, response_id), error_of(responses.create, model="x", input="x")])


def check_types(client: Any) -> None:
    """Validate each event of streams by the types that are made from the specification."""
    kinds = {
        each.value: form
        for form in map(openresponses_types.__dict__.get, dir(openresponses_types))
        if getattr(form, "__name__", "").endswith("StreamingEvent")
        for each in form.model_fields["type"].annotation
    }
    checked, wrong = set(), []
    for asked in (
        {"input": QUESTION, "include": ["reasoning.encrypted_content"], "metadata": {"run": "7"}},
        {"input": QUESTION, "model": "reasond/direct"},
        {"input": BY_TOOL, "tools": [ADD]},
    ):
        for event in client.responses.create(**{"model": "reasond", **asked}, stream=True):
            try:
                kinds[event.type].model_validate(event.to_dict())
            except (KeyError, ValidationError) as error:
                wrong.append(f"{event.type}: {error}")
            checked.add(event.type)
    tell("openresponses", checked=len(checked), wrong=wrong)


def error_of(call: Any, *given: Any, **named: Any) -> list[Any]:
    try:
        call(*given, **named)
    except openai.APIStatusError as error:
        return [error.status_code, error.code]
    return []


async def run_agents() -> None:
    agent = OpenAiAgent(name="x", instructions="Be brief.", model="reasond", tools=[function_tool(add)])
    whole = await Runner.run(agent, BY_TOOL)
    streamed = Runner.run_streamed(agent, BY_TOOL)
    async for _ in streamed.stream_events():
        pass
    exact = OpenAiAgent(name="y", instructions=EXACT, model="reasond", output_type=Number)
    parsed = (await Runner.run(exact, AS_JSON)).final_output.n
    loud = CustomTool(name="shout", description="Shouts.", on_invoke_tool=shout)
    shouted = await Runner.run(OpenAiAgent(name="z", model="reasond", tools=[loud]), BY_TEXT)
    tell("openai-agents", by_text=shouted.final_output)
    tell("openai-agents", by_tool=whole.final_output, streamed=streamed.final_output, parsed=parsed)


async def run_pydantic_ai() -> None:
    agent = Agent("openai:reasond", instructions="Be brief.", tools=[add])
    whole = await agent.run(BY_TOOL)
    async with agent.run_stream(BY_TOOL) as stream:
        streamed = await stream.get_output()
    later = await Agent("openai:reasond").run(QUESTION, message_history=whole.all_messages())
    exact = Agent("openai:reasond", instructions=EXACT, output_type=NativeOutput(Number))
    parsed = (await exact.run(AS_JSON)).output.n
    tell("pydantic-ai", by_tool=whole.output, streamed=streamed, later=later.output, parsed=parsed)
    kept = Agent("openai:reasond", tools=[add], model_settings=OpenAIResponsesModelSettings(openai_background=True))
    polled = await kept.run(BY_TOOL)
    async with kept.run_stream(BY_TOOL) as stream:
        followed = await stream.get_output()
    tell("pydantic-ai", background=[polled.output, followed])


def run_langchain() -> None:
    chat = ChatOpenAI(model="reasond", use_responses_api=True, max_retries=0)
    streamed = "".join(str(piece.text) for piece in chat.stream(QUESTION))
    with_tool = chat.bind_tools([add])
    asked = with_tool.invoke(BY_TOOL)
    results = [ToolMessage(str(add(**call["args"])), tool_call_id=call["id"]) for call in asked.tool_calls]
    used = with_tool.invoke([HumanMessage(BY_TOOL), asked, *results])
    exact = chat.with_structured_output(Number).invoke([("system", EXACT), ("user", AS_JSON)])
    tell("langchain", by_tool=str(used.text), streamed=streamed, parsed=exact.n)


def main() -> None:
    base_url, token = sys.argv[1:]
    os.environ.update(OPENAI_BASE_URL=base_url, OPENAI_API_KEY=token, OPENAI_AGENTS_DISABLE_TRACING="1")
    run_openai(OpenAI(max_retries=0))
    check_types(OpenAI(max_retries=0))
    run_langchain()
    asyncio.run(run_agents())
    asyncio.run(run_pydantic_ai())


main()

"""Run by the tests as python_clients.py is: clients that speak Anthropic's interface tell what they saw.

Usage: python_messages.py BASE_URL TOKEN.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anthropic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

QUESTION = "What is 6 times 7?"
AS_JSON = "What is 6 times 7, as JSON?"
BY_TOOL = "What is 40 plus 2? Use the tool."
EXACT = "You are exact."
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ADD = {"name": "add", "description": "Adds.", "input_schema": NUMBERS}
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Number(BaseModel):
    """The answer by a schema."""

    n: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tell(client: str, **seen: Any) -> None:
    print(json.dumps({"client": client, **seen}), flush=True)  # noqa: T201 - the test reads it


def asking(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def run_anthropic(client: Any) -> None:
    create = client.messages.create
    whole = create(model="reasond", max_tokens=2000, messages=asking(QUESTION))
    with client.messages.stream(model="reasond", max_tokens=2000, messages=asking(QUESTION)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    tell("anthropic", answer=whole.content[0].text, stop=whole.stop_reason, input=whole.usage.input_tokens)
    tell("anthropic", streamed=final.content[0].text, first=kinds[0], last=kinds[-1], output=final.usage.output_tokens)
    with client.messages.stream(
        model="reasond", max_tokens=2000, messages=asking(QUESTION), thinking=THINKING
    ) as stream:
        thought, said = stream.get_final_message().content
    sent = [*asking(QUESTION), {"role": "assistant", "content": [thought.to_dict(), said.to_dict()]}]
    again = create(model="reasond", max_tokens=2000, messages=[*sent, *asking("And again?")])
    tell("anthropic", thinking=thought.thinking, is_signed=bool(thought.signature), again=again.content[0].text)
    config = {"format": {"type": "json_schema", "schema": NUMBER}}
    parsed = create(model="reasond", max_tokens=2000, system=EXACT, messages=asking(AS_JSON), output_config=config)
    tell("anthropic", parsed=json.loads(parsed.content[0].text))
    run_tools(client)
    counted = client.messages.count_tokens(model="reasond", messages=asking(QUESTION), system=EXACT)
    models = [each.id for each in client.models.list()]
    tell("anthropic", counts=counted.input_tokens > 0, models=models[:1], one=client.models.retrieve("reasond").id)
    tell(
        "anthropic", errors=[error_of(create, model="x"), error_of(create, model="reasond", tool_choice={"type": "x"})]
    )


def run_tools(client: Any) -> None:
    """Call a tool in a stream, and hand its result in with a reminder behind it, as agents do."""
    asked = {"model": "reasond", "max_tokens": 2000, "tools": [ADD], "messages": asking(BY_TOOL)}
    with client.messages.stream(**asked) as stream:
        first = stream.get_final_message()
    call = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "42"}]}
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    turns = [
        *asking(BY_TOOL),
        {"role": "assistant", "content": [each.to_dict() for each in first.content]},
        {"role": "user", "content": [result, reminder]},
    ]
    used = client.messages.create(**{**asked, "messages": turns})
    tell("anthropic", stop_for_tool=first.stop_reason, arguments=call.input, by_tool=used.content[0].text)
    tell("anthropic", is_one_turn=used.id == first.id)


def error_of(create: Any, **asked: Any) -> list[Any]:
    try:
        create(**{"max_tokens": 100, "messages": asking(QUESTION), **asked})
    except anthropic.APIStatusError as error:
        return [error.status_code, error.body["error"]["type"], bool(error.request_id)]
    return []


def run_langchain(base: str, token: str) -> None:
    model = ChatAnthropic(model_name="reasond", base_url=base, api_key=token, max_retries=0)
    bound = model.bind_tools([ADD])
    asked: list[Any] = [HumanMessage(BY_TOOL)]
    answer = bound.invoke(asked)
    asked += [answer, ToolMessage("42", tool_call_id=answer.tool_calls[0]["id"])]
    streamed = "".join(str(chunk.text) for chunk in model.stream(QUESTION))
    tell("langchain", by_tool=bound.invoke(asked).text, streamed=streamed)


def run_pydantic_ai(base: str, token: str) -> None:
    provider = AnthropicProvider(api_key=token, base_url=base)
    agent = Agent(AnthropicModel("reasond", provider=provider), tools=[add])
    done = agent.run_sync(BY_TOOL)
    tell("pydantic-ai", by_tool=done.output)


def main(base: str, token: str) -> None:
    base = base.removesuffix("/v1")
    run_anthropic(anthropic.Anthropic(base_url=base, api_key=token, max_retries=0))
    run_langchain(base, token)
    run_pydantic_ai(base, token)


if __name__ == "__main__":
    main(*sys.argv[1:])

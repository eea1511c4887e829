"""Run by the tests in an environment of its own: the Python clients talk to a server, and each tells what it saw.

Usage: python_clients.py BASE_URL TOKEN. Each line of the output is a JSON object with the name of a client; the line of
a first step is written as soon as the step has come, and the model goes on only after it was read.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, ThinkingPart, ThinkingPartDelta
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is 6 times 7?"
SLOWLY = "What is 6 times 7? Think slowly."
FOREVER = "What is 6 times 7? Think forever."
AS_JSON = "What is 6 times 7, as JSON?"
BY_TOOL = "What is 40 plus 2? Use the tool."
IN_WINDOWS = "in-windows"


class Number(BaseModel):
    """The answer by a schema."""

    n: int


def tell(client: str, **seen: Any) -> None:
    print(json.dumps({"client": client, **seen}), flush=True)  # noqa: T201 - the test reads it


def build_messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def run_openai(client: Any) -> None:
    whole = client.chat.completions.create(model="reasond", messages=build_messages(QUESTION), temperature=0.5)
    message = whole.choices[0].message
    tell(
        "openai",
        models=[model.id for model in client.models.list()],
        model=client.models.retrieve("reasond/react").id,
        answer=message.content,
        reasoning=message.model_extra["reasoning_content"],
        finish=whole.choices[0].finish_reason,
        tokens=whole.usage.total_tokens,
        strategy=whole.model_extra["reasond"]["strategy"],
        request_id=whole._request_id,
    )
    reasoning, answer, tokens = "", "", 0
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model=IN_WINDOWS, messages=build_messages(SLOWLY), stream=True, stream_options=options
    ):
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            if (text := choice.delta.model_extra.get("reasoning_content")) and not reasoning:
                tell("openai", first_step=text)
            reasoning += text or ""
            answer += choice.delta.content or ""
    tell("openai", streamed=answer, steps=reasoning, streamed_tokens=tokens)
    instructed = [{"role": "system", "content": "You are exact."}, *build_messages(AS_JSON)]
    parsed = client.chat.completions.parse(model="reasond", messages=instructed, response_format=Number)
    tell("openai", parsed=parsed.choices[0].message.parsed.n)
    keyed = {"extra_headers": {"Idempotency-Key": "once"}}
    ids = {
        client.chat.completions.create(model="reasond", messages=build_messages(QUESTION), **keyed).id for _ in range(2)
    }
    tell("openai", ids_of_one_key=len(ids), errors=[error_of(client, **wrong) for wrong in WRONG])
    with client.chat.completions.create(model=IN_WINDOWS, messages=build_messages(FOREVER), stream=True) as left:
        next(chunk for chunk in left if chunk.choices[0].delta.model_extra.get("reasoning"))
    tell("openai", has_left=True)


WRONG = (
    {"model": "reasond/chain-of-thought"},
    {"n": 9},
    {"extra_body": {"reasond": {"config": {"max_tokens": 1}}}},
    {"extra_headers": {"Authorization": "Bearer nonsense"}},
)


def error_of(client: Any, **wrong: Any) -> list[Any]:
    try:
        client.chat.completions.create(**{"model": "reasond", "messages": build_messages(QUESTION), **wrong})
    except openai.APIStatusError as error:
        return [type(error).__name__, error.code, error.param]
    return []


def add_for(sums: list[list[int]]) -> Any:
    """Return a tool that notes its calls."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        sums.append([a, b])
        return a + b

    return add


def run_langchain(base_url: str, token: str) -> None:
    chat = ChatOpenAI(model="reasond", base_url=base_url, api_key=token, stream_usage=True)
    whole = chat.invoke(QUESTION)
    pieces = list(chat.stream(QUESTION))
    sums: list[list[int]] = []
    messages: list[Any] = [HumanMessage(BY_TOOL)]
    with_tool = chat.bind_tools([add_for(sums)])
    while not messages[-1].text or messages[-1].type != "ai":
        messages.append(with_tool.invoke(messages))
        for call in messages[-1].tool_calls:
            total = add_for(sums)(**call["args"])
            messages.append(ToolMessage(str(total), tool_call_id=call["id"]))
    tell("langchain", by_tool=messages[-1].content, sums=sums)
    tell(
        "langchain",
        answer=whole.content,
        tokens=whole.usage_metadata["total_tokens"],
        streamed="".join(piece.content for piece in pieces),
        streamed_tokens=sum((piece.usage_metadata or {}).get("total_tokens", 0) for piece in pieces),
    )


def run_pydantic_ai(base_url: str, token: str) -> None:
    provider = OpenAIProvider(base_url=base_url, api_key=token)
    agent = Agent(OpenAIChatModel(IN_WINDOWS, provider=provider))
    whole = agent.run_sync(QUESTION)
    thoughts = [part.content for part in whole.response.parts if isinstance(part, ThinkingPart)]
    tell("pydantic-ai", answer=whole.output, reasoning="".join(thoughts), tokens=whole.usage.total_tokens)
    exact = Agent(agent.model, output_type=NativeOutput(Number), instructions="You are exact.")
    tell("pydantic-ai", parsed=exact.run_sync(AS_JSON).output.n)
    sums: list[list[int]] = []
    with_tool = Agent(OpenAIChatModel("reasond", provider=provider), tools=[add_for(sums)])
    used = with_tool.run_sync(BY_TOOL)
    tell("pydantic-ai", by_tool=used.output, sums=sums, tool_tokens=used.usage.total_tokens)
    tell("pydantic-ai", steps=asyncio.run(stream_pydantic_ai(agent)))


async def stream_pydantic_ai(agent: Any) -> str:
    steps = ""
    async with agent.run_stream_events(SLOWLY) as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, ThinkingPart):
                text = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ThinkingPartDelta):
                text = event.delta.content_delta or ""
            else:
                continue
            if text and not steps:
                tell("pydantic-ai", first_step=text)
            steps += text
    return steps


def main() -> None:
    base_url, token = sys.argv[1:]
    run_openai(OpenAI(base_url=base_url, api_key=token, max_retries=0))
    run_langchain(base_url, token)
    run_pydantic_ai(base_url, token)


main()

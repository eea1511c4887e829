"""Run by the tests as python_clients.py is: agent-framework and strands-agents, over both of OpenAI's interfaces.

Usage: python_frameworks.py BASE_URL TOKEN.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from pydantic import BaseModel
from strands import Agent as StrandsAgent
from strands import tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel

QUESTION = "What is 6 times 7?"
AS_JSON = "What is 6 times 7, as JSON?"
BY_TOOL = "What is 40 plus 2? Use the tool."
EXACT = "You are exact."


class Number(BaseModel):
    """The answer by a schema."""

    n: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tell(client: str, **seen: Any) -> None:
    print(json.dumps({"client": client, **seen}), flush=True)  # noqa: T201 - the test reads it


async def run_agent_framework(name: str, form: Any, base_url: str, token: str) -> None:
    client = form(model="reasond", api_key=token, base_url=base_url)
    plain = Agent(client, EXACT)
    whole = await plain.run(QUESTION)
    streamed = await put_together(plain.run(QUESTION, stream=True))
    parsed = await plain.run(AS_JSON, options={"response_format": Number})
    with_tool = Agent(client, EXACT, tools=[add])
    used = await with_tool.run(BY_TOOL)
    used_streamed = await put_together(with_tool.run(BY_TOOL, stream=True))
    tell(name, answer=whole.text, streamed=streamed, parsed=parsed.value.n)
    tell(name, by_tool=used.text, by_tool_streamed=used_streamed)
    wrong = Agent(form(model="nothing", api_key=token, base_url=base_url))
    tell(name, error=await error_of(wrong.run(QUESTION)))


async def put_together(stream: Any) -> str:
    async for _ in stream:
        pass
    return str((await stream.get_final_response()).text)


async def run_strands(name: str, form: Any, base_url: str, token: str) -> None:
    def choose(model: str) -> Any:
        return form(client_args={"api_key": token, "base_url": base_url, "max_retries": 0}, model_id=model)

    def agent(model: str = "reasond", **more: Any) -> Any:
        return StrandsAgent(model=choose(model), system_prompt=EXACT, callback_handler=None, **more)

    whole = await agent().invoke_async(QUESTION)
    streamed = "".join([event["data"] async for event in agent().stream_async(QUESTION) if "data" in event])
    used = await agent(tools=[tool(add)]).invoke_async(BY_TOOL)
    tell(name, answer=str(whole).strip(), streamed=streamed, by_tool=str(used).strip())
    # By a tool that has the schema, as its agents do, and by the schema of the answer, as its models do.
    formed = (await agent().invoke_async(QUESTION, structured_output_model=Number)).structured_output
    said = [{"role": "user", "content": [{"text": AS_JSON}]}]
    events = [each async for each in choose("reasond").structured_output(Number, said, system_prompt=EXACT)]
    tell(name, formed=formed.n, parsed=next(each["output"].n for each in events if "output" in each))
    tell(name, error=await error_of(agent("nothing").invoke_async(QUESTION)))


async def error_of(running: Any) -> bool:
    try:
        await running
    except Exception as error:  # noqa: BLE001 - each framework has an error of its own, with our words in it
        return "There is no model 'nothing' here" in f"{error} {error.__cause__} {error.__context__}"
    return False


async def main() -> None:
    base_url, token = sys.argv[1:]
    await run_agent_framework("agent-framework responses", OpenAIChatClient, base_url, token)
    await run_agent_framework("agent-framework chat", OpenAIChatCompletionClient, base_url, token)
    await run_strands("strands responses", OpenAIResponsesModel, base_url, token)
    await run_strands("strands chat", OpenAIModel, base_url, token)


asyncio.run(main())

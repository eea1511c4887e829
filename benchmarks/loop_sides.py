"""The sides that agent_loops.py compares, each run by the interpreter of its own environment.

`python -m benchmarks.loop_sides SIDE BASE_URL CORE` prints its answer once. Then it reads lines of two numbers, the
runs and the concurrent runs, and prints the processor time of the process for them. A run is the same on every side: a
ReAct loop in which the model calls the tool `calculator` once and then answers, so two model calls and one tool call.
Packages are imported by name, because each side has only its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import new_event_loop, pin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

ANSWER_BYTES: Final = 2048
MODEL: Final = f"fake?tools=1&bytes={ANSWER_BYTES}"
QUESTION: Final = "How many hours are six weeks of seven days of six times seven hours? " * 4
INSTRUCTIONS: Final = "You work out what is asked, with tools where they help, and then answer."
KEY: Final = "none"
OURS: Final = "reasond in process"
OVER_POST, OVER_AIOHTTP = "the two calls alone, openai post()", "the two calls alone, aiohttp"


def calculator(expression: str) -> str:
    """Work out an arithmetic expression."""
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


def chat_model(base_url: str) -> Any:  # noqa: ANN401 - a class of langchain-openai
    """Return LangChain's client for the upstream."""
    module = import_module("langchain_openai")
    return module.ChatOpenAI(model=MODEL, base_url=base_url, api_key=KEY, max_retries=0, temperature=0.7)


def ask_graph(graph: Any) -> Callable[[], Awaitable[str]]:  # noqa: ANN401 - a compiled graph
    """Return a function that runs a graph whose input and output are messages."""

    async def run() -> str:
        said = await graph.ainvoke({"messages": [{"role": "user", "content": QUESTION}]})
        return str(said["messages"][-1].content)

    return run


@asynccontextmanager
async def langgraph_react(base_url: str) -> AsyncGenerator[Callable[[], Awaitable[str]], None]:
    """Open LangGraph's prebuilt ReAct agent."""
    prebuilt = import_module("langgraph.prebuilt")
    yield ask_graph(prebuilt.create_react_agent(chat_model(base_url), [calculator], prompt=INSTRUCTIONS))


@asynccontextmanager
async def langchain_agent(base_url: str) -> AsyncGenerator[Callable[[], Awaitable[str]], None]:
    """Open the agent that LangChain recommends instead."""
    agents = import_module("langchain.agents")
    yield ask_graph(agents.create_agent(chat_model(base_url), [calculator], system_prompt=INSTRUCTIONS))


@asynccontextmanager
async def pydantic_ai(base_url: str) -> AsyncGenerator[Callable[[], Awaitable[str]], None]:
    """Open an agent of pydantic-ai."""
    provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(base_url=base_url, api_key=KEY)
    model = import_module("pydantic_ai.models.openai").OpenAIChatModel(MODEL, provider=provider)
    agent = import_module("pydantic_ai").Agent(model, instructions=INSTRUCTIONS, tools=[calculator])

    async def run() -> str:
        return str((await agent.run(QUESTION)).output)

    yield run


@asynccontextmanager
async def reasond_in_process(base_url: str) -> AsyncGenerator[Callable[[], Awaitable[str]], None]:
    """Open reasond's core without any listener, as embedded uses do."""
    from reasond_server.backends import model_of  # noqa: PLC0415 - only this side has it
    from reasond_server.config import load  # noqa: PLC0415 - likewise
    from reasond_server.core import assemble  # noqa: PLC0415 - likewise
    from reasond_server.types import Principal, Task  # noqa: PLC0415 - likewise

    environ = {"REASOND__TOOLS__ENABLED": '["calculator"]', **model_settings(base_url)}
    settings = load(None, environ).settings
    core = assemble(settings, model=model_of(settings, environ))
    caller = Principal(subject="bench", tenant="bench", permissions=frozenset({"admin"}))
    task = Task(query=QUESTION, strategy="react", config={"allow_tool_use": True})

    async def run() -> str:
        view = await core.reasoning.execute(caller, task)
        return str(view.result.answer)

    async with AsyncExitStack() as stack:
        await core.tools.start()
        stack.push_async_callback(core.tools.aclose)
        core.runner.begin()
        stack.push_async_callback(core.runner.stop)
        yield run


@asynccontextmanager
async def two_calls(base_url: str, opened: str) -> AsyncGenerator[Callable[[], Awaitable[str]], None]:
    """Open only the two model calls of a run, made by one of the clients of benchmarks/clients.py."""
    clients = import_module("benchmarks.clients")
    said = clients.history(2, size=len(QUESTION))

    async with getattr(clients, opened)(base_url) as client:

        async def run() -> str:
            answers = [await client.call(f"fake?bytes={ANSWER_BYTES}", said, is_streamed=True) for _ in range(2)]
            return "." * int(answers[-1])

        yield run


def model_settings(base_url: str) -> dict[str, str]:
    """Return the settings with which reasond calls the upstream."""
    return {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": MODEL,
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__API_KEY_ENV": "",
    }


SIDES: Final[Mapping[str, Callable[[str], AbstractAsyncContextManager[Callable[[], Awaitable[str]]]]]] = {
    "LangGraph create_react_agent": langgraph_react,
    "LangChain create_agent": langchain_agent,
    "pydantic-ai": pydantic_ai,
    OURS: reasond_in_process,
    OVER_POST: partial(two_calls, opened="posted_on_aiohttp"),
    OVER_AIOHTTP: partial(two_calls, opened="bare_aiohttp"),
}


async def many(run: Callable[[], Awaitable[str]], *, runs: int, at_once: int) -> None:
    """Make `runs` runs, `at_once` of them concurrently."""
    left = iter(range(runs))

    async def one_after_the_other() -> None:
        for _ in left:
            if len(await run()) != ANSWER_BYTES:
                raise SystemExit("a run ended without the answer")

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))


async def obey(side: str, base_url: str) -> None:
    """Open a side, and measure each line of standard input until its end."""
    async with SIDES[side](base_url) as run:
        print(json.dumps({"answer": (await run())[:40]}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            runs, at_once = map(int, line.split())
            began, begun = time.process_time_ns(), time.perf_counter()
            await many(run, runs=runs, at_once=at_once)
            took = {"cpu_s": (time.process_time_ns() - began) / 1e9, "seconds": time.perf_counter() - begun}
            print(json.dumps(took), flush=True)


def main() -> None:
    """Run on the processor given as argument."""
    side, base_url, core = sys.argv[1:]
    pin(int(core))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(obey(side, base_url))


if __name__ == "__main__":
    main()

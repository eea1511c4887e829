"""Servers for tests of the console: a model that follows a script, a strategy of many steps, a proxy that cuts."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.react import React
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import CostClass, CustomMetrics, CustomStep, FinishReason, Task
from tests.accepting import accepting
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from reasond_server.base.addresses import Listening
    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import StrategyEvent

MANY = 5_000
TURN: dict[str, Any] = {
    "message": "What is 15% of 240? Read the book title. Tell the current time.",
    "client_tools": [{"name": "book_title", "description": "Reads the title of the bundled book."}],
    "session_id": "reader",
}
REPAIR: dict[str, Any] = {
    "goal": "fix",
    "description": "larger returns the smaller number",
    "environment": "python",
    "files": [{"path": "numbers_.py", "content": "def larger(one, other):\n    return min(one, other)\n"}],
    "checks": [
        {
            "name": "test",
            "role": "reproduce",
            "format": "exit_code",
            "argv": ["python3", "-c", "import numbers_; assert numbers_.larger(3, 7) == 7"],
        },
        {
            "name": "held-out",
            "role": "held_out",
            "format": "exit_code",
            "argv": ["python3", "-c", "import numbers_; assert numbers_.larger(9, 2) == 9"],
        },
    ],
    "config": {"search": "best_of_n", "num_candidates": 4, "max_candidates": 40, "patience": 100},
}
HOSTILE = '<img src=x onerror="window.wasRun=1"><script>window.wasRun=1</script> [a](javascript:window.wasRun=1)'
_OPTIONS = ("Paint the fence first", "Ask what the paint costs", "Measure the fence")


class Many(ReasoningStrategy[StrategyConfig]):
    """Yields steps without a model, and waits in the middle until it may go on."""

    name: ClassVar[str] = "many"
    description: ClassVar[str] = "Yields many steps."
    config_type: ClassVar[type[StrategyConfig]] = StrategyConfig
    cost_class: ClassVar[CostClass | None] = CostClass.CONSTANT
    cost_formula: ClassVar[str] = "no model call"

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del context
        metrics = CustomMetrics(data={})
        for number in range(1, int(task.query) + 1):
            yield Step(detail=CustomStep(data={"text": f"step number {number}"}), answer_found=False, metrics=metrics)
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=metrics)


STRATEGIES = (ChainOfThought(), TreeOfThought(), SelfConsistency(), BestOfN(), React(), Many())


@dataclass(slots=True)
class Script:
    """What the model writes. A question with "hold" waits in the middle of its reply until `release`."""

    release: asyncio.Event = field(default_factory=asyncio.Event)
    samples: int = 0

    def model(self) -> FunctionModel:
        """Return the model."""
        return FunctionModel(self.reply, name="scripted")

    def reply(self, request: ChatRequest) -> str | Reply:
        """Return the reply to a prompt of one of the strategies."""
        prompt = request.messages[-1].content
        if "different ways" in prompt:
            depth = len(re.findall(r"Step \d+:", prompt))
            end = " <answer>12 litres</answer>" if depth else ""
            return "\n".join(f"Thought {n}: {text}, step {depth + 1}.{end}" for n, text in enumerate(_OPTIONS, start=1))
        if "Judge the thought" in prompt:
            passage = prompt.partition("<passage")[2]
            score = next((9 - 3 * n for n, text in enumerate(_OPTIONS) if text in passage), 5)
            return f"It seems so. <answer>{score}</answer>"
        if "hold" in prompt:
            return Reply(pieces=("First half, ", "second half. <answer>42</answer>"), hold=self.release, hold_after=1)
        if "hostile" in prompt:
            return f"{HOSTILE}\n<answer>{HOSTILE}</answer>"
        self.samples += 1
        return f"I count the posts. <answer>{('12', '12', '13', '12', '11')[self.samples % 5]} litres</answer>"


async def call(listening: Listening, method: str, **params: Any) -> Any:
    """Return the result of a JSON-RPC method."""
    async with make_http_client(base_url=listening.http, timeout=120) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"Authorization": f"Bearer {listening.token}"}
        told = (await client.post("/api/v1/jsonrpc", json=body, headers=headers)).json()
    assert "result" in told, told
    return told["result"]


async def begin(listening: Listening, **params: Any) -> str:
    """Start an execution that goes on without followers, and return its id."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {**params, "keep_running": True}}
    headers = {"Authorization": f"Bearer {listening.token}", "Accept": "text/event-stream"}
    async with (
        make_http_client(base_url=listening.http, timeout=120) as client,
        client.stream("POST", "/api/v1/jsonrpc", json=body, headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                found: str = json.loads(line.removeprefix("data:"))["execution_id"]
                return found
    raise AssertionError("the stream had no event")


@dataclass(slots=True)
class CuttingProxy:
    """Passes connections on to a server until it cuts them; counts those that were made."""

    target: int
    port: int = 0
    made: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        """End all connections without a word."""
        for writer in self.writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        self.made += 1
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        self.writers |= {writer, there_writer}
        try:
            await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))
        finally:
            self.writers -= {writer, there_writer}


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def cutting_proxy(http: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy in front of the server at the URL `http`."""
    proxy = CuttingProxy(target=int(http.rpartition(":")[2]))
    async with accepting(proxy.serve) as proxy.port:
        try:
            yield proxy
        finally:
            proxy.cut()

"""Measure how much of its prompts a model server need not read again: `python -m benchmarks.prefix_cache --url URL`.

Each strategy gets three requests of one client: two questions about one material, and one without; program_of_thought,
which needs a sandbox, is not among them. Turns are a session of 20 rounds with two calls of a tool in
each, native and as text; repairs are four attempts, one after an unread reply, two that refine, and two plans. The demo
model or a script answers, so that every call is made; each prompt is read before by the llama.cpp server at `--url`,
which says how many of its tokens came from its cache, and which must have been started with four
slots and --slot-save-path: each row begins with an empty cache. Calls are read one after the other.

Prints a row for each and writes results/prefix_cache.json beside this file: calls, tokens of the prompts, tokens with
which an earlier prompt of the row began too, the marks of fences aside, and the tokens that came from the cache, with
their share of what could be shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import CALLER
from benchmarks.machine import write_report
from benchmarks.suspended import open_core
from reasond_server.base.clock import new_nonce
from reasond_server.context.tags import RESERVED_TAGS
from reasond_server.demo import DemoModel
from reasond_server.llm.model import ChatRequest, Finished, ModelFinish, Role, Text, WrappedModel
from reasond_server.repair.search.prompts import PreviousCandidate, RepairPrompts, ShownFiles
from reasond_server.tools.calculator import Calculator
from reasond_server.types import Task, ToolCall, Usage
from reasond_server.types.repairs import CriticReport
from reasond_server.types.turns import TurnStart

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatModel, Message, ModelEvent

RESULTS: Final = Path(__file__).resolve().parent / "results" / "prefix_cache.json"
PACKAGES: Final = ("reasond-server", "xllamacpp")
MATERIAL: Final = "\n".join(
    f"Order {number}: {number % 7 + 2} boxes of pens at {number % 5 + 3} euros for the school in street {number}."
    for number in range(1, 41)
)
TASKS: Final = (
    Task(query="What does order 17 cost, in euros? Compute 5 * 5.", material=MATERIAL),
    Task(query="How many boxes are in order 20 and order 21 together? Compute 8 + 2.", material=MATERIAL),
    Task(query="What is 15% of 240?"),
)
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "direct": {},
    "chain_of_thought": {},
    "self_consistency": {"samples": 5},
    "best_of_n": {"samples": 3, "min_score": 0.1},
    "plan_and_solve": {},
    "self_refine": {},
    "chain_of_verification": {},
    "tree_of_thought": {"max_depth": 2, "branching": 2},
    "bounded_context": {"chunk_size": 3072, "carryover_size": 512},
    "react": {"allow_tool_use": True},
}
SLOTS: Final = 4
ROUNDS: Final = 20
CALLS_A_ROUND: Final = 2
_MARK: Final = re.compile(rf"(</?(?:{'|'.join(RESERVED_TAGS)}) )[a-z]{{28}}")


@dataclass(slots=True, kw_only=True)
class Figures:
    """Calls and tokens of one row."""

    name: str
    calls: int = 0
    prompt: int = 0
    shareable: int = 0
    cached: int = 0

    @property
    def line(self) -> str:
        """The figures as a row of a table."""
        share = 100 * self.cached / self.shareable if self.shareable else 100.0
        return (
            f"| {self.name} | {self.calls} | {self.prompt:,} | {self.shareable:,} | {self.cached:,} | {share:.0f} % |"
        )


class Engine:
    """Reads prompts with a llama.cpp server, one after the other."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._lock = asyncio.Lock()
        self._seen: list[Sequence[int]] = []

    async def begin(self, name: str) -> Figures:
        """Forget all prompts, and return the figures of the next row."""
        self._seen.clear()
        for slot in range(SLOTS):
            await self._post(f"/slots/{slot}?action=erase", {})
        return Figures(name=name)

    async def read(self, request: ChatRequest, figures: Figures) -> None:
        """Read the prompt of `request`, and count it."""
        body: dict[str, Any] = {"messages": [_write(message) for message in request.messages]}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": one.name, "description": one.description, "parameters": one.parameters},
                }
                for one in request.tools
            ]
        async with self._lock:
            answer = await self._post(
                "/v1/chat/completions", {**body, "max_tokens": 1, "temperature": 0, "cache_prompt": True}
            )
            marked = (await self._post("/apply-template", body))["prompt"]
            plain = _MARK.sub(rf"\1{'mark' * 7}", marked)
            tokens = (await self._post("/tokenize", {"content": plain, "add_special": True}))["tokens"]
        usage = answer["usage"]
        figures.calls += 1
        figures.prompt += usage["prompt_tokens"]
        figures.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        figures.shareable += max((_count_common(tokens, earlier) for earlier in self._seen), default=0)
        self._seen.append(tokens)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        def post() -> Any:  # noqa: ANN401 - as above
            asked = urllib.request.Request(  # noqa: S310 - an address of the caller's
                self._url + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            try:
                with urllib.request.urlopen(asked, timeout=600) as told:  # noqa: S310 - as above
                    return json.load(told)
            except urllib.error.HTTPError as error:
                raise SystemExit(f"the engine refused {path}: {error.read().decode()}") from error

        return await asyncio.to_thread(post)


class ReadingModel(WrappedModel["ChatModel"]):
    """A model whose prompts an engine reads before it answers."""

    def __init__(self, model: ChatModel, engine: Engine) -> None:
        super().__init__(model=model)
        self._engine = engine
        self.figures = Figures(name="")

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Read the prompt, then answer."""
        await self._engine.read(request, self.figures)
        async for event in super().stream(request):
            yield event


class ToolCaller(DemoModel):
    """Calls the calculator twice after each message of its user, then answers; in its text if not `is_native`."""

    def __init__(self, *, is_native: bool) -> None:
        super().__init__()
        self._is_native = is_native

    @property
    def has_native_tools(self) -> bool:
        """Whether it calls tools natively."""
        return self._is_native

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the calculator, or answer after the last call."""
        asked = max(place for place, one in enumerate(request.messages) if "<question" in one.content)
        done = sum("<observation" in message.content for message in request.messages[asked + 1 :])
        usage = Usage(input_tokens=512, output_tokens=16, model_calls=1)
        expression = f"{len(request.messages)} * {done + 2}"
        if done >= CALLS_A_ROUND:
            yield Text(text=f"The result is {expression}, which is all that was asked for.")
        elif self._is_native:
            call = ToolCall(
                call_id=f"c{done}", name="calculator", arguments_json=json.dumps({"expression": expression})
            )
            yield call
            yield Finished(reason=ModelFinish.TOOL_CALLS, usage=usage)
            return
        else:
            call_text = json.dumps({"tool": "calculator", "arguments": {"expression": expression}})
            yield Text(text=f"I compute it.\n<action>{call_text}</action>")
        yield Finished(reason=ModelFinish.STOP, usage=usage)


def _write(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": one.call_id, "type": "function", "function": {"name": one.name, "arguments": one.arguments_json}}
            for one in message.tool_calls
        ]
    if message.role is Role.TOOL:
        told["tool_call_id"] = message.tool_call_id
    return told


def _count_common(one: Sequence[int], other: Sequence[int]) -> int:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


async def measure_strategies(engine: Engine) -> list[Figures]:
    """Run the tasks through each strategy."""
    found = []
    for name, config in CONFIGS.items():
        model = ReadingModel(DemoModel(), engine)
        model.figures = await engine.begin(name)
        async with open_core(model, tools=[Calculator()]) as core:
            for task in TASKS:
                await core.reasoning.execute(CALLER, replace(task, strategy=name, config=config))
        print(model.figures.line, flush=True)
        found.append(model.figures)
    return found


async def measure_turns(engine: Engine) -> list[Figures]:
    """Run a session of 20 rounds with a model of each kind."""
    found = []
    for name, is_native in (("turns, native tools", True), ("turns, tools in text", False)):
        model = ReadingModel(ToolCaller(is_native=is_native), engine)
        model.figures = await engine.begin(name)
        async with open_core(model, tools=[Calculator()]) as core:
            for number in range(ROUNDS):
                start = TurnStart(message=f"Compute the figures of week {number}.", session_id="s1")
                view = await core.turns.run(CALLER, start)
                if view.result is None or not view.result.answer:
                    raise SystemExit(f"a turn ended otherwise: {view.result}")
        print(model.figures.line, flush=True)
        found.append(model.figures)
    return found


async def measure_repairs(engine: Engine) -> Figures:
    """Read the prompts of a repair: attempts, refinements, and a plan with its judges."""
    figures = await engine.begin("repairs")
    code = "\n".join(f"def price_{number}(boxes):\n    return boxes * {number} + 1\n" for number in range(30))
    prompts = RepairPrompts(
        nonce=new_nonce(),
        description="Prices are too high by one.",
        report=CriticReport(),
        files=ShownFiles(texts={"prices.py": code}, example="prices.py"),
        evidence="test_prices: expected 4, got 5",
    )
    previous = PreviousCandidate(diff="-    return boxes * 3 + 1\n+    return boxes * 3", score=40.0, evidence="2 of 3")
    asked = [
        *(prompts.write_generation(number) for number in range(1, 5)),
        prompts.write_generation(5, unread="The reply had no edit."),
        *(prompts.write_generation(number, previous=previous) for number in (6, 7)),
        *(prompts.write_plan(number) for number in (1, 2)),
    ]
    for messages in asked:
        await engine.read(ChatRequest(messages=messages, max_tokens=100, temperature=0.0), figures)
    print(figures.line, flush=True)
    return figures


async def measure(url: str) -> list[Figures]:
    """Measure all rows."""
    engine = Engine(url)
    print(
        "| | calls | prompt tokens | could be shared | from the cache | share |\n| --- | --- | --- | --- | --- | --- |"
    )
    return [*await measure_strategies(engine), *await measure_turns(engine), await measure_repairs(engine)]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="address of a llama.cpp server, without /v1")
    options = parser.parse_args()
    found = asyncio.run(measure(options.url))
    write_report(RESULTS, PACKAGES, figures=[asdict(each) for each in found])


if __name__ == "__main__":
    main()

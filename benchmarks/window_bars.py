"""Measure what fills the windows of bounded context: the frame, the carryover, the material and the reply, in tokens.

Writes results/window_bars.json beside this file. Two runs: the demo model reads the bundled book in windows of 2,048
tokens, as `reasond demo` does; a scripted model, whose replies end at the limit of each window, reasons in windows of
8,192 in the mode tail. Both models count by the counter of the demo model, and neither is a language model: the figures
say how windows are filled, and nothing about answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bounded_vs_plain import scripted_model
from benchmarks.machine import circumstances, new_event_loop
from reasond_server.cli.commands.demo import FILE, QUESTION
from reasond_server.demo.demo_model import DemoModel
from reasond_server.llm.model import Finished, WrappedModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import RunContext
from reasond_server.types import CarryoverMode, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.llm.model import ChatModel, ChatRequest, ModelEvent

RESULTS = Path(__file__).resolve().parent / "results" / "window_bars.json"
READING = {"chunk_size": 2048, "carryover_size": 512}
REASONING = {"chunk_size": 8192, "carryover_size": 4096, "max_iterations": 6, "carryover_mode": CarryoverMode.TAIL}
_SECTION = re.compile(r"<(?P<name>notes|passage|material) [^>]*>\n(?P<text>.*?)\n</(?P=name) ", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The tokens of one window; `frame` is the rules, the question and the marks around the texts."""

    frame: int
    carryover: int
    material: int
    reply: int


class Measuring(WrappedModel["ChatModel"]):
    """Passes calls on to a model and measures what their windows hold."""

    def __init__(self, *, model: ChatModel) -> None:
        super().__init__(model=model)
        self.bars: list[Bar] = []

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model."""
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    self.bars.append(self._measure(request, event))
                yield event

    def _measure(self, request: ChatRequest, end: Finished) -> Bar:
        found = {match["name"]: match["text"] for match in _SECTION.finditer(request.messages[1].content)}
        sizes = {name: self.counter.count_text(text) for name, text in found.items()}
        carryover, material = sizes.get("notes", 0), sizes.get("passage", 0) + sizes.get("material", 0)
        frame = end.usage.input_tokens - carryover - material
        return Bar(frame=frame, carryover=carryover, material=material, reply=end.usage.output_tokens)


async def fill(model: ChatModel, task: Task, config: BoundedContextConfig) -> list[Bar]:
    """Return the windows of a run.

    Raises:
      SystemExit: a window is larger than it may be.
    """
    measuring = Measuring(model=model)
    async with aclosing(BoundedContext().run(task, RunContext(config=config, model=measuring))) as events:
        async for _ in events:
            pass
    largest = max(sum(asdict(bar).values()) for bar in measuring.bars)
    if largest > config.chunk_size:
        raise SystemExit(f"a window of {config.chunk_size} tokens had {largest}")
    return measuring.bars


async def measure() -> list[dict[str, object]]:
    """Return both runs."""
    book = resources.files("reasond_server").joinpath(FILE).read_text("utf-8")
    reading, reasoning = BoundedContextConfig.model_validate(READING), BoundedContextConfig.model_validate(REASONING)
    runs = (
        ("reading", "demo model", reading, await fill(DemoModel(), Task(query=QUESTION, material=book), reading)),
        ("reasoning", "scripted", reasoning, await fill(scripted_model(), Task(query=QUESTION), reasoning)),
    )
    return [
        {
            "run": name,
            "model": model,
            "chunk_size": config.chunk_size,
            "carryover_size": config.carryover_size,
            "mode": config.carryover_mode.value,
            "windows": [asdict(bar) for bar in bars],
        }
        for name, model, config, bars in runs
    ]


def main() -> None:
    """Measure, print and write the results."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runs = runner.run(measure())
    for run in runs:
        print(json.dumps(run))
    report = {"circumstances": circumstances(("reasond-server",)), "question": QUESTION, "runs": runs}
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measure what tools are worth to a real model: `python -m benchmarks.tool_tasks --model NAME`.

Each task of tool_tasks.jsonl has tables of its own, each behind a tool that looks a value up; there are a calculator
and, for some, a converter of units, too. Asks the question alone, without tools or tables, and through react and a
turn, with native calls and with calls in the text, and through a turn that votes on its calls (`--samples` replies at
most to a prompt, at `--vote-temperature`). Prints a row for each way: right answers, answers that we spoiled,
runs that a limit ended or that failed, calls and tokens of the model; calls of tools that ran, calls that named a tool
or an argument that does not exist, and replies with a call in their text that was read and that was not. The rules:

- An answer is right if it names the right value.
- A reply without a native call has a call in its text if a tool was called after it and before the next reply.
- It has one that was not read, which is our fault, if no tool was called although the name of an offered tool stands
  in it with an object or a bracket of arguments behind it, or as the value of a member such as "name"; unless it had to
  answer. These replies are printed; a third equal call, which react refuses, is among them. In a vote, where most
  replies are followed by another, neither is counted.

The arguments are those of `benchmarks.prompts`, and so is the file of results.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.instant import CALLER
from benchmarks.prompts import ENDED_BY_US, HERE, NONCE, PLAIN, Figures, Way, keep_figures, measure, read_options
from reasond_server.assembly.core import assemble, make_system_clock
from reasond_server.config import load
from reasond_server.errors.base import ReasondError, Violation
from reasond_server.llm.model import WrappedModel
from reasond_server.telemetry.observers import Observer
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.execution import Tools
from reasond_server.tools.tool import ArgumentsRefusedError, ModelledTool, ToolArguments, ToolContext
from reasond_server.types import FinishReason, Task
from reasond_server.types.turns import TurnStart

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from benchmarks.prompts import RecordedModel
    from reasond_server.assembly.core import Core
    from reasond_server.llm.model import ChatModel
    from reasond_server.tools.programs import ProgramRunner
    from reasond_server.tools.tool import Tool
    from reasond_server.types import Json

TASKS: Final = HERE / "tool_tasks.jsonl"
REACT, TURN, IN_TEXT = "react", "turn", ", calls in text"
VOTES: Final = "turn, votes on calls"
MOST_CALLS: Final = "10"
MOST_SECONDS: Final = "36000"


class Table:
    """A tool that looks a value up in a table by its arguments, which are joined with commas. See `tools.tool.Tool`."""

    timeout_s = None
    max_output_bytes = None
    is_idempotent = True

    def __init__(self, name: str, table: Mapping[str, Any]) -> None:
        self.name, self.description = name, table["about"]
        self._arguments: Sequence[str] = table["arguments"]
        self._rows = {key.casefold(): value for key, value in table["rows"].items()}

    @property
    def parameters(self) -> Json:
        """JSON Schema of the arguments."""
        properties = {name: {"type": "string"} for name in self._arguments}
        return {"type": "object", "properties": properties, "required": self._arguments, "additionalProperties": False}

    def violations(self, arguments: Json) -> Sequence[Violation]:
        """Return what is wrong with `arguments`."""
        if sorted(arguments) == sorted(self._arguments) and all(isinstance(each, str) for each in arguments.values()):
            return ()
        return (Violation(field="", description=f"must be the texts {', '.join(self._arguments)}"),)

    async def invoke(self, arguments: Json, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        """Return the value of the row."""
        key = ", ".join(arguments[name] for name in self._arguments).casefold()
        if key not in self._rows:
            raise ArgumentsRefusedError(f"there is no row {key!r}; the rows are: {'; '.join(self._rows)}")
        return {self.name: self._rows[key]}


class ConverterArguments(ToolArguments):
    """A value and its units."""

    value: float
    from_unit: str
    to_unit: str


class Converter(ModelledTool[ConverterArguments]):
    """Converts between units of given sizes."""

    name = "convert_unit"
    description = "Converts a value from one unit to another; an unknown unit is answered with those that there are."
    arguments_type = ConverterArguments
    is_idempotent = True

    def __init__(self, units: Mapping[str, float]) -> None:
        self._units = units

    async def call(self, arguments: ConverterArguments, context: ToolContext) -> object:  # noqa: ARG002 - as above
        """Return the value in the other unit."""
        named = [unit.casefold().removesuffix("s") for unit in (arguments.from_unit, arguments.to_unit)]
        if unknown := [unit for unit in named if unit not in self._units]:
            raise ArgumentsRefusedError(f"there is no unit {unknown[0]!r}; the units are: {', '.join(self._units)}")
        return {"value": round(arguments.value * self._units[named[0]] / self._units[named[1]], 6)}


def build_task_tools(problem: Mapping[str, Any]) -> Sequence[Tool]:
    """Return the tools of a task."""
    tables = [Table(name, table) for name, table in problem["tables"].items()]
    return [Calculator(), *tables, *([Converter(problem["units"])] if "units" in problem else ())]


@dataclass(slots=True, kw_only=True)
class ToolFigures(Figures):
    """What one way of asking came to, with the calls of its tools."""

    limited: int = 0
    made: int = 0
    mistaken: int = 0
    text_read: int = 0
    text_unread: int = 0

    @property
    def line(self) -> str:
        """The figures as a row of a table."""
        replies = [self.right, self.spoiled, self.limited, self.calls, self.tokens_read, self.tokens_written]
        figures = [*replies, self.made, self.mistaken, self.text_read, self.text_unread]
        return f"| {self.way} | {' | '.join(f'{each:,}' for each in figures)} |"


@dataclass
class CallCounts(Observer):
    """Counts calls of tools by their outcome, and notes after which reply of the model each was made."""

    model: RecordedModel
    outcomes: Counter[str] = field(default_factory=Counter)
    called_after: set[int] = field(default_factory=set)

    def tool_called(self, tool: str, outcome: str, duration_s: float) -> None:  # noqa: ARG002 - the observer's form
        """Count a call."""
        self.outcomes[outcome] += 1
        self.called_after.add(len(self.model.taken))


class CallsInText(WrappedModel["ChatModel"]):
    """A model that takes no tools natively."""

    @property
    def has_native_tools(self) -> bool:
        """Whether calls may have tools."""
        return False


def has_call(text: str, tools: Sequence[str]) -> bool:
    """Return whether a text plainly has a call of one of the tools; the rule is above."""
    names = "|".join(map(re.escape, tools))
    member = rf"""["'](?:name|tool|function|action)["']\s*:\s*["'](?:{names})["']"""
    called = rf"""\b(?:{names})\b[`"'*>:\s]*(?:arguments\W{{0,6}})?(?:\{{|\(\s*(?:["'{{\d-]|\w+\s*[=:]))"""
    return bool(re.search(rf"{member}|{called}", text, re.IGNORECASE))


@asynccontextmanager
async def open_core(
    model: ChatModel, tools: Sequence[Tool], observer: Observer, config: Mapping[str, Any]
) -> AsyncGenerator[Core, None]:
    """Open reasond's core without a listener, with prompts that are the same each time."""
    environ = {
        "REASOND__TURNS__MAX_TOKENS": str(config["max_tokens_per_step"]),
        "REASOND__TURNS__SAMPLES": str(config.get("samples", 1)),
        "REASOND__TURNS__MAX_MODEL_CALLS": MOST_CALLS,
        "REASOND__TURNS__MAX_TOOL_CALLS": MOST_CALLS,
        # How long a server takes that answers many at once says nothing about its answers.
        "REASOND__TURNS__MAX_ACTIVE_S": MOST_SECONDS,
    }
    clock = replace(make_system_clock(), new_nonce=lambda: NONCE)
    core = assemble(load(None, environ).settings, model=model, tools=Tools(tools=tools, observer=observer), clock=clock)
    core.runner.begin()
    try:
        yield core
    finally:
        await core.runner.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWay(Way):
    """A way of asking with tools."""

    figures_type: ClassVar[type[Figures]] = ToolFigures

    async def ask(
        self,
        model: RecordedModel,
        problem: Mapping[str, Any],
        figures: Figures,
        programs: ProgramRunner,  # noqa: ARG002 - of other ways
    ) -> tuple[str, FinishReason]:
        """Return the answer and how the run ended, and count the calls."""
        tools, counts = build_task_tools(problem), CallCounts(model)
        asked = CallsInText(model=model) if self.name.endswith(IN_TEXT) else model
        async with open_core(asked, tools, counts, self.config) as core:
            try:
                answer, reason = await self._ask_core(core, problem["question"])
            except ReasondError as error:
                print(f"{self.name}: {error}", flush=True)
                answer, reason = "", FinishReason.FAILED
        assert isinstance(figures, ToolFigures)  # noqa: S101 - by `figures_type`
        figures.limited += reason in {*ENDED_BY_US, FinishReason.FAILED}
        figures.made += counts.outcomes["ok"] + counts.outcomes["failed"]
        figures.mistaken += counts.outcomes["unknown_tool"] + counts.outcomes["invalid_arguments"]
        for place, (_, reply) in enumerate(model.taken, start=1):
            if reply.get("calls") or self.name == VOTES:
                continue
            if place in counts.called_after:
                figures.text_read += 1
            elif not reply["must_answer"] and has_call(reply["text"], [tool.name for tool in tools]):
                figures.text_unread += 1
                print(f"{self.name}: a call was not read in {reply['text']!r}", flush=True)
        return answer, reason

    async def _ask_core(self, core: Core, question: str) -> tuple[str, FinishReason]:
        if self.name.startswith(REACT):
            done = (
                await core.reasoning.execute(CALLER, Task(query=question, strategy=REACT, config=self.config))
            ).result
            return done.answer, done.finish_reason or FinishReason.FAILED
        start = TurnStart(message=question, temperature=self.config["temperature"])
        ended = (await core.turns.run(CALLER, start)).result
        return (ended.answer, ended.finish_reason) if ended else ("", FinishReason.FAILED)


def list_ways(options: argparse.Namespace) -> list[Way]:
    """Return the ways of this program, as the arguments set them."""
    heat, limit = {"temperature": options.temperature}, options.max_tokens
    config = {**heat, "max_tokens_per_step": limit, "allow_tool_use": True}
    votes = {"max_tokens_per_step": limit, "temperature": options.vote_temperature, "samples": options.samples}
    names = (REACT, REACT + IN_TEXT, TURN, TURN + IN_TEXT)
    return [
        Way(name=PLAIN, config={**heat, "max_tokens": limit}),
        *(ToolWay(name=name, config=config) for name in names),
        ToolWay(name=VOTES, config=votes),
    ]


def main() -> None:
    """Measure, print and write the results."""
    options = read_options(__doc__, TASKS)
    keep_figures(asyncio.run(measure(options, list_ways(options))), options)


if __name__ == "__main__":
    main()

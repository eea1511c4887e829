"""The tasks whose executions the stores of earlier releases contain; each query starts with the task's name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.engines.program_forking import forked_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MATERIAL: Final = " ".join(f"Gate {number} of the wall is as wide as {number % 7 + 2} carts." for number in range(60))
_WINDOWS: Final[Mapping[str, Any]] = {"chunk_size": 1400, "carryover_size": 512, "max_iterations": 4}
_TREE: Final[Mapping[str, Any]] = {"max_depth": 3, "branching": 2, "beam_width": 1}
AGENT: Final[Mapping[str, Any]] = {
    "name": "Wall keeper",
    "description": "Counts gates.",
    "version": "1.2.3",
    "supportedInterfaces": [
        {"url": "https://walls.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "skills": [{"id": "count", "name": "Count", "description": "Counts.", "tags": ["gates"]}],
    "capabilities": {"streaming": True},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A task.

    Attributes:
      name: stands in brackets before the query.
      stands_at: the number of model calls that are answered before the run is held; None: all of them.
      fails_at: the index of the model call that fails, counted from 0.
    """

    name: str
    strategy: str
    query: str = "What is 6 times 7?"
    material: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    keep_running: bool = False
    is_unary: bool = False
    stands_at: int | None = None
    fails_at: int | None = None

    @property
    def task(self) -> Mapping[str, Any]:
        """Return the arguments of the client's methods."""
        return {
            "query": f"[{self.name}] {self.query}",
            "material": self.material,
            "strategy": self.strategy,
            "config": dict(self.config),
        }


def name_of(query: str) -> str:
    """Return the name of the question in a query."""
    return query.partition("]")[0].removeprefix("[")


def calls_of(*cycles: tuple[tuple[str, Mapping[str, str]], ...]) -> str:
    """Return the part of a query that makes the run call tools: in each cycle some (name, arguments)."""
    texts = [" & ".join(f"{name}:{json.dumps(arguments)}" for name, arguments in cycle) for cycle in cycles]
    return "".join(f" ({text})" for text in texts)


def note_each(*texts: str) -> str:
    """Return the part of a query that makes the run note one text in each cycle."""
    return calls_of(*(((("compat__note", {"text": text})),) for text in texts))


def settings(url: str, notes: Path, **more: str) -> dict[str, str]:
    """Return the environment of a server whose store is at `url` and whose tool writes into `notes`."""
    command, *args = forked_command("tests.compat.notes_program")
    return {
        "REASOND__STORE__URL": url,
        "REASOND__STORE__RETENTION_S": str(3650 * 86_400),
        "REASOND__TOOLS__ENABLED": '["calculator"]',
        "REASOND__TOOLS__MCP__COMPAT__COMMAND": command,
        "REASOND__TOOLS__MCP__COMPAT__ARGS": json.dumps([*args, str(notes)]),
        # A busy machine needs more than the usual 10 s to start the program; without the program there are no tools.
        "REASOND__TOOLS__MCP__COMPAT__CONNECT_TIMEOUT_S": "50",
        **more,
    }


_TOOLS: Final[Mapping[str, Any]] = {"allow_tool_use": True, "max_iterations": 6}
_CALCULATED: Final = calls_of(
    (("compat__note", {"text": "begun"}),),
    (("calculator", {"expression": "6*7"}), ("calculator", {"expression": "1/0"})),
)

ENDED: Final = (
    Question(name="thought", strategy="chain_of_thought"),
    Question(name="windows", strategy="bounded_context", material=MATERIAL, config=_WINDOWS, request_id="asked-before"),
    Question(name="acted", strategy="react", query="How high?" + _CALCULATED, config=_TOOLS),
    Question(name="tree", strategy="tree_of_thought", config=_TREE),
    Question(name="poll", strategy="self_consistency", config={"samples": 5}),
    Question(name="unary", strategy="self_consistency", config={"samples": 3}, is_unary=True),
    Question(name="failed", strategy="react", query="How high?" + note_each("failing"), config=_TOOLS, fails_at=1),
    Question(name="cancelled", strategy="bounded_context", config=_WINDOWS, stands_at=1),
)
"""Tasks that ended; "cancelled" was cancelled by its caller while its model was held."""

REDACTED: Final = (
    Question(name="thought", strategy="chain_of_thought"),
    Question(name="windows", strategy="bounded_context", config=_WINDOWS),
    Question(name="acted", strategy="react", query="How high?" + _CALCULATED, config=_TOOLS),
    Question(name="tree", strategy="tree_of_thought", config=_TREE),
    Question(name="poll", strategy="self_consistency", config={"samples": 5}),
    Question(name="failed", strategy="chain_of_thought", fails_at=0),
)
"""Tasks that ended on a server that stores no content."""

LOST: Final = Question(
    name="lost", strategy="bounded_context", config=_WINDOWS, keep_running=True, request_id="lost", stands_at=1
)
"""Was running when that server was killed; it cannot be resumed."""

RUNNING: Final = (
    Question(name="left-thought", strategy="chain_of_thought", keep_running=True, stands_at=0),
    Question(
        name="left-windows",
        strategy="bounded_context",
        material=MATERIAL,
        config=_WINDOWS,
        request_id="windows-of-before",
        stands_at=2,
    ),
    Question(
        name="left-acted",
        strategy="react",
        query="How high?" + note_each("acted one", "acted two"),
        config=_TOOLS,
        keep_running=True,
        stands_at=1,
    ),
    Question(
        name="left-hanging",
        strategy="react",
        query="How high?" + calls_of((("compat__hang", {"text": "hanging"}),)),
        config=_TOOLS,
        keep_running=True,
    ),
    Question(
        name="left-looking",
        strategy="react",
        query="How high?" + calls_of((("compat__look", {"text": "looking"}),)) + note_each("looking two"),
        config=_TOOLS,
        keep_running=True,
    ),
    Question(name="left-beam", strategy="tree_of_thought", config=_TREE, stands_at=5),
    Question(
        name="left-best-first",
        strategy="tree_of_thought",
        config={**_TREE, "search": "best_first", "evaluator": "vote"},
        stands_at=3,
    ),
    Question(name="left-poll", strategy="self_consistency", config={"samples": 9}, stands_at=6),
    Question(
        name="left-recorded",
        strategy="react",
        query="How high?" + note_each("recorded one", "recorded two"),
        config=_TOOLS,
        request_id="recorded-before",
        is_unary=True,
    ),
)
"""Were running when the server was killed.

For "left-recorded", the result of a tool was recorded, but not its step. "left-looking" and "left-hanging" were in the
middle of a call; only the call of "left-looking" may be repeated.
"""

HANGING: Final = "left-hanging"
"""Ends as FAILED, because it is unknown whether its tool call had its effect."""

RECORDED: Final = "left-recorded"
"""Its tool is not called again, because its result is recorded."""

STEPS_SEEN: Final[Mapping[str, int]] = {
    "left-thought": 0,
    "left-windows": 2,
    "left-acted": 1,
    "left-hanging": 0,
    "left-looking": 0,
    "left-beam": 2,
    "left-best-first": 2,
    "left-poll": 5,
    "left-recorded": 0,
}
"""The number of steps that each of them had logged."""

NOTED_AFTERWARDS: Final = ("acted two", "looking", "looking two", "recorded two")
"""The texts that the resumed runs must note, each once."""

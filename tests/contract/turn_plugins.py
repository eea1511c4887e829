"""Tools and a context provider that `install` makes a server find, and that fail where a test wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext, ToolFailedError
from reasond_server.types.turns import ContextScope

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from reasond_server.types import Event, Json
    from reasond_server.types.turns import ContextGoal

_ENTRY_POINTS = """
[reasond.tools]
echo = tests.contract.turn_plugins:Echo
note = tests.contract.turn_plugins:FailingNote
[reasond.context_providers]
broken = tests.contract.turn_plugins:BrokenProvider
"""


class NoteArguments(ToolArguments):
    text: str = ""


class FailingNote(ModelledTool[NoteArguments]):
    """A tool that always fails."""

    name: ClassVar[str] = "note"
    description: ClassVar[str] = "Notes a text."
    arguments_type: ClassVar[type[ToolArguments]] = NoteArguments

    async def call(self, arguments: NoteArguments, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        raise ToolFailedError("the disk is full")


class Echo(ModelledTool[NoteArguments]):
    """A tool that answers with another canary of `tests/contract/test_turns_without_content.py`."""

    name: ClassVar[str] = "echo"
    description: ClassVar[str] = "Echoes a text."
    arguments_type: ClassVar[type[ToolArguments]] = NoteArguments

    async def call(self, arguments: NoteArguments, context: ToolContext) -> object:  # noqa: ARG002 - the tool's form
        return {"echo": arguments.text.replace("argument", "result")}


class BrokenProvider:
    """A context provider that raises when it writes."""

    name = "broken"
    scope = ContextScope.SESSION
    is_instruction = False

    def populate(self, event: Event, state: Json) -> Json:  # noqa: ARG002 - the provider's form
        return state

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - as above
        raise KeyError("secret")


def install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the servers of this test find the plug-ins, as if a package with them were installed."""
    folder = path / "turn_plugins-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: turn-plugins\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(_ENTRY_POINTS)
    monkeypatch.syspath_prepend(path)

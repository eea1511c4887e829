"""The turn of `reasond demo`: tools of the server and of the client, an approval, and an answer, as they happen."""

from __future__ import annotations

import shutil
import sys
from importlib import resources
from typing import TYPE_CHECKING, Final

from reasond import CallKind, ReasondError, Turn, TurnStart, client_tool
from reasond_server.cli.outcome import CommandError
from reasond_server.cli.terminal import console, one_line, printable, write
from reasond_server.cli.turn_text import figures_of, lines_of_event

if TYPE_CHECKING:
    from reasond import AsyncClient, HandedOff, PendingCall, TurnReentry, TurnResult

REQUEST: Final = "What is 15% of 240? Read the book title. Tell the current time."
FILE: Final = "data/opticks.txt"


@client_tool
def book_title() -> str:
    """Reads the title of the bundled book."""
    return resources.files("reasond_server").joinpath(FILE).read_text("utf-8").lstrip().splitlines()[0]


async def show_turn(client: AsyncClient) -> None:
    """Run the turn of the demo, print each step as it completes, and settle what is handed off.

    Raises:
        CommandError: the turn ended without an answer.
    """
    write(f"   {REQUEST}\n")
    write("   calculator and current_time are tools of the server; book_title is a function of this program, which")
    write("   the server hands off; the operator wants an approval for current_time, which the demo gives itself.\n")
    result: TurnResult | None = None
    source: TurnStart | TurnReentry | None = TurnStart(message=REQUEST, client_tools=[book_title.describe()])
    try:
        while source is not None:
            stream, source = client.execute_turn(source), None
            async for event in stream:
                for line in lines_of_event(event):
                    _show(line)
                if event.HasField("handed_off"):
                    source = await _settle(client, event.turn_id, event.handed_off)
                elif event.HasField("completed"):
                    result = event.completed
    except ReasondError as error:
        raise CommandError(f"The turn failed: {error.message}") from None
    if result is None or not result.answer:
        raise CommandError("The turn ended without an answer")
    console(sys.stdout).print(f"\n{printable(result.answer)}\n", style="bold")
    write(figures_of(result))
    for warning in result.warnings:
        write(f"note: {printable(warning)}")


async def _settle(client: AsyncClient, turn_id: str, handoff: HandedOff) -> TurnReentry:
    """Say what the demo does for the pending calls, and return what it found."""
    for pending in handoff.calls:
        _show(f"   -> {_tell(pending)}")
    turn = Turn(turn_id=turn_id, handoff=handoff)
    return await client.settle_turn(turn, tools=[book_title], approve=lambda _: True)


def _tell(pending: PendingCall) -> str:
    if pending.kind == CallKind.CALL_KIND_APPROVE:
        return f"the demo approves {pending.call.tool}; a person would be asked here"
    return f"the demo runs its own function {pending.call.tool}, and sends the result"


def _show(line: str) -> None:
    """Write a line; on a terminal it is cut to the width."""
    indent = line[: len(line) - len(line.lstrip())]
    width = shutil.get_terminal_size().columns - len(indent)
    write(indent + one_line(line, width) if sys.stdout.isatty() else line)

"""The turn of `reasond demo`: tools of the server and of the client, an approval, and an answer, as they happen."""

from __future__ import annotations

import sys
from importlib import resources
from typing import TYPE_CHECKING, Final

from reasond import CallKind, ReasondError, Turn, TurnStart, client_tool
from reasond_server.cli.live import LiveConsole
from reasond_server.cli.outcome import CommandError
from reasond_server.cli.terminal import write
from reasond_server.cli.turn_display import TurnDisplay

if TYPE_CHECKING:
    from reasond import AsyncClient, ExecuteTurnResponse, PendingCall, TurnReentry, TurnResult

REQUEST: Final = "What is 15% of 240? Read the book title. Tell the current time."
FILE: Final = "demo/data/opticks.txt"


@client_tool
def book_title() -> str:
    """Reads the title of the bundled book."""
    return resources.files("reasond_server").joinpath(FILE).read_text("utf-8").lstrip().splitlines()[0]


async def show_turn(client: AsyncClient, *, is_verbose: bool = False) -> None:
    """Run the turn of the demo, print each step as it completes, and settle what is handed off.

    Raises:
        CommandError: the turn ended without an answer.
    """
    write(f"   {REQUEST}\n")
    write("   calculator and current_time are tools of the server. book_title is a function of")
    write("   this program, so the server hands it off. current_time needs an approval here,")
    write("   which the demo gives itself.\n")
    live = LiveConsole(sys.stdout, is_verbose=is_verbose)
    display = TurnDisplay(live, is_kept=False)
    result: TurnResult | None = None
    source: TurnStart | TurnReentry | None = TurnStart(message=REQUEST, client_tools=[book_title.describe()])
    try:
        while source is not None:
            stream, source, handed_off = client.execute_turn(source), None, None
            with live.open():
                async for event in stream:
                    display.show(event)
                    if event.HasField("handed_off"):
                        handed_off = event
                    elif event.HasField("completed"):
                        result = event.completed
            if handed_off is not None:
                source = await _settle(client, live, handed_off)
    except ReasondError as error:
        raise CommandError(f"The turn failed: {error.message}") from None
    if result is None or not result.answer:
        raise CommandError("The turn ended without an answer")
    live.print_answer(result.answer)
    display.show_end(result)


async def _settle(client: AsyncClient, live: LiveConsole, event: ExecuteTurnResponse) -> TurnReentry:
    """Say what the demo does for the pending calls, and return what it found."""
    for pending in event.handed_off.calls:
        live.print(f"   -> {_tell(pending)}")
    turn = Turn(turn_id=event.turn_id, handoff=event.handed_off)
    return await client.settle_turn(turn, tools=[book_title], approve=lambda _: True)


def _tell(pending: PendingCall) -> str:
    if pending.kind == CallKind.CALL_KIND_APPROVE:
        return f"the demo approves {pending.call.tool}; a person would be asked here"
    return f"the demo runs its own function {pending.call.tool}, and sends the result"

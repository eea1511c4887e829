"""The log of a turn is its composition trace: with the same clock, ids and replies it is the same, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from reasond_server.base.clock import Clock
from reasond_server.eventlog.stored.codec import encode_event
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.turns.policy import Mode, TurnPolicy
from reasond_server.types.turns import TurnStart
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools, client_tool, settle


@dataclass(slots=True)
class StillClock(WallClock):
    """A clock that stands still, with ids that count."""

    def monotonic(self) -> float:
        return self.moved_s

    def clock(self) -> Clock:
        numbers = count(1)
        return Clock(
            now=self.now, monotonic=self.monotonic, new_id=lambda: f"{next(numbers):032x}", new_nonce=lambda: "n" * 28
        )


async def write_log() -> list[str]:
    """Return the log of a turn with a tool of the server, a switch of the mode, a hand-off and an answer, as text."""
    time = StillClock()
    store = MemoryExecutionStore(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
    asked = ask_tools(
        ("note", {"text": "n"}), ("mode_state_change", {"mode": "read"}), ("open_file", {"path": "a"}), text="I look."
    )
    policy = TurnPolicy(modes={"read": Mode(instructions="Read.", welcome="You read now.")})
    server = TurnServer(store, [asked, "Done."], tools=[Note()], policy=policy, time=time)
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    await server.run(settle(view.turn.turn_id, view.turn.handoff))
    return [encode_event(logged) for logged in await store.read(CALLER.tenant, view.turn.turn_id)]


async def test_two_runs_with_the_same_clock_ids_and_replies_write_the_same_bytes() -> None:
    one, two = await write_log(), await write_log()

    assert one == two
    assert len(one) == 11

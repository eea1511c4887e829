"""The history of a session: its ended turns as they stand in the prompts of later ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.context.reasoning_context import write_steps
from reasond_server.context.reasoning_parts import PromptPart
from reasond_server.context.step_messages import WireIds
from reasond_server.errors import ReasondError
from reasond_server.llm.model import Message, Role
from reasond_server.logs.store import ExecutionFilter
from reasond_server.turns.fold import fold
from reasond_server.turns.prompting import ask, list_records, read_renderings
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.logs.store import ExecutionStore
    from reasond_server.turns.fold import TurnProgress
    from reasond_server.types import Execution

TURN: Final = "turn"
"""The kind of executions that are turns, and their name where other kinds name a strategy."""

_MOST_TURNS: Final = 50
_MOST_CHARACTERS: Final = 1_000_000


@value
class EndedTurn:
    """An earlier turn of the session."""

    turn_id: str
    progress: TurnProgress


async def read_history(store: ExecutionStore, execution: Execution) -> Sequence[EndedTurn]:
    """Return the ended turns before `execution` in its session, the oldest first.

    At most the last 50, and those that have a million characters together. Turns without content are left out.
    """
    if not execution.session_id:
        return ()
    wanted = ExecutionFilter(kind=TURN, session_id=execution.session_id)
    before = (execution.create_time.timestamp(), execution.execution_id)
    found: list[EndedTurn] = []
    characters = 0
    for each in await store.page(execution.tenant, wanted, size=_MOST_TURNS, before=before):
        if not each.state.has_ended:
            continue
        try:
            events = await store.read(execution.tenant, each.execution_id)
        except ReasondError:
            # It was deleted or forgotten meanwhile, or it is damaged.
            continue
        progress = fold(logged.event for logged in events)
        characters += _count_characters(progress)
        if characters > _MOST_CHARACTERS:
            break
        if progress.start is not None and progress.start.message:
            found.append(EndedTurn(turn_id=each.execution_id, progress=progress))
    return found[::-1]


def write_history(turns: Sequence[EndedTurn], *, nonce: str, model: ChatModel) -> Sequence[PromptPart]:
    """Return each turn as one part, which a prompt of `model` has whole or not at all: a call keeps its result."""
    wire_ids = WireIds()
    return [
        PromptPart(source=f"history:{turn.turn_id}", messages=_write_turn(turn.progress, nonce, model, wire_ids))
        for turn in turns
    ]


def _write_turn(progress: TurnProgress, nonce: str, model: ChatModel, wire_ids: WireIds) -> Sequence[Message]:
    assert progress.start is not None  # noqa: S101 - `read_history` leaves out others
    records = [record for record in list_records(progress, model=model.name) if record.calls]
    steps = write_steps(
        records,
        renderings=read_renderings(progress.renderings),
        nonce=nonce,
        is_native=model.has_native_tools,
        wire_ids=wire_ids,
    )
    result = progress.result
    ending = "" if result is None else result.answer or f"[the turn ended: {result.finish_reason}]"
    return (*ask(progress.start, nonce=nonce).messages, *steps, Message(role=Role.ASSISTANT, content=ending))


def _count_characters(progress: TurnProgress) -> int:
    start = progress.start
    own = 0 if start is None else len(start.message) + len(start.material)
    return own + sum(len(one.step.text) for one in progress.replies) + progress.kept_bytes

"""The history of a session: its ended turns as they stand in the prompts of later ones."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.context.reasoning_context import write_steps
from reasond_server.context.reasoning_parts import PromptPart
from reasond_server.context.step_records import WireIds
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.store import ExecutionFilter, ExecutionStore
from reasond_server.llm.model import ChatModel, Message, Role
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.turn_prompts import SAID, ask, list_records, read_renderings
from reasond_server.types.turns import ContextItem, Rendering, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from reasond_server.types import Execution

TURN: Final = "turn"
"""The kind of executions that are turns, and their name where other kinds name a strategy."""

ResultT = TypeVar("ResultT")
_MOST_TURNS: Final = 50
_MOST_CHARACTERS: Final = 1_000_000
_RETRY_S: Final = 0.5
_EARLIER: Final = (f"{SAID}:", "history:")


@value
class EndedTurn:
    """An earlier turn of the session."""

    turn_id: str
    progress: TurnProgress


@value
class EarlierTurns:
    """The turns before one in its session, the oldest first; `is_cut` is whether there are older ones."""

    turns: Sequence[EndedTurn] = ()
    is_cut: bool = False


def warn_of_left_out(prompts: Iterable[Sequence[ContextItem]]) -> Sequence[str]:
    """Return a warning about what was said before the turn and was left out of one of its `prompts`, if anything."""
    gone = {
        item.source
        for items in prompts
        for item in items
        if item.rendering is Rendering.HANDLE and item.source.startswith(_EARLIER)
    }
    if not gone:
        return ()
    exchanges = "The oldest exchange" if len(gone) == 1 else f"The {len(gone)} oldest exchanges"
    warning = (
        f"{exchanges} of the conversation, each a message of the user with its replies, did not reach the model: they "
        "exceed the share of its prompt that earlier messages have. Send a shorter conversation, or have the operator "
        "raise [turns.context] history_share or choose a model with a larger window."
    )
    return (warning,)


async def read_history(store: ExecutionStore, execution: Execution, start: TurnStarted) -> EarlierTurns:
    """Return the ended turns before `execution` in its session; `start` is its first event.

    At most the last 50, and those that have a million characters together. Turns without content are left out. The
    revisions of the session decide which ones were before: the clocks of two servers may differ. While the store cannot
    be reached this waits; a run that may not wait so long is stopped from outside.
    """
    if not execution.session_id:
        return EarlierTurns()
    wanted = ExecutionFilter(kind=TURN, session_id=execution.session_id)
    found: dict[int, EndedTurn] = {}
    characters = 0
    page = await _ask(partial(store.page, execution.tenant, wanted, size=_MOST_TURNS + 2, before=None))
    is_cut = len(page) > _MOST_TURNS + 1
    for each in page[: _MOST_TURNS + 1]:
        if not each.state.has_ended:
            continue
        try:
            events = await _ask(partial(store.read, execution.tenant, each.execution_id))
        except ReasondError:
            # It was deleted or forgotten meanwhile, or it is damaged.
            continue
        progress = fold(logged.event for logged in events)
        if progress.start is None or progress.start.session_revision >= start.session_revision:
            continue
        characters += _count_characters(progress)
        if characters > _MOST_CHARACTERS:
            is_cut = True
            break
        if progress.start.message:
            found[progress.start.session_revision] = EndedTurn(turn_id=each.execution_id, progress=progress)
    return EarlierTurns(turns=[found[revision] for revision in sorted(found)], is_cut=is_cut)


def warn_of_cut(earlier: EarlierTurns) -> Sequence[str]:
    """Return a warning about older turns that are not read, if there are any."""
    if not earlier.is_cut:
        return ()
    warning = (
        f"Of this session the last {len(earlier.turns)} turns can reach the model, and no older ones: at most "
        f"{_MOST_TURNS} are read, of {_MOST_CHARACTERS} characters. Say what still counts of the older ones again, or "
        "begin another session with it."
    )
    return (warning,)


async def _ask(operation: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Return what the store answers, once it can be reached. Raises as `operation`."""
    while True:
        try:
            return await operation()
        except StoreUnavailableError:
            await asyncio.sleep(_RETRY_S)


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

"""The events of turns, turns and sessions as lines for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond import ExecuteTurnResponse, HandedOff, PendingCall, Session, Turn, TurnResult

_WIDTH = 100


def lines_of_event(event: ExecuteTurnResponse) -> Iterator[str]:
    """Yield the lines of one event; none for a heartbeat, a delta or the end, whose answer is shown apart."""
    kind = event.WhichOneof("event")
    if kind == "started":
        session = f" in session {printable(event.started.session_id)}" if event.started.session_id else ""
        started = event.started
        yield f"turn {printable(event.turn_id)}{session}: mode {printable(started.mode)}, {printable(started.model)}"
    elif kind == "model_call":
        step = event.model_call
        words = word_of(step, "goal").lower()
        yield f"{step.index + 1}. {words}: {one_line(step.text, _WIDTH) or '(no text)'}"
        yield from (f"   calls {printable(call.tool)} {one_line(call.arguments_json, _WIDTH)}" for call in step.calls)
    elif kind == "tool":
        tool = event.tool
        size = f", {tool.result_bytes} bytes" if tool.result_bytes else ""
        yield f"   {printable(tool.call_id)} {printable(tool.tool)}: {word_of(tool, 'state').lower()}{size}"
    elif kind == "mode_change":
        yield f"   mode {printable(event.mode_change.new_mode)}"
    elif kind == "handed_off":
        yield from lines_of_handoff(event.handed_off)
    elif kind == "reentered":
        yield f"   settled {', '.join(map(printable, event.reentered.call_ids))}"


def lines_of_handoff(handoff: HandedOff) -> Iterator[str]:
    """Yield the calls that a turn waits for."""
    yield f"waits for {len(handoff.calls)} of your calls until {handoff.expire_time.ToJsonString()}:"
    yield from (f"   {line_of_pending(pending)}" for pending in handoff.calls)


def line_of_pending(pending: PendingCall) -> str:
    """Return a pending call on one line."""
    call = pending.call
    what = word_of(pending, "kind").lower()
    return f"{printable(call.call_id)} {what} {printable(call.tool)} {one_line(call.arguments_json, _WIDTH)}"


def lines_of_turn(turn: Turn, result: TurnResult | None) -> Iterator[str]:
    """Yield a turn with its calls, what it waits for, and its answer."""
    yield line_of_turn(turn)
    for entry in turn.ledger:
        note = ", an error" if entry.is_error else ""
        state = word_of(entry, "state").lower()
        yield f"   {printable(entry.call_id)} {printable(entry.tool)}: {state}, {entry.result_bytes} bytes{note}"
    if turn.HasField("handoff"):
        yield from lines_of_handoff(turn.handoff)
    if result is not None:
        yield from (f"note: {printable(warning)}" for warning in result.warnings)
        if result.HasField("error"):
            yield f"error: {printable(result.error.message)}"
        if result.answer:
            yield printable(result.answer)


def line_of_turn(turn: Turn) -> str:
    """Return a turn on one line."""
    words = [printable(turn.turn_id), word_of(turn, "state").lower(), turn.create_time.ToJsonString()]
    words += [f"mode {printable(turn.mode)}"] if turn.mode else []
    return "  ".join([*words, *([f"session {printable(turn.session_id)}"] if turn.session_id else [])])


def line_of_session(session: Session) -> str:
    """Return a session on one line."""
    turns = f"{session.turn_count} turn{'' if session.turn_count == 1 else 's'}"
    words = [printable(session.session_id), f"revision {session.revision}", turns, f"mode {printable(session.mode)}"]
    words.append(f"changed {session.update_time.ToJsonString()}")
    return "  ".join([*words, *([f"open {printable(session.open_turn_id)}"] if session.open_turn_id else [])])


def figures_of(result: TurnResult) -> str:
    """Return the line that follows an answer: finish reason, calls, tokens and time."""
    usage, seconds = result.usage, result.elapsed.ToNanoseconds() / 1e9
    reason = word_of(result, "finish_reason").lower()
    tokens = usage.input_tokens + usage.output_tokens
    return f"{reason}: {usage.model_calls} model calls, {tokens} tokens, {seconds:.1f} s"

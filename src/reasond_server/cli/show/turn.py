"""Shows a turn to a person: what the model does, which tools run, and the end; turns and sessions on a line each."""

from __future__ import annotations

from collections.abc import Iterator

from reasond import ExecuteTurnResponse, HandedOff, LedgerState, PendingCall, Session, Turn, TurnResult
from reasond_server.cli.show.live import Display
from reasond_server.cli.terminal import describe_state, fit_line, format_time, get_enum_name, sanitize

_WIDTH = 100


class TurnDisplay(Display):
    """Shows the events of one turn."""

    def show(self, event: ExecuteTurnResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._live.add_written(event.delta.text)
            return
        if kind == "completed" and self._live.is_folding:
            end = [(describe_turn_end(event.completed), "dim")]
            self.fold(end, event.completed.warnings, execution_id=event.turn_id)
        is_begin = kind == "tool" and event.tool.state == LedgerState.LEDGER_STATE_STARTED
        if kind in {"started", "model_call", "tool", "reentered"}:
            self._live.say_now(f"{sanitize(event.tool.tool)} runs" if is_begin else "thinking")
        if is_begin and self._live.is_folding:
            # Its end tells the same.
            return
        for line in format_event(event):
            if kind == "started":
                self._live.print_head(line)
            else:
                self._live.print_step(line)

    def show_end(self, result: TurnResult) -> None:
        """Print what the turn cost, and its warnings."""
        notes = (f"note: {sanitize(each)}" for each in result.warnings)
        self.print_end((line, "") for line in (describe_turn_end(result), *notes))


def format_event(event: ExecuteTurnResponse) -> Iterator[str]:
    """Yield the lines of one event; none for a heartbeat, a delta or the end, whose answer is shown apart."""
    kind = event.WhichOneof("event")
    if kind == "started":
        session = f" in session {sanitize(event.started.session_id)}" if event.started.session_id else ""
        started = event.started
        yield f"turn {sanitize(event.turn_id)}{session}: mode {sanitize(started.mode)}, {sanitize(started.model)}"
    elif kind == "model_call":
        step = event.model_call
        words = get_enum_name(step, "goal").lower()
        yield f"{step.index + 1}. {words}: {fit_line(step.text, _WIDTH) or '(no text)'}"
        yield from (f"   calls {sanitize(call.tool)} {fit_line(call.arguments_json, _WIDTH)}" for call in step.calls)
    elif kind == "tool":
        tool = event.tool
        size = f", {tool.result_bytes} bytes" if tool.result_bytes else ""
        yield f"   {sanitize(tool.call_id)} {sanitize(tool.tool)}: {get_enum_name(tool, 'state').lower()}{size}"
    elif kind == "mode_change":
        yield f"   mode {sanitize(event.mode_change.new_mode)}"
    elif kind == "handed_off":
        yield from format_handoff(event.handed_off)
    elif kind == "reentered":
        yield f"   settled {', '.join(map(sanitize, event.reentered.call_ids))}"


def format_handoff(handoff: HandedOff) -> Iterator[str]:
    """Yield the calls that a turn waits for."""
    yield f"waits for {len(handoff.calls)} of your calls until {format_time(handoff.expire_time)}:"
    yield from (f"   {format_pending(pending)}" for pending in handoff.calls)


def format_pending(pending: PendingCall) -> str:
    """Return a pending call on one line."""
    call = pending.call
    what = get_enum_name(pending, "kind").lower()
    return f"{sanitize(call.call_id)} {what} {sanitize(call.tool)} {fit_line(call.arguments_json, _WIDTH)}"


def format_turn_details(turn: Turn, result: TurnResult | None) -> Iterator[str]:
    """Yield a turn with its calls, what it waits for, and its answer."""
    yield format_turn(turn)
    for entry in turn.ledger:
        note = ", an error" if entry.is_error else ""
        state = get_enum_name(entry, "state").lower()
        yield f"   {sanitize(entry.call_id)} {sanitize(entry.tool)}: {state}, {entry.result_bytes} bytes{note}"
    if turn.HasField("handoff"):
        yield from format_handoff(turn.handoff)
    if result is not None:
        yield from (f"note: {sanitize(warning)}" for warning in result.warnings)
        if result.HasField("error"):
            yield f"error: {sanitize(result.error.message)}"
        if result.answer:
            yield sanitize(result.answer)


def format_turn(turn: Turn) -> str:
    """Return a turn on one line."""
    words = [sanitize(turn.turn_id), describe_state(turn), format_time(turn.create_time)]
    words += [f"mode {sanitize(turn.mode)}"] if turn.mode else []
    words += [f"session {sanitize(turn.session_id)}"] if turn.session_id else []
    return "  ".join([*words, *([fit_line(turn.question, _WIDTH)] if turn.question else [])])


def format_session(session: Session) -> str:
    """Return a session on one line."""
    turns = f"{session.turn_count} turn{'' if session.turn_count == 1 else 's'}"
    words = [sanitize(session.session_id), f"revision {session.revision}", turns, f"mode {sanitize(session.mode)}"]
    words.append(f"changed {format_time(session.update_time)}")
    return "  ".join([*words, *([f"open {sanitize(session.open_turn_id)}"] if session.open_turn_id else [])])


def describe_turn_end(result: TurnResult) -> str:
    """Return the line that follows an answer: finish reason, calls, tokens and time."""
    usage, seconds = result.usage, result.elapsed.ToNanoseconds() / 1e9
    reason = get_enum_name(result, "finish_reason").lower()
    tokens = usage.input_tokens + usage.output_tokens
    return f"{reason}: {usage.model_calls} model calls, {tokens} tokens, {seconds:.1f} s"

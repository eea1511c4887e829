"""`reasond executions list|show|follow`."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING

from reasond import ExecutionState, FollowExecutionResponse, TraceView
from reasond_server.cli.asking import People
from reasond_server.cli.connecting import connect
from reasond_server.cli.live import LiveConsole
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.repair_display import RepairDisplay
from reasond_server.cli.run_text import RunLines, summary, word_of
from reasond_server.cli.terminal import human_stream, one_line, printable, write
from reasond_server.cli.turn_display import TurnDisplay
from reasond_server.cli.turn_listing import json_line
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond import Execution, GetExecutionResponse
    from reasond_server.cli.connecting import Way

_QUESTION_WIDTH = 200
_STATES = {
    name.removeprefix("EXECUTION_STATE_").lower(): number
    for name, number in ExecutionState.items()
    if number != ExecutionState.EXECUTION_STATE_UNSPECIFIED
}


@value
class WantedExecutions:
    """The filters of the command line; the times are text."""

    strategy: str = ""
    state: str | None = None
    since: str | None = None
    until: str | None = None


def list_executions(wanted: WantedExecutions, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print the caller's executions, one per line.

    Raises:
        CommandError: a filter is wrong, or the call failed.
    """
    state = _read_state(wanted.state)
    since, until = _read_time(wanted.since, "--since"), _read_time(wanted.until, "--until")
    with connect(way, environ) as client:
        for execution in client.list_executions(
            strategy=wanted.strategy, state=state, create_time_after=since, create_time_before=until
        ):
            write(json_line(execution) if as_json else line_of_execution(execution))
    return ExitCode.OK


def show_execution(execution_id: str, *, way: Way, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print an execution with its task and its result.

    Raises:
        CommandError: the call failed.
    """
    with connect(way, environ) as client:
        found = client.get_execution(execution_id, trace_view=TraceView.TRACE_VIEW_FULL)
    write(json_line(found) if as_json else "\n".join(_lines_of(found)))
    return ExitCode.OK


def follow(
    execution_id: str, after: int, *, way: Way, environ: Mapping[str, str], as_json: bool, is_verbose: bool = False
) -> ExitCode:
    """Show the events of an execution after `after` to its end, as the command that began it does.

    Raises:
        CommandError: the call or the execution failed.
    """
    with connect(way, environ, has_result=bool) as client:
        stream = client.follow_execution(execution_id, after_sequence=after, reconnect=True)
        observer = _Observer(LiveConsole(human_stream(), is_verbose=is_verbose))
        try:
            with contextlib.nullcontext() if as_json else observer.live.open(), stream:
                for response in stream:
                    if as_json:
                        write(json_line(response))
                    else:
                        observer.show(response)
        except KeyboardInterrupt:
            warn(f"interrupted; go on with: reasond executions follow {execution_id} --after {stream.last_sequence}")
            return ExitCode.INTERRUPTED
        finally:
            observer.finish()
    return ExitCode.OK


class _Observer:
    """Shows the events of an execution to a person, those of each kind as its own command does."""

    def __init__(self, live: LiveConsole) -> None:
        self.live = live
        self._task = People(live)
        self._repair = RepairDisplay(live)
        self._turn = TurnDisplay(live)
        self._end: FollowExecutionResponse | None = None

    def show(self, response: FollowExecutionResponse) -> None:
        """Show one event."""
        if response.HasField("reasoning"):
            self._task.follow([response.reasoning])
        elif response.HasField("repair"):
            self._repair.show(response.repair)
        else:
            self._turn.show(response.turn)
        self._end = response

    def finish(self) -> None:
        """Show what came of the execution, if it has ended."""
        self._task.finish()
        if self._end is None:
            return
        if self._end.repair.HasField("completed"):
            self._repair.show_patch(self._end.repair.completed)
            self._repair.show_end(self._end.repair.completed)
        elif self._end.turn.HasField("completed"):
            write(printable(self._end.turn.completed.answer))


def line_of_execution(execution: Execution) -> str:
    """Return an execution on one line."""
    state = word_of(execution, "state").lower()
    tokens = execution.usage.input_tokens + execution.usage.output_tokens
    words = [printable(execution.execution_id), state, execution.create_time.ToJsonString()]
    return "  ".join([*words, printable(execution.strategy), f"{tokens:,} tokens"])


def _lines_of(found: GetExecutionResponse) -> Iterator[str]:
    yield line_of_execution(found.execution)
    if found.HasField("task"):
        material = len(found.task.material)
        yield f"asked: {one_line(found.task.query, _QUESTION_WIDTH)}"
        yield from [f"material: {material:,} characters"] if material else []
    lines = RunLines(strategy=found.execution.strategy)
    for step in found.reasoning.trace:
        yield from lines.lines(step)
    yield from summary(found.reasoning)
    yield from (f"note: {printable(warning)}" for warning in found.reasoning.warnings)
    if found.reasoning.HasField("error"):
        yield f"error: {printable(found.reasoning.error.message)}"
    if found.reasoning.answer:
        yield printable(found.reasoning.answer)


def _read_state(name: str | None) -> ExecutionState.ValueType:
    if name is None:
        return ExecutionState.EXECUTION_STATE_UNSPECIFIED
    if name.lower() not in _STATES:
        raise _usage(f"--state {name[:80]!r} is no state", f"One of {', '.join(_STATES)}.")
    return _STATES[name.lower()]


def _read_time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        # A time without a zone is that of this machine.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise _usage(f"{option} {text[:80]!r} is no time", "Such as 2026-11-23T10:00:00Z.") from None


def _usage(message: str, remedy: str) -> CommandError:
    return CommandError(message, remedy=remedy, code=ExitCode.BAD_REQUEST)

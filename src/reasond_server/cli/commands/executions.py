"""`reasond executions list|show|follow`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer

from reasond import Execution, ExecutionState, FollowExecutionResponse, GetExecutionResponse, TraceView
from reasond_server.cli.connection import ConnectionOptions, connect, format_json
from reasond_server.cli.options import MOST_COUNT, AsEvents, AsJson, Environ, Timeout, Verbose, command
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.show.figures import format_cost, summarize
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.repair import RepairDisplay
from reasond_server.cli.show.run import HumanOutput, RunLines
from reasond_server.cli.show.turn import TurnDisplay
from reasond_server.cli.terminal import choose_stream, describe_state, fit_line, format_time, sanitize, write

app = typer.Typer(rich_markup_mode=None)
executions = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(executions, name="executions")

ExecutionId = Annotated[str, typer.Argument(metavar="EXECUTION", help="The execution.")]
Time = Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2026-11-23T10:00:00Z; without a zone local.")]
_QUESTION_WIDTH = 200
_LISTED_WIDTH = 80
_STATES = {
    name.removeprefix("EXECUTION_STATE_").lower(): number
    for name, number in ExecutionState.items()
    if number != ExecutionState.EXECUTION_STATE_UNSPECIFIED
}


@command(executions, "list", short_help="List executions, newest first.")
def list_executions(
    *,
    strategy: Annotated[str, typer.Option(metavar="NAME", help="Only executions of this strategy.")] = "",
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="running, succeeded, failed, cancelled or suspended.")
    ] = None,
    since: Time = None,
    until: Time = None,
    text: Annotated[
        str, typer.Option(metavar="TEXT", help="Only with this in id, question, outcome, client or model.")
    ] = "",
    connection: ConnectionOptions,
    environ: Environ,
    as_json: AsJson = False,
) -> ExitCode:
    """List the caller's tasks and repairs, newest first: those that began at --since or later, and before --until."""
    wanted = _read_state(state)
    begin, end = _read_time(since, "--since"), _read_time(until, "--until")
    with connect(connection, environ) as client:
        for execution in client.list_executions(
            strategy=strategy, state=wanted, create_time_after=begin, create_time_before=end, text=text
        ):
            write(format_json(execution) if as_json else format_execution(execution))
    return ExitCode.OK


@command(executions, "show", short_help="Show what an execution was asked, and its result.")
def show_execution(
    execution_id: ExecutionId, *, connection: ConnectionOptions, environ: Environ, as_json: AsJson = False
) -> ExitCode:
    """Show an execution of a task: its question, its steps, its figures and its answer."""
    with connect(connection, environ) as client:
        found = client.get_execution(execution_id, trace_view=TraceView.TRACE_VIEW_FULL)
    write(format_json(found) if as_json else "\n".join(_format_details(found)))
    return ExitCode.OK


@command(executions, "follow", short_help="Observe an execution of any kind.", timeout=Timeout)
def follow(
    execution_id: ExecutionId,
    after: Annotated[int, typer.Option(metavar="SEQUENCE", min=0, max=MOST_COUNT, help="Event to begin after.")] = 0,
    *,
    connection: ConnectionOptions,
    environ: Environ,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Observe a task, a turn or a repair to its end; leaving by Ctrl-C changes nothing for it."""
    with connect(connection, environ, has_result=bool) as client:
        stream = client.follow_execution(execution_id, after_sequence=after, reconnect=True)
        observer = _ExecutionOutput(LiveConsole(choose_stream(), is_verbose=is_verbose))
        try:
            with contextlib.nullcontext() if as_json else observer.live.open(), stream:
                for response in stream:
                    if as_json:
                        write(format_json(response))
                    else:
                        observer.show(response)
        except KeyboardInterrupt:
            warn(f"interrupted; go on with: reasond executions follow {execution_id} --after {stream.last_sequence}")
            return ExitCode.INTERRUPTED
        finally:
            observer.finish()
    return ExitCode.OK


class _ExecutionOutput:
    """Shows the events of an execution to a person, those of each kind as its own command does."""

    def __init__(self, live: LiveConsole) -> None:
        self.live = live
        self._task = HumanOutput(live)
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
            write(sanitize(self._end.turn.completed.answer))


def format_execution(execution: Execution) -> str:
    """Return an execution on one line."""
    tokens = execution.usage.input_tokens + execution.usage.output_tokens
    words = [sanitize(execution.execution_id), describe_state(execution), format_time(execution.create_time)]
    spent = f"{tokens:,} tokens{format_cost(execution.usage)}"
    asked = [fit_line(execution.question, _LISTED_WIDTH)] if execution.question else []
    return "  ".join([*words, sanitize(execution.strategy), spent, *asked])


def _format_details(found: GetExecutionResponse) -> Iterator[str]:
    yield format_execution(found.execution)
    if found.HasField("task"):
        material = len(found.task.material)
        yield f"asked: {fit_line(found.task.query, _QUESTION_WIDTH)}"
        yield from [f"material: {material:,} characters"] if material else []
    lines = RunLines(strategy=found.execution.strategy)
    for step in found.reasoning.trace:
        yield from lines.format_step(step)
    yield from summarize(found.reasoning)
    yield from (f"note: {sanitize(warning)}" for warning in found.reasoning.warnings)
    if found.reasoning.HasField("error"):
        yield f"error: {sanitize(found.reasoning.error.message)}"
    if found.reasoning.answer:
        yield sanitize(found.reasoning.answer)


def _read_state(name: str | None) -> ExecutionState.ValueType:
    if name is None:
        return ExecutionState.EXECUTION_STATE_UNSPECIFIED
    if name.lower() not in _STATES:
        raise usage_error(f"--state {name[:80]!r} is no state", f"One of {', '.join(_STATES)}.")
    return _STATES[name.lower()]


def _read_time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    try:
        # A time without a zone is that of this machine.
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise usage_error(f"{option} {text[:80]!r} is no time", "Such as 2026-11-23T10:00:00Z.") from None

"""`reasond turn`, `reasond turns ...`, `reasond sessions ...`: run, follow, settle and list turns; list sessions."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import reasond
from reasond_server.cli.connection import ConnectionOptions, connect, format_json
from reasond_server.cli.options import MOST_COUNT, AsEvents, AsJson, Environ, Timeout, Verbose, command
from reasond_server.cli.outcome import CommandError, ExitCode, usage_error, warn
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.turn import TurnDisplay, format_pending, format_session, format_turn, format_turn_details
from reasond_server.cli.terminal import choose_stream, get_enum_name, write
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from reasond import Client, ClientFunction, PendingCall, Turn, TurnResult

app = typer.Typer(rich_markup_mode=None)
turns = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(turns, name="turns")
sessions = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(sessions, name="sessions")

TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session.")]
Tools = Annotated[
    str | None,
    typer.Option(metavar="MODULE", help="Module or file whose @reasond.client_tool functions the model may call."),
]
_CODES: Final = {
    "BUDGET_EXHAUSTED": ExitCode.LIMIT,
    "TRUNCATED": ExitCode.LIMIT,
    "CONTENT_FILTERED": ExitCode.MODEL,
    "CANCELLED": ExitCode.INTERRUPTED,
    "FAILED": ExitCode.FAILURE,
    "EXPIRED": ExitCode.LIMIT,
}
_WAITING: Final = reasond.TurnState.TURN_STATE_AWAITING_CLIENT
_APPROVE: Final = reasond.CallKind.CALL_KIND_APPROVE
_EXECUTE: Final = reasond.CallKind.CALL_KIND_EXECUTE
_RESOLVE: Final = reasond.CallKind.CALL_KIND_RESOLVE


@command(app, "turn", timeout=Timeout)
def run_turn(
    text: Annotated[str, typer.Argument(help="What you say.")],
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Conversation that the turn belongs to.")] = "",
    mode: Annotated[str | None, typer.Option(metavar="NAME", help="Mode to begin in.")] = None,
    tools: Tools = None,
    connection: ConnectionOptions,
    environ: Environ,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Run a turn, one line per event, until it has its answer; approvals are asked for on the terminal.

    Ctrl-C leaves the turn to the server: `reasond turns` goes on with it.
    """
    loaded = load_tools(tools)
    start = reasond.TurnStart(
        message=text, session_id=session, mode=mode, client_tools=[tool.describe() for tool in loaded]
    )
    with connect(connection, environ, has_result=bool) as client:
        return _Conversation(client, loaded, as_json=as_json, is_verbose=is_verbose).follow(start)


@command(turns, "list", short_help="List turns, newest first.")
def list_turns(
    session: Annotated[str, typer.Option(metavar="NAME", help="Only turns of this session.")] = "",
    *,
    connection: ConnectionOptions,
    environ: Environ,
    as_json: AsJson = False,
) -> ExitCode:
    """List the caller's turns, newest first."""
    with connect(connection, environ) as client:
        for turn in client.list_turns(session=session):
            write(format_json(turn) if as_json else format_turn(turn))
    return ExitCode.OK


@command(turns, "show", short_help="Show a turn with its tool calls.")
def show_turn(turn_id: TurnId, *, connection: ConnectionOptions, environ: Environ, as_json: AsJson = False) -> ExitCode:
    """Show a turn with its tool calls, what it waits for, and its answer."""
    with connect(connection, environ) as client:
        found = client.get_turn(turn_id)
    result = found.result if found.HasField("result") else None
    write(format_json(found) if as_json else "\n".join(format_turn_details(found.turn, result)))
    return ExitCode.OK


@command(turns, "cancel", short_help="Cancel a turn.")
def cancel_turn(turn_id: TurnId, *, connection: ConnectionOptions, environ: Environ) -> ExitCode:
    """Cancel a turn that runs or waits."""
    with connect(connection, environ) as client:
        write(format_turn(client.cancel_turn(turn_id)))
    return ExitCode.OK


@command(turns, "attach", short_help="Follow a turn to its next exit.", timeout=Timeout)
def attach(
    turn_id: TurnId,
    after: Annotated[int, typer.Option(metavar="SEQUENCE", min=0, max=MOST_COUNT, help="Event to begin after.")] = 0,
    *,
    connection: ConnectionOptions,
    environ: Environ,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Follow a turn from an event on to its end or its next hand-off; 0 replays it from the start."""
    cursor = reasond.ExecutionCursor(execution_id=turn_id, after_sequence=after)
    with connect(connection, environ, has_result=bool) as client:
        conversation = _Conversation(client, (), as_json=as_json, is_verbose=is_verbose)
        return conversation.show_events(cursor) or ExitCode.OK


@command(turns, "resolve", short_help="Settle the calls that a turn waits for.", timeout=Timeout)
def resolve(
    turn_id: TurnId,
    *,
    approve: Annotated[list[str] | None, typer.Option(metavar="CALL", help="Approve the call; repeatable.")] = None,
    refuse: Annotated[
        list[str] | None, typer.Option(metavar="CALL[=REASON]", help="Refuse the call; repeatable.")
    ] = None,
    result: Annotated[
        list[str] | None, typer.Option(metavar="CALL=JSON", help="What the call returned; repeatable.")
    ] = None,
    error: Annotated[list[str] | None, typer.Option(metavar="CALL=TEXT", help="How it failed; repeatable.")] = None,
    tools: Tools = None,
    connection: ConnectionOptions,
    environ: Environ,
    is_verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Settle all calls that a turn waits for, and follow it; what no option settles is asked for on the terminal."""
    answers = read_answers(approved=approve or (), refused=refuse or (), results=result or (), errors=error or ())
    with connect(connection, environ, has_result=bool) as client:
        turn = client.get_turn(turn_id).turn
        if turn.state != _WAITING:
            state = get_enum_name(turn, "state").lower()
            raise CommandError(
                f"Turn {turn_id} does not wait: it is {state}",
                remedy=f"See reasond turns show {turn_id}",
                code=ExitCode.BAD_REQUEST,
            )
        conversation = _Conversation(client, load_tools(tools), as_json=as_json, is_verbose=is_verbose, answers=answers)
        return conversation.follow(conversation.settle(turn))


@command(sessions, "list", short_help="List sessions, last changed first.")
def list_sessions(*, connection: ConnectionOptions, environ: Environ, as_json: AsJson = False) -> ExitCode:
    """List the caller's sessions, last changed first."""
    with connect(connection, environ) as client:
        for session in client.list_sessions():
            write(format_json(session) if as_json else format_session(session))
    return ExitCode.OK


@command(sessions, "show", short_help="Show a session.")
def show_session(
    session_id: SessionId, *, connection: ConnectionOptions, environ: Environ, as_json: AsJson = False
) -> ExitCode:
    """Show a session."""
    with connect(connection, environ) as client:
        session = client.get_session(session_id)
    write(format_json(session) if as_json else format_session(session))
    return ExitCode.OK


@command(sessions, "delete", short_help="Delete a session and its turns.")
def delete_session(session_id: SessionId, *, connection: ConnectionOptions, environ: Environ) -> ExitCode:
    """Delete a session and all its turns; refused while one of them runs or waits."""
    with connect(connection, environ) as client:
        client.delete_session(session_id)
    return ExitCode.OK


@value
class Answers:
    """What the command line says of pending calls: decisions (True, or the reason against), results and errors."""

    decisions: Mapping[str, bool | str] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def read_answers(
    *, approved: Iterable[str], refused: Iterable[str], results: Iterable[str], errors: Iterable[str]
) -> Answers:
    """Parse the options of `reasond turns resolve`.

    Raises:
        CommandError: a result is not `CALL=JSON`, or an error not `CALL=TEXT`.
    """
    decisions: dict[str, bool | str] = dict.fromkeys(approved, True)
    for each in refused:
        call_id, _, reason = each.partition("=")
        decisions[call_id] = reason or False
    values = {}
    for each in results:
        call_id, text = _split_pair(each, "--result", "CALL=JSON")
        try:
            values[call_id] = json.loads(text)
        except (ValueError, RecursionError):
            raise usage_error(f"--result {each[:80]!r} is no JSON behind the =", "Quote texts: c1='\"done\"'") from None
    return Answers(
        decisions=decisions, results=values, errors=dict(_split_pair(each, "--error", "CALL=TEXT") for each in errors)
    )


def load_tools(name: str | None) -> Sequence[ClientFunction[..., Any]]:
    """Return the client tools of a module, or of a file if the name ends in .py; none without a name.

    Raises:
        CommandError: it cannot be imported, or has no client tool.
    """
    if name is None:
        return ()
    try:
        module = _load_file(Path(name)) if name.endswith(".py") else _import_module(name)
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        message = f"--tools {name[:200]!r} cannot be imported: {type(error).__name__}: {error}"
        raise CommandError(message, code=ExitCode.BAD_REQUEST) from None
    tools = [each for each in vars(module).values() if isinstance(each, reasond.ClientFunction)]
    if not tools:
        raise usage_error(f"--tools {name[:200]!r} has no function with @reasond.client_tool", "Decorate one.")
    return tools


def _import_module(name: str) -> ModuleType:
    # As `python -m` does: a module beside the caller is found.
    if "" not in sys.path:
        sys.path.insert(0, "")
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    # Type hints of functions are looked up there.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class _Conversation:
    """Follows one turn through its hand-offs."""

    def __init__(
        self,
        client: Client,
        tools: Sequence[ClientFunction[..., Any]],
        *,
        as_json: bool,
        is_verbose: bool = False,
        answers: Answers | None = None,
    ) -> None:
        self._client = client
        self._tools = tools
        self._as_json = as_json
        self._live = LiveConsole(choose_stream(), is_verbose=is_verbose)
        self._display = TurnDisplay(self._live)
        self._answers = answers or Answers()
        self._turn_id = ""
        self._sequence = 0

    def follow(self, source: reasond.TurnStart | reasond.TurnReentry) -> ExitCode:
        """Follow a turn to its end, and settle what it hands off."""
        code = self.show_events(source, holds_steps=True)
        while code is None:
            reentry = self.settle(self._client.get_turn(self._turn_id).turn)
            code = self.show_events(reentry, holds_steps=True)
        return code

    def show_events(
        self, source: reasond.TurnStart | reasond.TurnReentry | reasond.ExecutionCursor, *, holds_steps: bool = False
    ) -> ExitCode | None:
        """Show the events to the next exit; return the exit code of an end, None after a hand-off.

        With `holds_steps` a hand-off leaves nothing on a terminal, because the turn is followed further.
        """
        result: TurnResult | None = None
        wants_deltas = self._live.is_live and not self._as_json
        try:
            with contextlib.nullcontext() if self._as_json else self._live.open():
                for event in self._client.execute_turn(source, include_deltas=wants_deltas):
                    self._turn_id, self._sequence = event.turn_id, event.sequence
                    self._show(event)
                    if event.HasField("completed"):
                        result = event.completed
                    elif event.HasField("handed_off") and holds_steps:
                        self._live.hold_steps()
        except KeyboardInterrupt:
            if self._turn_id and result is None:
                warn(
                    f"interrupted; the turn goes on: reasond turns attach {self._turn_id} --after {self._sequence}, "
                    f"or reasond turns cancel {self._turn_id}"
                )
            return ExitCode.INTERRUPTED
        finally:
            if result is not None and not self._as_json:
                self._finish(result)
        return None if result is None else _CODES.get(get_enum_name(result, "finish_reason"), ExitCode.OK)

    def settle(self, turn: Turn) -> reasond.TurnReentry:
        """Return the re-entry with what the command line says, the tools return and a person decides."""
        given = self._answers
        known = {pending.call.call_id for pending in turn.handoff.calls}
        if strange := sorted({*given.decisions, *given.results, *given.errors} - known):
            raise usage_error(
                f"the turn does not wait for {', '.join(strange)}", f"It waits for {', '.join(sorted(known))}."
            )
        rest = reasond.HandedOff(etag=turn.handoff.etag)
        rest.calls.extend(each for each in turn.handoff.calls if not self._is_answered(each))
        left = self._find_unsettled(rest.calls)
        if left and not sys.stdin.isatty():
            raise _make_ask_error(turn.turn_id, left)
        for pending in left:
            # A person stands in for a tool that is not here.
            pending.kind = _APPROVE if pending.kind == _APPROVE else _RESOLVE
        open_turn = reasond.Turn(turn_id=turn.turn_id, handoff=rest)
        reentry = self._client.settle_turn(
            open_turn, tools=self._tools, approve=self._ask_decision, resolve=self._ask_result
        )
        for pending in turn.handoff.calls:
            self._add_answer(reentry, pending)
        self._answers = Answers()
        return reentry

    def _is_answered(self, pending: PendingCall) -> bool:
        given, call_id = self._answers, pending.call.call_id
        return call_id in (given.decisions if pending.kind == _APPROVE else {**given.results, **given.errors})

    def _find_unsettled(self, calls: Iterable[PendingCall]) -> list[PendingCall]:
        """Return the calls that only a person can settle."""
        names = {tool.name for tool in self._tools}
        return [each for each in calls if each.kind != _EXECUTE or each.call.tool not in names]

    def _add_answer(self, reentry: reasond.TurnReentry, pending: PendingCall) -> None:
        given, call_id = self._answers, pending.call.call_id
        if pending.kind == _APPROVE and call_id in given.decisions:
            said = given.decisions[call_id]
            reason = said if isinstance(said, str) else ""
            reentry.decisions.append(reasond.Decision(call_id=call_id, is_approved=said is True, reason=reason))
        elif call_id in given.errors:
            text = _dump_json({"error": given.errors[call_id]})
            reentry.results.append(reasond.ToolResult(call_id=call_id, result_json=text, is_error=True))
        elif call_id in given.results:
            text = _dump_json(given.results[call_id])
            reentry.results.append(reasond.ToolResult(call_id=call_id, result_json=text))

    def _show(self, event: reasond.ExecuteTurnResponse) -> None:
        if self._as_json:
            write(format_json(event))
        else:
            self._display.show(event)

    def _finish(self, result: TurnResult) -> None:
        if sys.stdout.isatty():
            self._live.print_answer(result.answer)
        elif result.answer:
            write(result.answer)
        self._display.show_end(result)

    def _ask_decision(self, pending: PendingCall) -> bool | str:
        """Ask the person at the terminal; anything but yes refuses, and a longer text is the reason."""
        said = self._live.ask(f"{format_pending(pending)}\napprove? [y/N or why not] ").strip()
        if said.lower() in {"y", "yes"}:
            return True
        return "" if said.lower() in {"", "n", "no"} else said

    def _ask_result(self, pending: PendingCall) -> object:
        """Ask the person at the terminal what came of a call: JSON, or a text."""
        said = self._live.ask(f"{format_pending(pending)}\nresult (JSON, or a text): ")
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            return said


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _make_ask_error(turn_id: str, left: Sequence[PendingCall]) -> CommandError:
    request = "; ".join(format_pending(each) for each in left)
    options: dict[bool, Callable[[str], str]] = {True: "--approve {}".format, False: "--result {}=JSON".format}
    arguments = " ".join(options[each.kind == _APPROVE](each.call.call_id) for each in left)
    return CommandError(
        f"Turn {turn_id} waits for a person, and stdin is no terminal: {request}",
        remedy=f"Settle it with: reasond turns resolve {turn_id} {arguments}",
        code=ExitCode.BAD_REQUEST,
    )


def _split_pair(text: str, option: str, form: str) -> tuple[str, str]:
    call_id, separator, rest = text.partition("=")
    if not call_id or not separator:
        raise usage_error(f"{option} {text[:80]!r} is not {form}", "The call's id stands before the =.")
    return call_id, rest

"""`reasond turn` and `reasond turns attach|resolve`: follow a turn, settle its pending calls, and print its answer."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import sys
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import reasond
from reasond_server.cli.connecting import connect
from reasond_server.cli.live import LiveConsole
from reasond_server.cli.outcome import CommandError, ExitCode, usage_error, warn
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import human_stream, write
from reasond_server.cli.turn_display import TurnDisplay
from reasond_server.cli.turn_listing import json_line
from reasond_server.cli.turn_text import line_of_pending
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from reasond import Client, ClientFunction, PendingCall, Turn, TurnResult
    from reasond_server.cli.connecting import Way

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


@value
class WantedTurn:
    """The turn of the command line; `tools` names a module or a file."""

    text: str
    session: str = ""
    mode: str | None = None
    tools: str | None = None


@value
class Answers:
    """What the command line says of pending calls: decisions (True, or the reason against), results and errors."""

    decisions: Mapping[str, bool | str] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


def run_turn(
    wanted: WantedTurn, *, way: Way, environ: Mapping[str, str], as_json: bool, is_verbose: bool = False
) -> ExitCode:
    """Run a turn to its end; return the exit code for its finish reason.

    Raises:
        CommandError: an option is wrong, the call failed, or the turn waits for what nobody here can settle.
    """
    tools = load_tools(wanted.tools)
    start = reasond.TurnStart(
        message=wanted.text,
        session_id=wanted.session,
        mode=wanted.mode,
        client_tools=[tool.describe() for tool in tools],
    )
    with connect(way, environ, has_result=bool) as client:
        return _Conversation(client, tools, as_json=as_json, is_verbose=is_verbose).follow(start)


def attach(
    turn_id: str, after: int, *, way: Way, environ: Mapping[str, str], as_json: bool, is_verbose: bool = False
) -> ExitCode:
    """Follow a turn to its next exit.

    Raises:
        CommandError: the call failed.
    """
    cursor = reasond.ExecutionCursor(execution_id=turn_id, after_sequence=after)
    with connect(way, environ, has_result=bool) as client:
        conversation = _Conversation(client, (), as_json=as_json, is_verbose=is_verbose)
        return conversation.show_events(cursor) or ExitCode.OK


def resolve(
    turn_id: str,
    answers: Answers,
    *,
    tools: str | None,
    way: Way,
    environ: Mapping[str, str],
    as_json: bool,
    is_verbose: bool = False,
) -> ExitCode:
    """Settle the calls that a turn waits for, and follow it to its end.

    Raises:
        CommandError: the turn does not wait, the answers do not fit its calls, or the call failed.
    """
    with connect(way, environ, has_result=bool) as client:
        turn = client.get_turn(turn_id).turn
        if turn.state != _WAITING:
            state = word_of(turn, "state").lower()
            raise CommandError(
                f"Turn {turn_id} does not wait: it is {state}",
                remedy=f"See reasond turns show {turn_id}",
                code=ExitCode.BAD_REQUEST,
            )
        conversation = _Conversation(client, load_tools(tools), as_json=as_json, is_verbose=is_verbose, answers=answers)
        return conversation.follow(conversation.settle(turn))


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
        call_id, text = _pair(each, "--result", "CALL=JSON")
        try:
            values[call_id] = json.loads(text)
        except (ValueError, RecursionError):
            raise usage_error(f"--result {each[:80]!r} is no JSON behind the =", "Quote texts: c1='\"done\"'") from None
    return Answers(
        decisions=decisions, results=values, errors=dict(_pair(each, "--error", "CALL=TEXT") for each in errors)
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
        self._live = LiveConsole(human_stream(), is_verbose=is_verbose)
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
        return None if result is None else _CODES.get(word_of(result, "finish_reason"), ExitCode.OK)

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
            raise _cannot_ask(turn.turn_id, left)
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
            text = _json_text({"error": given.errors[call_id]})
            reentry.results.append(reasond.ToolResult(call_id=call_id, result_json=text, is_error=True))
        elif call_id in given.results:
            text = _json_text(given.results[call_id])
            reentry.results.append(reasond.ToolResult(call_id=call_id, result_json=text))

    def _show(self, event: reasond.ExecuteTurnResponse) -> None:
        if self._as_json:
            write(json_line(event))
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
        said = self._live.ask(f"{line_of_pending(pending)}\napprove? [y/N or why not] ").strip()
        if said.lower() in {"y", "yes"}:
            return True
        return "" if said.lower() in {"", "n", "no"} else said

    def _ask_result(self, pending: PendingCall) -> object:
        """Ask the person at the terminal what came of a call: JSON, or a text."""
        said = self._live.ask(f"{line_of_pending(pending)}\nresult (JSON, or a text): ")
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            return said


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cannot_ask(turn_id: str, left: Sequence[PendingCall]) -> CommandError:
    wanted = "; ".join(line_of_pending(each) for each in left)
    options: dict[bool, Callable[[str], str]] = {True: "--approve {}".format, False: "--result {}=JSON".format}
    arguments = " ".join(options[each.kind == _APPROVE](each.call.call_id) for each in left)
    return CommandError(
        f"Turn {turn_id} waits for a person, and stdin is no terminal: {wanted}",
        remedy=f"Settle it with: reasond turns resolve {turn_id} {arguments}",
        code=ExitCode.BAD_REQUEST,
    )


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    call_id, separator, rest = text.partition("=")
    if not call_id or not separator:
        raise usage_error(f"{option} {text[:80]!r} is not {form}", "The call's id stands before the =.")
    return call_id, rest

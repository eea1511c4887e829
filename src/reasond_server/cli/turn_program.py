"""The commands `turn`, `turns ...` and `sessions ...` with their options; their code is imported when they run."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.options import AsEvents, AsJson, Timeout, Verbose, call_server
from reasond_server.cli.outcome import ExitCode

if TYPE_CHECKING:
    from reasond_server.cli.connecting import Way

turns_app = typer.Typer(help="List, follow, settle and cancel turns.", rich_markup_mode=None, no_args_is_help=True)
sessions_app = typer.Typer(help="List, show and delete sessions.", rich_markup_mode=None, no_args_is_help=True)

TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session.")]
Tools = Annotated[
    str | None,
    typer.Option(metavar="MODULE", help="Module or file whose @reasond.client_tool functions the model may call."),
]


@call_server(timeout=Timeout)
def turn(
    text: Annotated[str, typer.Argument(help="What you say.")],
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Conversation that the turn belongs to.")] = "",
    mode: Annotated[str | None, typer.Option(metavar="NAME", help="Mode to begin in.")] = None,
    tools: Tools = None,
    way: "Way",
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Run a turn, one line per event, until it has its answer; approvals are asked for on the terminal.

    Ctrl-C leaves the turn to the server: `reasond turns` goes on with it.
    """
    from reasond_server.cli import turning

    wanted = turning.WantedTurn(text=text, session=session, mode=mode, tools=tools)
    return turning.run_turn(wanted, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose)


@turns_app.command("list", short_help="List turns, newest first.")
@call_server()
def list_turns(
    *,
    session: Annotated[str, typer.Option(metavar="NAME", help="Only turns of this session.")] = "",
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """List the caller's turns, newest first."""
    from reasond_server.cli import turn_listing

    return turn_listing.list_turns(session, way=way, environ=os.environ, as_json=as_json)


@turns_app.command("show", short_help="Show a turn with its tool calls.")
@call_server()
def show_turn(
    turn_id: TurnId,
    *,
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """Show a turn with its tool calls, what it waits for, and its answer."""
    from reasond_server.cli import turn_listing

    return turn_listing.show_turn(turn_id, way=way, environ=os.environ, as_json=as_json)


@turns_app.command("cancel", short_help="Cancel a turn.")
@call_server()
def cancel_turn(
    turn_id: TurnId,
    *,
    way: "Way",
) -> ExitCode:
    """Cancel a turn that runs or waits."""
    from reasond_server.cli import turn_listing

    return turn_listing.cancel_turn(turn_id, way=way, environ=os.environ)


@turns_app.command("attach", short_help="Follow a turn to its next exit.")
@call_server(timeout=Timeout)
def attach_turn(
    turn_id: TurnId,
    *,
    after: Annotated[int, typer.Option(metavar="SEQUENCE", min=0, help="Event to begin after.")] = 0,
    way: "Way",
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Follow a turn from an event on to its end or its next hand-off; 0 replays it from the start."""
    from reasond_server.cli import turning

    return turning.attach(turn_id, after, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose)


@turns_app.command("resolve", short_help="Settle the calls that a turn waits for.")
@call_server(timeout=Timeout)
def resolve_turn(
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
    way: "Way",
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Settle all calls that a turn waits for, and follow it; what no option settles is asked for on the terminal."""
    from reasond_server.cli import turning

    answers = turning.read_answers(
        approved=approve or (), refused=refuse or (), results=result or (), errors=error or ()
    )
    return turning.resolve(
        turn_id, answers, tools=tools, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose
    )


@sessions_app.command("list", short_help="List sessions, last changed first.")
@call_server()
def list_sessions(*, way: "Way", as_json: AsJson = False) -> ExitCode:
    """List the caller's sessions, last changed first."""
    from reasond_server.cli import turn_listing

    return turn_listing.list_sessions(way=way, environ=os.environ, as_json=as_json)


@sessions_app.command("show", short_help="Show a session.")
@call_server()
def show_session(
    session_id: SessionId,
    *,
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """Show a session."""
    from reasond_server.cli import turn_listing

    return turn_listing.show_session(session_id, way=way, environ=os.environ, as_json=as_json)


@sessions_app.command("delete", short_help="Delete a session and its turns.")
@call_server()
def delete_session(
    session_id: SessionId,
    *,
    way: "Way",
) -> ExitCode:
    """Delete a session and all its turns; refused while one of them runs or waits."""
    from reasond_server.cli import turn_listing

    return turn_listing.delete_session(session_id, way=way, environ=os.environ)

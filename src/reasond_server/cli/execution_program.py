"""The commands `executions ...` with their options; their code is imported when they run."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.options import AsEvents, AsJson, Timeout, Verbose, call_server
from reasond_server.cli.outcome import ExitCode

if TYPE_CHECKING:
    from reasond_server.cli.connecting import Way

executions_app = typer.Typer(help="List, show and observe executions.", rich_markup_mode=None, no_args_is_help=True)

ExecutionId = Annotated[str, typer.Argument(metavar="EXECUTION", help="The execution.")]
Time = Annotated[str | None, typer.Option(metavar="TIME", help="Such as 2026-11-23T10:00:00Z; without a zone local.")]


@executions_app.command("list", short_help="List executions, newest first.")
@call_server()
def list_executions(
    *,
    strategy: Annotated[str, typer.Option(metavar="NAME", help="Only executions of this strategy.")] = "",
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="running, succeeded, failed, cancelled or suspended.")
    ] = None,
    since: Time = None,
    until: Time = None,
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """List the caller's tasks and repairs, newest first: those that began at --since or later, and before --until."""
    from reasond_server.cli import execution_listing

    wanted = execution_listing.WantedExecutions(strategy=strategy, state=state, since=since, until=until)
    return execution_listing.list_executions(wanted, way=way, environ=os.environ, as_json=as_json)


@executions_app.command("show", short_help="Show what an execution was asked, and its result.")
@call_server()
def show_execution(
    execution_id: ExecutionId,
    *,
    way: "Way",
    as_json: AsJson = False,
) -> ExitCode:
    """Show an execution of a task: its question, its steps, its figures and its answer."""
    from reasond_server.cli import execution_listing

    return execution_listing.show_execution(execution_id, way=way, environ=os.environ, as_json=as_json)


@executions_app.command("follow", short_help="Observe an execution of any kind.")
@call_server(timeout=Timeout)
def follow_execution(
    execution_id: ExecutionId,
    *,
    after: Annotated[int, typer.Option(metavar="SEQUENCE", min=0, help="Event to begin after.")] = 0,
    way: "Way",
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Observe a task, a turn or a repair to its end; leaving by Ctrl-C changes nothing for it."""
    from reasond_server.cli import execution_listing

    return execution_listing.follow(
        execution_id, after, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose
    )

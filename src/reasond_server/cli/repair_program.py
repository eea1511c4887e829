"""The command `repair` with its options; its code is imported when it runs."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.options import AsEvents, Verbose, call_server
from reasond_server.cli.outcome import ExitCode

if TYPE_CHECKING:
    from reasond_server.cli.connecting import Way

Tests = Annotated[list[str] | None, typer.Option(metavar="COMMAND", help="It fails now and shall pass; repeatable.")]
Regressions = Annotated[
    list[str] | None, typer.Option(metavar="COMMAND", help="What passes now shall go on passing; repeatable.")
]
HeldOut = Annotated[
    list[str] | None,
    typer.Option("--held-out", metavar="COMMAND", help="It judges the winner alone, once; repeatable."),
]
Editable = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Tests or configuration that may be changed all the same; repeatable."),
]


@call_server(
    timeout=Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest time for the repair.", show_default="3600")
    ]
)
def repair(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="Folder of the project; with --resume only --apply needs it."),
    ] = None,
    *,
    test: Tests = None,
    regression: Regressions = None,
    held_out: HeldOut = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment of the server for the commands; else guessed.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="NAME", help="refine_beam, lats, greedy or best_of_n; else the server's.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the repair; repeatable.")
    ] = None,
    editable: Editable = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What is wrong or wanted, in words.")] = "",
    plan: Annotated[bool, typer.Option("--plan", help="Write a plan instead of a patch; nothing is run.")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply an accepted patch, whole or not at all.")] = False,
    way: "Way",
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Let the repair go on when this command is interrupted or cut off.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option(metavar="EXECUTION[:SEQUENCE]", help="Follow a repair after that event instead.")
    ] = None,
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Have failing code repaired: candidates are run on the server until one passes the checks.

    A command may begin with how it reports (junit, go_json, tap or exit_code), as in "tap:prove -v". pytest, go test
    and node --test need no such word.

    What git lists below PATH is sent, without .env* and keys. Where stdout is no terminal it gets the patch alone, and
    the rest goes to stderr. Ctrl-C cancels the repair.
    """
    from reasond_server.cli import mending

    wanted = mending.WantedRepair(
        root=path,
        tests=test or (),
        regressions=regression or (),
        held_out=held_out or (),
        environment=environment,
        search=search,
        settings=settings or (),
        editable=editable or (),
        description=description,
        is_plan=plan,
        is_applied=apply,
        is_kept_running=keep_running,
        resume=resume,
    )
    return mending.repair(wanted, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose)

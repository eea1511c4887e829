"""The command `ask` with its options; its code is imported when it runs."""

# ruff: noqa: PLC0415 - a command imports its module when it runs, so that `--help` answers at once
# The annotations stay values (no `from __future__`), because typer reads them.

import os
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.cli.options import AsEvents, Timeout, Verbose, call_server
from reasond_server.cli.outcome import ExitCode

if TYPE_CHECKING:
    from reasond_server.cli.connecting import Way

Query = Annotated[str | None, typer.Argument(metavar="[QUESTION]", help="The question; left out with --resume.")]
StrategyName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Strategy; else the agent or the server chooses.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the strategy; repeat for more than one."),
]
Material = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The long text that the question is about, PDF and DOCX too; - reads stdin."),
]
AgentId = Annotated[str, typer.Option(metavar="ID", help="Registered agent whose strategies apply.")]
System = Annotated[str, typer.Option(metavar="TEXT", help="Instructions for every model call.")]
Model = Annotated[
    str | None, typer.Option(metavar="NAME", help="A backend that the server offers; else its own model.")
]
Schema = Annotated[
    str | None, typer.Option(metavar="FILE", help="JSON Schema that the answer must satisfy; - reads stdin.")
]
Images = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="An image that the question is about; may be repeated.")
]
History = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The messages before the question, a JSON list or JSON lines of role and text; - reads stdin.",
    ),
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="The answer ends before this text; may be repeated.")
]
MaxOutputTokens = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Most tokens that all model calls together may write.")
]
KeepRunning = Annotated[
    bool, typer.Option("--keep-running", help="Let the run go on when this command is interrupted or cut off.")
]
ResumePoint = Annotated[
    str | None, typer.Option(metavar="EXECUTION[:SEQUENCE]", help="Follow a run after that event instead.")
]


@call_server(timeout=Timeout)
def ask(
    query: Query = None,
    *,
    strategy: StrategyName = None,
    settings: Settings = None,
    material: Material = None,
    agent: AgentId = "",
    system: System = "",
    model: Model = None,
    schema: Schema = None,
    image: Images = None,
    history: History = None,
    stop: Stop = None,
    max_output_tokens: MaxOutputTokens = None,
    way: "Way",
    keep_running: KeepRunning = False,
    resume: ResumePoint = None,
    verbose: Verbose = False,
    as_json: AsEvents = False,
) -> ExitCode:
    """Ask a question and watch it being worked out; Ctrl-C cancels the run.

    Where stdout is no terminal it gets the answer alone, and the steps go to stderr.
    """
    from reasond_server.cli import asking

    question = asking.Question(
        query=query,
        strategy=strategy,
        settings=tuple(settings or ()),
        material=material,
        agent=agent,
        system=system,
        model=model,
        schema=schema,
        images=tuple(image or ()),
        history=history,
        stop=tuple(stop or ()),
        max_output_tokens=max_output_tokens,
        is_kept_running=keep_running,
        resume=resume,
    )
    return asking.ask(question, way=way, environ=os.environ, as_json=as_json, is_verbose=verbose)

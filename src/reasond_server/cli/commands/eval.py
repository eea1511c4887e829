"""`reasond eval`: asks the questions of a set in several ways and says which way is worth its tokens."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from reasond import AsyncClient
from reasond_server.cli.connection import ConnectionOptions, build_environment, convert_errors, find_target
from reasond_server.cli.options import call_server
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.show.evaluation import EvalDisplay, show_report
from reasond_server.cli.terminal import choose_stream, write
from reasond_server.evaluation.choosing import choose, write_choices
from reasond_server.evaluation.graders import Graders
from reasond_server.evaluation.items import Grader, read_items
from reasond_server.evaluation.model_judge import ModelJudge
from reasond_server.evaluation.report import build_report, write_markdown
from reasond_server.evaluation.trials import DEFAULT_ITEM_TOKENS, TokenBudget, Trials, open_record
from reasond_server.evaluation.ways import read_way, require_different
from reasond_server.tools.programs import NO_PROGRAMS
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from reasond_server.evaluation.items import Item
    from reasond_server.evaluation.trials import Trial
    from reasond_server.evaluation.ways import Way
    from reasond_server.tools.programs import ProgramRunner

app = typer.Typer(rich_markup_mode=None)

_DEFAULT_WAYS: Final = ("direct", "chain_of_thought", "self_consistency:samples=3")
_MOST_WAYS: Final = 26

SetFile = Annotated[Path, typer.Argument(metavar="SET", help="Questions with their right answers, one JSON a line.")]
WayNames = Annotated[
    list[str] | None,
    typer.Option(
        "--way",
        metavar="STRATEGY[:KEY=VALUE,...]",
        help="A way to answer; repeat for more. Others are compared with the first.",
        show_default=", ".join(_DEFAULT_WAYS),
    ),
]
GraderName = Annotated[
    Grader | None, typer.Option("--grader", help="How answers are compared; else by what an item has.")
]
Model = Annotated[str, typer.Option(metavar="NAME", help="A backend that the server offers; else its own model.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N questions.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, max=100, help="How often each question is asked.")]
AtOnce = Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Questions at a time.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-total-tokens", metavar="N", min=1, help="Most tokens of the whole evaluation; a hard bound."),
]
ItemTokens = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Most tokens of one question in one way, where the whole is bounded."),
]
RecordFile = Annotated[
    Path | None,
    typer.Option(
        "--record",
        metavar="FILE",
        help="What has ended, to go on after an interruption.",
        show_default="SET.trials.jsonl",
    ),
]
ReportFile = Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write the report as Markdown.")]
JudgeModel = Annotated[
    str | None, typer.Option("--judge", metavar="NAME", help="The backend that judges texts; default: the server's.")
]
ChoiceFile = Annotated[
    Path | None,
    typer.Option("--choose", metavar="FILE", help="Write what [reasoning] auto shall take, as tables of config.toml."),
]
Loss = Annotated[
    float, typer.Option(metavar="SHARE", min=0, max=1, help="How much worse than the best a choice may be.")
]


TimeLimit = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="Longest time of one question in one way.", show_default="600"),
]


@app.command("eval")
@call_server(timeout=TimeLimit)
def _eval(
    set_file: SetFile,
    *,
    way: WayNames = None,
    grader: GraderName = None,
    model: Model = "",
    limit: Limit = None,
    repeats: Repeats = 1,
    at_once: AtOnce = 4,
    max_total_tokens: MaxTokens = None,
    item_tokens: ItemTokens = DEFAULT_ITEM_TOKENS,
    record: RecordFile = None,
    report: ReportFile = None,
    judge: JudgeModel = None,
    choose_file: ChoiceFile = None,
    loss: Loss = 0.02,
    connection: ConnectionOptions,
) -> ExitCode:
    """Ask every question of SET in each way, grade the answers, and compare accuracy, tokens and time.

    The command may be interrupted: run again it goes on, and nothing is asked or paid twice.
    """
    request = EvalRequest(
        items=read_items(set_file, grader=grader)[:limit],
        ways=[read_way(text, model=model) for text in way or _DEFAULT_WAYS],
        title=f"{set_file.name}",
        repeats=repeats,
        at_once=at_once,
        budget=TokenBudget(most=max_total_tokens, each=item_tokens),
        record=record or set_file.with_name(f"{set_file.name}.trials.jsonl"),
        judge=judge,
    )
    return evaluate(
        request, connection=connection, environ=os.environ, report_file=report, choice_file=choose_file, loss=loss
    )


@value
class EvalRequest:
    """What is asked, in which ways, within which budget, and the file of what has ended."""

    items: Sequence[Item]
    ways: Sequence[Way]
    title: str
    repeats: int
    at_once: int
    budget: TokenBudget
    record: Path
    judge: str | None


def evaluate(
    request: EvalRequest,
    *,
    connection: ConnectionOptions,
    environ: Mapping[str, str],
    report_file: Path | None,
    choice_file: Path | None,
    loss: float,
) -> ExitCode:
    """Make the trials, print the comparison and write the files that are asked for.

    Returns LIMIT if the budget ended before all questions were asked.

    Raises:
        CommandError: an option is wrong, or the server refuses every call.
    """
    require_different(request.ways)
    if len(request.ways) > _MOST_WAYS:
        raise usage_error(f"{len(request.ways)} ways are too many", f"Compare at most {_MOST_WAYS} at a time.")
    with convert_errors(find_target(connection, environ)):
        evaluated = asyncio.run(_run(request, connection, environ))
    trials = evaluated.trials
    wanted = len(request.items) * len(request.ways) * request.repeats
    found = build_report(request.items, request.ways, trials, wanted=wanted)
    show_report(found, stream=choose_stream())
    if evaluated.judged_tokens:
        write(f"judging took {evaluated.judged_tokens:,} tokens more")
    if report_file is not None:
        _write_file(
            report_file, write_markdown(found, title=request.title, told=_list_circumstances(request, evaluated))
        )
    if choice_file is not None:
        _write_choices(choice_file, request, trials, loss=loss)
    if len(trials) < wanted:
        warn(
            f"the budget of {request.budget.most or 0:,} tokens ended after {len(trials):,} of {wanted:,} trials; "
            "with a higher --max-total-tokens the command goes on where it ended"
        )
        return ExitCode.LIMIT
    return ExitCode.OK


@value
class Evaluated:
    """The trials that ended, the tokens that judging took, and the server's own model."""

    trials: Sequence[Trial]
    judged_tokens: int
    model: str


async def _run(request: EvalRequest, connection: ConnectionOptions, environ: Mapping[str, str]) -> Evaluated:
    """Make the trials."""
    async with (
        AsyncClient.from_env(build_environment(connection, environ)) as client,
        _open_programs(request.items) as programs,
    ):
        judge = ModelJudge(client=client, model=request.judge or "")
        graders = Graders(programs=programs, judge=judge)
        if obstacle := graders.find_obstacle(request.items):
            raise usage_error(obstacle, "`reasond doctor` says what a sandbox needs.")
        served = (await client.list_strategies()).model
        wanted = len(request.items) * len(request.ways) * request.repeats
        with open_record(request.record) as record, EvalDisplay(choose_stream(), wanted) as display:
            trials = Trials(
                served_model=served,
                client=client,
                graders=graders,
                record=record,
                items=request.items,
                ways=request.ways,
                repeats=request.repeats,
                at_once=request.at_once,
                budget=request.budget,
                timeout_s=connection.timeout_s or 600.0,
                told=display.note,
            )
            return Evaluated(trials=await trials.run(), judged_tokens=judge.tokens, model=served)


@asynccontextmanager
async def _open_programs(items: Sequence[Item]) -> AsyncIterator[ProgramRunner]:
    """Yield what runs the tests of items: the sandbox with its self-test, opened only if some item has tests."""
    if not any(item.grader is Grader.PYTHON for item in items):
        yield NO_PROGRAMS
        return
    from reasond_server.assembly.sandboxes import open_python_programs  # noqa: PLC0415 - most sets need no sandbox

    async with open_python_programs() as programs:
        yield programs


def _list_circumstances(request: EvalRequest, evaluated: Evaluated) -> Sequence[str]:
    trials, model = evaluated.trials, request.ways[0].model or evaluated.model
    return (
        f"{len(request.items):,} questions, each asked {request.repeats} times in each way; model: {model}",
        f"{sum(trial.tokens for trial in trials):,} tokens, {sum(trial.calls for trial in trials):,} model calls",
    )


def _write_choices(file: Path, request: EvalRequest, trials: Sequence[Trial], *, loss: float) -> None:
    chosen, told = choose(request.items, request.ways, trials, loss=loss)
    for sentence in told:
        warn(f"nothing is chosen for tasks of the form {sentence}")
    if not chosen:
        raise usage_error("nothing can be chosen", "Ask more questions; see `reasond eval --help`.")
    _write_file(file, write_choices(chosen))
    for form, each in chosen.items():
        write(f"{form.value}: {each.strategy} ({each.why})")


def _write_file(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise usage_error(f"the file {str(file)!r} cannot be written: {error.strerror}", "Name another one.") from None

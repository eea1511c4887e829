"""`reasond eval`: asks the questions of a set in several ways, shows how far it is, and which way is worth most."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self, TextIO

import typer

from reasond import AsyncClient
from reasond_server.cli.connection import ConnectionOptions, build_environment, convert_errors, find_target
from reasond_server.cli.options import MOST_COUNT, SHORTEST_S, Environ, command
from reasond_server.cli.outcome import ExitCode, usage_error, warn
from reasond_server.cli.terminal import choose_stream, fit_line, make_console, sanitize, write
from reasond_server.evaluation.graders import Graders, ModelJudge
from reasond_server.evaluation.items import Grader, Item, read_items
from reasond_server.evaluation.report import (
    build_report,
    choose,
    describe_comparison,
    describe_wrong,
    draw_picture,
    write_choices,
    write_markdown,
)
from reasond_server.evaluation.trials import (
    DEFAULT_ITEM_TOKENS,
    TokenBudget,
    Trials,
    open_record,
    read_way,
    require_different,
)
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from reasond_server.evaluation.report import EvalReport, Row
    from reasond_server.evaluation.trials import StrategySetup, Trial

_EVERY_S: Final = 5.0
_SHOWN_WRONG: Final = 5
_WIDTH: Final = 110
_HEAD: Final = ("", "way", "right", "share", "95 %", "tokens", "calls", "seconds", "cached", "failed")


class EvalDisplay:
    """Writes a line every few seconds: how many trials have ended, how many are right, and the tokens so far."""

    def __init__(self, stream: TextIO, wanted: int) -> None:
        self._stream = stream
        self._wanted = wanted
        self._ended = self._right = self._tokens = 0
        self._told_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._ended:
            self._write()

    def note(self, trial: Trial) -> None:
        """Count a trial that has ended."""
        self._ended += 1
        self._right += trial.is_right
        self._tokens += trial.tokens
        if time.monotonic() - self._told_s >= _EVERY_S:
            self._told_s = time.monotonic()
            self._write()

    def _write(self) -> None:
        self._stream.write(
            f"{self._ended:,} of {self._wanted:,} trials, {self._right:,} right, {self._tokens:,} tokens\n"
        )
        self._stream.flush()


def show_report(report: EvalReport, *, stream: TextIO) -> None:
    """Print the table, the picture and the first wrong answers of each way."""
    console = make_console(stream)
    for line in _align([_HEAD, *map(_list_cells, report.rows)]):
        console.print(line)
    for row in report.rows:
        if row.comparison is not None:
            against = describe_comparison(row.comparison)
            console.print(f"{row.way} against {report.rows[0].way}: {against}; p = {row.comparison.p:.2g}")
    for line in draw_picture(report.rows):
        console.print(line)
    questions = {item.item_id: item for item in report.items}
    for row in report.rows:
        wrong = [trial for trial in report.trials if trial.way == row.way and not trial.is_right]
        if wrong:
            console.print(f"wrong with {row.way}: {len(wrong):,}; `reasond executions show ID` has the steps")
        for trial in wrong[:_SHOWN_WRONG]:
            console.print(f"  {fit_line(sanitize(describe_wrong(trial, questions[trial.item_id])), _WIDTH)}")


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with columns as wide as their widest cell; figures stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for mark, way, *figures in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[2:], strict=True)]
        yield "  ".join([f"{mark:{widths[0]}}", f"{way:{widths[1]}}", *cells]).rstrip()


def _list_cells(row: Row) -> list[str]:
    return [
        f"[{row.letter}]" if row.is_efficient else row.letter,
        row.way,
        f"{row.right} of {row.n}",
        f"{row.share:.1%}",
        f"{row.interval.low:.0%}-{row.interval.high:.0%}",
        f"{row.tokens:,.0f}",
        f"{row.calls:.1f}",
        f"{row.seconds:.1f}",
        f"{row.cached_share:.0%}",
        str(row.failed) if row.failed else "",
    ]


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
    typer.Option(
        metavar="N", min=1, max=MOST_COUNT, help="Most tokens of one question in one way, where the whole is bounded."
    ),
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
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=SHORTEST_S,
        help="Longest time of one question in one way.",
        show_default="600",
    ),
]


@command(app, "eval", timeout=TimeLimit)
def evaluate(
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
    environ: Environ,
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
    require_different(request.ways)
    if len(request.ways) > _MOST_WAYS:
        raise usage_error(f"{len(request.ways)} ways are too many", f"Compare at most {_MOST_WAYS} at a time.")
    for file in filter(None, (report, choose_file)):
        # Before anything is paid.
        if not file.parent.is_dir():
            raise usage_error(f"the folder of the file {str(file)!r} does not exist", "Make it, or name another file.")
    with convert_errors(find_target(connection, environ)):
        evaluated = asyncio.run(_run(request, connection, environ))
    trials = evaluated.trials
    wanted = len(request.items) * len(request.ways) * repeats
    found = build_report(request.items, request.ways, trials, wanted=wanted)
    show_report(found, stream=choose_stream())
    if evaluated.judged_tokens:
        write(f"judging took {evaluated.judged_tokens:,} tokens more")
    if report is not None:
        facts = _list_circumstances(request, evaluated)
        _write_file(report, write_markdown(found, title=request.title, circumstances=facts))
    if choose_file is not None:
        _write_choices(choose_file, request, trials, loss=loss)
    return _tell_gaps(request, trials, wanted=wanted)


def _tell_gaps(request: EvalRequest, trials: Sequence[Trial], *, wanted: int) -> ExitCode:
    """Warn of trials that failed unspent or were not reached, and return how the command ends."""
    if unspent := [trial for trial in trials if trial.is_unspent]:
        warn(
            f"{len(unspent):,} of {wanted:,} trials failed before anything was spent, and count as wrong; run again, "
            f"the command asks them again. The first one: {unspent[0].note}"
        )
    if len(trials) < wanted:
        warn(
            f"the budget of {request.budget.most or 0:,} tokens ended after {len(trials):,} of {wanted:,} trials; "
            "with a higher --max-total-tokens the command goes on where it ended"
        )
        return ExitCode.LIMIT
    return ExitCode.FAILURE if unspent and len(unspent) == len(trials) else ExitCode.OK


@value
class EvalRequest:
    """What is asked, in which ways, within which budget, and the file of what has ended."""

    items: Sequence[Item]
    ways: Sequence[StrategySetup]
    title: str
    repeats: int
    at_once: int
    budget: TokenBudget
    record: Path
    judge: str | None


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
                on_trial=display.note,
            )
            return Evaluated(trials=await trials.run(), judged_tokens=judge.tokens, model=served)


@asynccontextmanager
async def _open_programs(items: Sequence[Item]) -> AsyncIterator[ProgramRunner]:
    """Yield what runs the tests of items: the sandbox with its self-test, opened only if some item has tests."""
    if not any(item.grader is Grader.PYTHON for item in items):
        yield NO_PROGRAMS
        return
    from reasond_server.assembly.workshops import open_python_programs  # noqa: PLC0415 - most sets need no sandbox

    async with open_python_programs() as programs:
        yield programs


def _list_circumstances(request: EvalRequest, evaluated: Evaluated) -> Sequence[str]:
    trials, model = evaluated.trials, request.ways[0].model or evaluated.model
    return (
        f"{len(request.items):,} questions, each asked {request.repeats} times in each way; model: {model}",
        f"{sum(trial.tokens for trial in trials):,} tokens, {sum(trial.calls for trial in trials):,} model calls",
    )


def _write_choices(file: Path, request: EvalRequest, trials: Sequence[Trial], *, loss: float) -> None:
    chosen, reasons = choose(request.items, request.ways, trials, loss=loss)
    for sentence in reasons:
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

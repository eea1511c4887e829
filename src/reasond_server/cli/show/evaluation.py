"""What people see of an evaluation: how far it is, and the comparison at its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from reasond_server.cli.terminal import fit_line, make_console, sanitize
from reasond_server.evaluation.report import describe_comparison, describe_wrong, draw_picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from reasond_server.evaluation.report import EvalReport, Row
    from reasond_server.evaluation.trials import Trial

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

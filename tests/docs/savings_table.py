"""The savings of bounded context by the server's own meter, as benchmarks/bounded_savings.md shows them.

No model is needed.

Every window is full and there is no material. q is the tokens of question and frame, C those of a window, m those of
the carryover. `is_prompt_inside` means that the bound of the
server holds (prompt + carryover + generated <= C); the published figures of Delethink leave the prompt outside C.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from reasond_server.context.window_accounts import SavingsMeter
from reasond_server.types import Savings, SavingsBaseline, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

QUESTION = 500
CONFIGS = ((8192, 4096), (8192, 1024), (16384, 4096), (4096, 1024), (2048, 512))
SHARES = (50.0, 90.0)
_MOST_WINDOWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The tokens that `windows` full windows write, and the savings."""

    windows: int
    written: int
    single_pass: Savings
    reprompt: Savings


def points(
    chunk_size: int, carryover_size: int, *, question: int = QUESTION, is_prompt_inside: bool = True
) -> Iterator[Point]:
    """Yield the savings of two windows, three, and so on without end."""
    meter = SavingsMeter()
    room = chunk_size - (question if is_prompt_inside else 0)
    written = 0
    for windows in count(1):
        carried = carryover_size if windows > 1 else 0
        meter.add(Usage(input_tokens=question + carried, output_tokens=room - carried, model_calls=1))
        written += room - carried
        single_pass, reprompt = (
            meter.compare(baseline, prompt_tokens=question)
            for baseline in (SavingsBaseline.SINGLE_PASS, SavingsBaseline.REPROMPT)
        )
        if single_pass is not None and reprompt is not None:
            yield Point(windows=windows, written=written, single_pass=single_pass, reprompt=reprompt)


def at(chunk_size: int, carryover_size: int, *, windows: int, is_prompt_inside: bool = True) -> Point:
    """Return the savings of so many windows."""
    found = points(chunk_size, carryover_size, is_prompt_inside=is_prompt_inside)
    return next(point for point in found if point.windows == windows)


def first_reaching(
    share: float, figure: str, chunk_size: int, carryover_size: int, *, is_prompt_inside: bool = True
) -> int | None:
    """Return the tokens written when `figure` first reaches `share` per cent; None if not within 2,000 windows.

    `figure` is "attention" or "kv_read" against a single pass, or "reprompt" for tokens against re-prompting.
    """
    for point in points(chunk_size, carryover_size, is_prompt_inside=is_prompt_inside):
        if figure_of(point, figure) >= share:
            return point.written
        if point.windows >= _MOST_WINDOWS:
            break
    return None


def figure_of(point: Point, figure: str) -> float:
    """Return one figure of a point; `first_reaching` lists the names."""
    if figure == "reprompt":
        return point.reprompt.tokens_pct
    return point.single_pass.attention_pct if figure == "attention" else point.single_pass.kv_read_pct


def threshold_rows() -> Sequence[str]:
    """Return the rows of the table of thresholds, in Markdown."""
    rows = []
    for chunk_size, carryover_size in CONFIGS:
        cells = []
        for figure in ("attention", "kv_read", "reprompt"):
            reached = [first_reaching(share, figure, chunk_size, carryover_size) for share in SHARES]
            cells.append(" / ".join("never" if one is None else f"{one / 1000:.1f}K" for one in reached))
        rows.append(f"| {chunk_size} / {carryover_size} | {' | '.join(cells)} |")
    return rows


def depth_rows() -> Sequence[str]:
    """Return the rows of the table by number of windows, in Markdown."""
    rows = []
    for chunk_size, carryover_size in CONFIGS:
        for windows in (2, 5, 10, 20, 32):
            point = at(chunk_size, carryover_size, windows=windows)
            one, again = point.single_pass, point.reprompt
            figures = (one.attention_pct, one.kv_read_pct, one.peak_context_pct, one.tokens_pct, again.tokens_pct)
            cells = " | ".join(f"{round(figure):+d}" for figure in figures)
            rows.append(f"| {chunk_size} / {carryover_size} | {windows} | {point.written:,} | {cells} |")
    return rows

"""The region of a terminal, as pyte draws it."""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.show.live import MOST_STEPS, LiveConsole, ShownProgress
from tests.screens import LIMIT_S, TerminalStream

if TYPE_CHECKING:
    from collections.abc import Callable

WIDE = "漢字かな交じり文 👩‍🚀❤️ e\u0301\u0301 " * 20


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def wait_for(stream: TerminalStream, is_drawn: Callable[[list[str]], bool]) -> list[str]:
    """Return what is drawn once it is as wanted."""
    limit = time.monotonic() + LIMIT_S
    while not is_drawn(rows := stream.draw().rows):
        assert time.monotonic() < limit, rows
    return rows


@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_the_region_has_a_row_for_each_line_whatever_the_text(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = TerminalStream(width)
    live = LiveConsole(stream)
    with live.open():
        live.print_head(f"head {WIDE}")
        live.print_remark(f"note {WIDE}")
        for number in range(9):
            live.print_step(f"{number} {WIDE}\n\x1b[2J")
        live.show_progress(ShownProgress(done=1, total=4, text="step 1 of 4", left_s=75))
        live.add_written(WIDE)
        rows = wait_for(stream, lambda rows: any("░" in row for row in rows))
        assert [row.split()[0].rstrip("…") for row in rows[:7]] == ["head", "note", "4", "5", "6", "7", "8"]
        assert len(rows) == 9
        if width >= 40:
            assert rows[8].endswith("step 1 of 4, about 1 min left")
        assert not live.settle(MOST_STEPS)
    drawn = stream.draw()
    assert drawn.rows == []
    assert drawn.has_cursor
    assert "\x1b[2J" not in stream.getvalue()


def test_the_last_steps_stay_where_nobody_has_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = TerminalStream()
    live = LiveConsole(stream)
    with live.open():
        for number in range(7):
            live.print_step(f"step {number}")
    assert stream.draw().rows == ["  (2 earlier steps)", *(f"  step {number}" for number in range(2, 7))]
    live.print_step("after it")
    assert stream.draw().rows[-1] == "after it", "a step without a region is a line"


def test_lines_that_stay_are_printed_above_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = TerminalStream()
    live = LiveConsole(stream)
    with live.open():
        live.say_now("thinking")
        wait_for(stream, lambda rows: any("thinking" in row for row in rows))
        live.print("it stays")
        rows = wait_for(stream, lambda rows: rows[-1].endswith("thinking"))
        assert rows[0] == "it stays"
    assert stream.draw().rows == ["it stays"]


def test_a_terminal_of_another_encoding_gets_characters_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = TerminalStream()
    stream.encoding = "ascii"
    live = LiveConsole(stream)
    with live.open():
        live.print_step("漢字")
        live.show_progress(ShownProgress(done=1, total=2, text="step 1 of 2"))
        rows = wait_for(stream, lambda rows: any("step 1 of 2" in row for row in rows))
        live.settle(0)
    assert rows[0] == "  ??"
    assert "###---" in rows[-1]
    assert stream.getvalue().isascii()


def test_colours_may_be_forced_into_a_file_which_cannot_be_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.StringIO()
    live = LiveConsole(stream)
    assert not live.is_live
    assert live.width is None
    with live.open():
        live.print_step("done", style="green")
    assert stream.getvalue() == "\x1b[32mdone\x1b[0m\n"

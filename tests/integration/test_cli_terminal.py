"""The commands on a real terminal, as a person sees it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.show.live import MOST_LINES
from reasond_server.testing import Reply, ScriptedModel, running_server_in_thread
from reasond_server.types import ToolCall
from tests.integration.test_cli import caller, run
from tests.screens import COMMAND, LIMIT_S, TerminalCommand, open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

QUESTION = "What is the only remedy for the confusion caused by the tremors of the air?"
OPTIONS = ("--strategy", "bounded_context", "--set", "chunk_size=2048", "--set", "carryover_size=512")
MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhl]")
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a third of the bundled book, with the answer."""
    text = resources.files("reasond_server").joinpath("demo/data/opticks.txt").read_text("utf-8")
    path = tmp_path_factory.mktemp("book") / "opticks.txt"
    path.write_text(text[-40_000:], "utf-8")
    return path


def ask_book(book: Path, *options: str) -> tuple[str, ...]:
    return ("ask", QUESTION, "--material", str(book), *OPTIONS, *options)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_run_over_a_text_leaves_its_answer_and_five_lines(
    dev_server: Mapping[str, str], book: Path, width: int
) -> None:
    with open_terminal(*ask_book(book), environ=caller(dev_server), width=width) as command:
        assert command.finish() == 0
        rows = command.drawn.rows
    assert "The only Remedy is a most serene and quiet Air" in " ".join(rows)
    end = next(place for place, row in enumerate(rows) if row.startswith("answered after "))
    lines = [row for row in rows[end:] if re.match(r"answered after|\d+ segments|against one|note: |each step: ", row)]
    assert len(lines) == 5
    assert not any(" left" in row or row.startswith("  segment") for row in rows), "the region is erased"
    assert command.drawn.has_cursor
    if width == 200:
        assert len(rows) == 6
        assert re.fullmatch(r"each step: reasond executions follow [0-9a-f]{32} --verbose", rows[-1])


def test_the_command_at_the_end_shows_each_step_again_as_where_no_terminal_is(
    dev_server: Mapping[str, str], book: Path
) -> None:
    with open_terminal(*ask_book(book), environ=caller(dev_server), width=200) as command:
        assert command.finish() == 0
    replay = command.drawn.rows[-1].partition(": reasond ")[2].split()
    piped = run(*replay, environ=caller(dev_server))
    with open_terminal(*replay, environ=caller(dev_server), width=200) as command:
        assert command.finish() == 0
    steps = [line for line in piped.stderr.splitlines() if line.startswith("read ")]
    assert len(steps) > 10
    assert [row[:60] for row in command.drawn.rows if row.startswith("read ")] == [step[:60] for step in steps]


def test_elsewhere_than_on_a_terminal_nothing_moves_whatever_colours_are_asked_for(
    dev_server: Mapping[str, str],
) -> None:
    plain = run("ask", "What is 7 times 6?", environ=caller(dev_server))
    coloured = subprocess.run(
        [*COMMAND, "ask", "What is 7 times 6?"],
        env={**os.environ, **caller(dev_server), "FORCE_COLOR": "1", "TERM": "xterm-256color"},
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert plain.stdout.encode() == coloured.stdout == b"42\n"
    assert "\x1b" not in plain.stderr
    assert COLOURS.search(coloured.stderr)
    assert not MOVES.search(coloured.stderr)
    lines = COLOURS.sub(b"", coloured.stderr).decode().splitlines()
    assert len(lines) == len(plain.stderr.splitlines())
    assert lines[0] == plain.stderr.splitlines()[0]
    assert lines[1].startswith("step 1/1 ")


def test_a_terminal_that_cannot_be_drawn_on_gets_a_line_per_step(dev_server: Mapping[str, str]) -> None:
    with open_terminal("ask", "What is 7 times 6?", environ={**caller(dev_server), "TERM": "dumb"}) as command:
        assert command.finish() == 0
    assert b"\x1b" not in command.drawn.output
    assert any(row.startswith("step 1/1") for row in command.drawn.rows)


def test_a_piped_answer_is_alone_while_the_terminal_shows_the_run(dev_server: Mapping[str, str], book: Path) -> None:
    read, written = os.pipe()
    with open_terminal(*ask_book(book), environ={**caller(dev_server), "NO_COLOR": "1"}, stdout=written) as command:
        os.close(written)
        assert command.finish() == 0
    with os.fdopen(read, encoding="utf-8") as answer:
        assert answer.read().startswith("The only Remedy is")
    assert not any(b"\x1b[3" in colour or b"\x1b[9" in colour for colour in COLOURS.findall(command.drawn.output))
    assert MOVES.search(command.drawn.output)
    assert not any("The only Remedy" in row for row in command.drawn.rows)


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[Mapping[str, str], ScriptedModel]]:
    """Yield a server whose model holds its third reply, and that model."""
    hostile = "found 漢字 and 👩‍🚀\x1b]0;owned\x07\x1b[2J\x9b31m"
    replies = [f"<continue>- {hostile}</continue>", "<continue>- four gates</continue>"]
    model = ScriptedModel([*replies, Reply(text="<answer>never</answer>", hold=asyncio.Event())])
    with running_server_in_thread(model=model) as listening:
        yield {"REASOND_TARGET": listening.grpc, "REASOND_TOKEN": listening.token}, model


def test_ctrl_c_in_the_middle_leaves_a_clean_terminal(
    held: tuple[Mapping[str, str], ScriptedModel], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Rain fell on the roofs of the town. " * 1_000, "utf-8")
    asked = ("ask", "How many gates?", "--material", str(text), *OPTIONS)

    def is_reading(command: TerminalCommand) -> bool:
        return any("read 2 of " in row for row in command.drawn.rows)

    with open_terminal(*asked, environ=held[0], width=40) as command:
        command.wait_for(is_reading)
        shown = command.drawn.rows
        assert not command.drawn.has_cursor
        command.type("\x03")
        assert command.finish() == 130
    assert any(row.startswith("  segment 1: ") and "found 漢字 and" in row for row in shown)
    assert "  segment 2: four gates" in shown
    assert re.search(r"█░+ read 2 of \d+, about \d+ s left$", next(row for row in shown if "read 2 of " in row))
    assert b"\x1b]0;" not in command.drawn.output
    assert b"\x07" not in command.drawn.output
    assert b"\x1b[2J" not in command.drawn.output
    assert command.drawn.has_cursor
    assert not any("read 2 of " in row or "█" in row for row in command.drawn.rows)
    assert any(row.startswith("cancelled after ") for row in command.drawn.rows)


@pytest.mark.parametrize("width", [40, 120])
def test_a_turn_of_several_handoffs_asks_below_what_it_has_done_and_leaves_its_answer_and_five_lines(
    width: int,
) -> None:
    asked = ToolCall(call_id="", name="current_time", arguments_json="{}")
    looks = (Reply(text=f"Look {number}.", tool_calls=(asked,)) for number in (1, 2, 3))
    model = ScriptedModel([*looks, "It is late."], has_native_tools=True)
    environ = {"REASOND__TURNS__NEEDS_APPROVAL": '["current_time"]'}
    with running_server_in_thread(model=model, environ=environ) as server:
        target = {"REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}
        with open_terminal("turn", "How late is it?", environ=target, width=width) as command:
            for number, said in ((1, "y\n"), (2, "only tomorrow, and " * 3 + "\n"), (3, "yes\n")):
                command.wait_for(partial(is_asked, call=f"c{number} approve"))
                assert command.drawn.has_cursor
                above = [row.strip() for row in command.drawn.rows[:-2]]
                assert sum(row.startswith(f"c{number} approve current_time") for row in above) == 1, "the last step"
                assert not any(row.startswith("approve?") for row in above), "an answered question is gone"
                command.type(said)
            assert command.finish() == 0
    rows = command.drawn.rows
    assert rows[0] == "It is late.", "of the steps and questions nothing is left"
    assert len(rows) <= 1 + MOST_LINES, rows
    assert rows[1].startswith("answered: 4 model calls")


def is_asked(command: TerminalCommand, *, call: str) -> bool:
    """Return whether the last question is about `call`."""
    rows = command.drawn.rows
    return len(rows) > 1 and rows[-1].startswith("approve? [y/N or why not]") and rows[-2].startswith(call)

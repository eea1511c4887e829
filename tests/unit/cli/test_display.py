from __future__ import annotations

import io
from typing import TYPE_CHECKING

from reasond import ExecutionStarted, Heartbeat, Iteration, Reasoning, ReasonIterationsResponse, TextDelta
from reasond.v1.strategies_pb2 import Thought
from reasond_server.cli.display import RunDisplay

if TYPE_CHECKING:
    import pytest

EVENTS = [
    ReasonIterationsResponse(started=ExecutionStarted(strategy="chain_of_thought", model="demo", config_json="{}")),
    ReasonIterationsResponse(delta=TextDelta(text="Let me\x1b[2J ")),
    ReasonIterationsResponse(delta=TextDelta(text="think")),
    ReasonIterationsResponse(heartbeat=Heartbeat()),
    ReasonIterationsResponse(iteration=Iteration(answer_found=True, thought=Thought(text="So [it] is."))),
]


class Terminal(io.StringIO):
    """A stream that reports that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def follow(display: RunDisplay, answer: str) -> None:
    with display.open():
        for event in EVENTS:
            display.show(event)
    result = Reasoning(answer=answer, warnings=["fixed\x1b rules"])
    display.answer(result)
    display.figures(result)


def test_elsewhere_than_on_a_terminal_there_are_plain_lines() -> None:
    stream = io.StringIO()
    display = RunDisplay(stream)
    assert not display.is_live
    follow(display, "42 [sic]")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("chain_of_thought")
    assert lines[1].endswith("answer found; So [it] is.")
    assert lines[2:5] == ["", "42 [sic]", ""]
    assert lines[-1] == "note: fixed\N{REPLACEMENT CHARACTER} rules"
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_the_text_shows_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    display = RunDisplay(stream)
    assert display.is_live
    follow(display, "")
    shown = stream.getvalue()
    assert "(no answer)" in shown
    assert "\x1b[2J" not in shown
    assert "answer found" in shown


def test_a_terminal_that_can_do_nothing_is_not_animated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not RunDisplay(Terminal()).is_live

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

from reasond import ExecutionStarted, Heartbeat, Iteration, Reasoning, ReasonIterationsResponse, TextDelta
from reasond.v1.strategies_pb2 import BoundedContextStep, ReadingProgress, Thought
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


def test_a_carryover_that_would_halve_the_calls_is_named_at_the_first_segment() -> None:
    stream = io.StringIO()
    display = RunDisplay(stream, query="When does light come?")
    config = {"chunk_size": 8192, "carryover_size": 4096, "max_segments": 512, "max_iterations": 5}
    config_json = json.dumps({**config, "carryover_mode": "hybrid", "temperature": 0.7})
    with display.open():
        display.show(
            ReasonIterationsResponse(started=ExecutionStarted(strategy="bounded_context", config_json=config_json))
        )
        for segment in (1, 2):
            reading = ReadingProgress(segment=segment, segment_count=20)
            display.show(
                ReasonIterationsResponse(iteration=Iteration(bounded_context=BoundedContextStep(reading=reading)))
            )
    notes = [line for line in stream.getvalue().splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert re.fullmatch(
        r"note: the text is read in 20 calls; with --set carryover_size=1024 about (\d+) would do, with notes of at "
        r"most 1024 tokens in place of 4096",
        notes[0],
    )


def test_a_configuration_that_is_not_known_brings_no_hint() -> None:
    stream = io.StringIO()
    display = RunDisplay(stream)
    reading = ReadingProgress(segment=1, segment_count=20)
    display.show(
        ReasonIterationsResponse(started=ExecutionStarted(strategy="of_others", config_json='{"chunk_size": 1}'))
    )
    display.show(ReasonIterationsResponse(iteration=Iteration(bounded_context=BoundedContextStep(reading=reading))))
    assert "note:" not in stream.getvalue()


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

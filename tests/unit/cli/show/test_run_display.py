from __future__ import annotations

import io
import json
import re

import pytest

from reasond import (
    ExecutionStarted,
    FinishReason,
    Heartbeat,
    Iteration,
    Metrics,
    Reasoning,
    ReasonIterationsResponse,
    TextDelta,
    Usage,
)
from reasond.v1.strategies_pb2 import BoundedContextStep, ReadingProgress, Thought
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.run import RunDisplay
from tests.screens import TerminalStream

EVENTS = [
    ReasonIterationsResponse(started=ExecutionStarted(strategy="chain_of_thought", model="demo", config_json="{}")),
    ReasonIterationsResponse(delta=TextDelta(text="Let me\x1b[2J ")),
    ReasonIterationsResponse(delta=TextDelta(text="think")),
    ReasonIterationsResponse(heartbeat=Heartbeat()),
    ReasonIterationsResponse(iteration=Iteration(answer_found=True, thought=Thought(text="So [it] is."))),
]


def follow(live: LiveConsole, answer: str, *, warnings: tuple[str, ...] = ("fixed\x1b rules",)) -> None:
    """Show a run of one step to its end, as `ask` does."""
    display = RunDisplay(live)
    usage = Usage(model_calls=1, input_tokens=1_200, output_tokens=30)
    metrics = Metrics(usage=usage, total_tokens=1_230)
    result = Reasoning(
        answer=answer, warnings=warnings, metrics=metrics, finish_reason=FinishReason.FINISH_REASON_ANSWERED
    )
    with live.open():
        for event in (*EVENTS, ReasonIterationsResponse(execution_id="e1", completed=result)):
            display.show(event)
    display.print_answer(result)
    display.print_figures(result)


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def test_a_carryover_that_would_halve_the_calls_is_named_at_the_first_segment() -> None:
    stream = io.StringIO()
    live = LiveConsole(stream)
    display = RunDisplay(live, query="When does light come?")
    config = {"chunk_size": 8192, "carryover_size": 4096, "max_segments": 512, "max_iterations": 5}
    config_json = json.dumps({**config, "carryover_mode": "hybrid", "temperature": 0.7})
    with live.open():
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
    display = RunDisplay(LiveConsole(stream))
    reading = ReadingProgress(segment=1, segment_count=20)
    display.show(
        ReasonIterationsResponse(started=ExecutionStarted(strategy="of_others", config_json='{"chunk_size": 1}'))
    )
    display.show(ReasonIterationsResponse(iteration=Iteration(bounded_context=BoundedContextStep(reading=reading))))
    assert "note:" not in stream.getvalue()


def test_elsewhere_than_on_a_terminal_there_are_plain_lines() -> None:
    stream = io.StringIO()
    live = LiveConsole(stream)
    assert not live.is_live
    follow(live, "42 [sic]")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("chain_of_thought")
    assert lines[1].endswith("answer found; So [it] is.")
    assert lines[2:5] == ["", "42 [sic]", ""]
    assert lines[5] == "answered; 1 model call, 1,230 tokens (1,200 in, 30 out), 0 ms"
    assert lines[6] == "note: fixed\N{REPLACEMENT CHARACTER} rules"
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_a_step_stays_where_five_lines_have_room_for_it() -> None:
    stream = TerminalStream()
    follow(LiveConsole(stream), "")
    assert stream.draw().rows == [
        "  step 1/1: answer found; So [it] is.",
        "(no answer)",
        "answered after 0 ms: 1 model call, 1,200 tokens read, 30 written",
        "note: fixed\N{REPLACEMENT CHARACTER} rules",
    ]
    assert "\x1b[2J" not in stream.getvalue()


def test_on_a_terminal_no_run_ends_in_more_than_five_lines() -> None:
    stream = TerminalStream()
    follow(LiveConsole(stream), "42", warnings=tuple(f"warning {number}" for number in range(9)))
    assert stream.draw().rows == [
        "42",
        "answered after 0 ms: 1 model call, 1,200 tokens read, 30 written",
        "note: warning 0",
        "note: warning 1",
        "note: warning 2 (and 6 more notes)",
        "each step: reasond executions follow e1 --verbose",
    ]


def test_a_verbose_terminal_shows_what_stands_elsewhere() -> None:
    plain, stream = io.StringIO(), TerminalStream()
    follow(LiveConsole(plain), "42")
    live = LiveConsole(stream, is_verbose=True)
    assert live.is_live
    follow(live, "42")
    assert stream.draw().rows == [line for line in plain.getvalue().splitlines() if line]


def test_a_terminal_that_can_do_nothing_is_not_animated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = TerminalStream()
    follow(LiveConsole(stream), "42")
    assert "\x1b" not in stream.getvalue()
    assert any(row.startswith("step 1/1") for row in stream.draw().rows)

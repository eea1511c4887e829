"""The numbers of events where the text of an answer is lost with its process, or taken back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.executions import CursorExpiredError
from reasond_server.protocols.responses.response_events import ResponseWriter
from reasond_server.types import (
    NOTHING,
    AnswerPlace,
    Event,
    ExecutionStarted,
    FinishReason,
    Iteration,
    Metrics,
    Result,
    StrategySource,
    StreamEvent,
    TextDelta,
    Thought,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.protocols.responses.response_events import ResponseEvent

NOW = datetime(2026, 11, 28, tzinfo=UTC)
STARTED = ExecutionStarted(strategy="direct", strategy_source=StrategySource.REQUEST, model="m", config={})


def step(answer: str, *, edition: int) -> Iteration:
    detail = Thought(text="Hm.", answer=answer)
    return Iteration(index=0, answer_found=True, usage=NOTHING, elapsed_s=0.0, detail=detail, edition=edition)


def end(answer: str, reason: FinishReason = FinishReason.ANSWERED) -> Result:
    return Result(
        execution_id="e1",
        answer=answer,
        strategy_used="direct",
        strategy_source=StrategySource.REQUEST,
        finish_reason=reason,
        metrics=Metrics(usage=NOTHING, execution_time_s=0.0),
        warnings=(),
        model="m",
    )


def delta(text: str, at: int, *, edition: int = 0) -> TextDelta:
    return TextDelta(iteration_index=0, text=text, place=AnswerPlace(at=at, thinking="Hm.", edition=edition))


def write(*events: Event | TextDelta) -> list[ResponseEvent]:
    writer = ResponseWriter({})
    logged = (StreamEvent("e1", place, NOW, event) for place, event in enumerate(events, start=1))
    return [each for one in logged for each in writer.take("e1", one)]


def number_of(event: ResponseEvent) -> int:
    number: int = event.body["sequence_number"]
    return number


def resume(events: Sequence[ResponseEvent], after: int) -> list[dict[str, Any]]:
    return [dict(body) for event in events if (body := event.after(after)) is not None]


@pytest.mark.parametrize("edition", [1, 2, 4])
def test_who_has_text_that_was_lost_is_told_so_and_nobody_else_is(edition: int) -> None:
    shown = write(STARTED, delta("It is ", 0), delta("41, I", 6), delta(" think.", 11))
    events = write(STARTED, step("It is 42.", edition=edition), end("It is 42."))

    first = next(each.first for each in shown if "delta" in each.body)
    assert first < number_of(shown[-1]) < next(each.first for each in events if "delta" in each.body)
    for event in shown[2:]:
        with pytest.raises(CursorExpiredError, match="does not count any more"):
            resume(events, number_of(event))
    for event in (*shown[:2], *events):
        rest = resume(events, number_of(event))
        assert [each["sequence_number"] for each in rest] == [
            number_of(each) for each in events if number_of(each) > number_of(event)
        ]


def test_who_reads_text_that_the_model_takes_back_is_told_so() -> None:
    with pytest.raises(CursorExpiredError):
        write(STARTED, delta("It is 41.", 0), step("It is 42.", edition=1))


def test_text_after_a_gap_comes_with_its_step() -> None:
    told = write(STARTED, delta("It is ", 0), delta("dropped before", 30), step("It is 42 ☂.", edition=0))
    assert [each.body["delta"] for each in told if "output_text.delta" in each.body["type"]] == ["It is", " 42 ☂."]
    late = write(STARTED, delta("42", 6), step("It is 42 ☂.", edition=0))
    assert [number_of(each) for each in late][-1] == number_of(told[-1])


@pytest.mark.parametrize("reason", [FinishReason.FAILED, FinishReason.CANCELLED, FinishReason.EXPIRED])
def test_an_end_without_the_step_closes_what_was_told_and_comes_after_all_of_it(reason: FinishReason) -> None:
    told = write(STARTED, delta("It is ", 0, edition=6), end("", reason))
    numbers = [number_of(each) for each in told]
    assert numbers == sorted(numbers)
    assert told[-1].body["response"]["output"][-1]["status"] == "incomplete"
    whole = write(STARTED, end("", reason))
    assert whole[-1].body["type"] == told[-1].body["type"]
    assert number_of(whole[-1]) > numbers[-5]

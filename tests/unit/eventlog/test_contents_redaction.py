import dataclasses
import typing
from collections.abc import Iterator, Sequence

import pytest

from reasond_server.eventlog.contents import redact
from reasond_server.eventlog.stored.codec import decode_event, encode_event
from reasond_server.types import (
    AnswerVotes,
    BoundedContextStep,
    CarryoverMode,
    CustomMetrics,
    CustomStep,
    Event,
    ExecutionFailure,
    ExecutionStarted,
    FinishReason,
    Heartbeat,
    Iteration,
    Json,
    LoggedEvent,
    Metrics,
    ReactStep,
    Result,
    Sample,
    SelfConsistencyMetrics,
    StageStep,
    StepDetail,
    StrategyMetrics,
    StrategySource,
    Thought,
    ToolCall,
    ToolResult,
    TreeStep,
    Usage,
)
from reasond_server.types.executions import NOT_RECORDED
from reasond_server.types.kinds import EVENTS, METRICS, STEPS, Word, list_fields
from tests.stores.logs import START

SECRET = "the secret"
DETAILS: list[StepDetail] = [
    Thought(text=SECRET, answer=SECRET),
    BoundedContextStep(
        text=SECRET,
        carryover=SECRET,
        carryover_mode=CarryoverMode.TAIL,
        carryover_tokens=3,
        carryover_generated=True,
        window_tokens=9,
        is_window_exact=True,
    ),
    ReactStep(
        thought=SECRET,
        actions=[ToolCall(call_id="c", name="t", arguments_json=SECRET)],
        observations=[ToolResult(call_id="c", result_json=SECRET)],
    ),
    TreeStep(node_id="n", parent_id="p", depth=1, thought=SECRET, score=0.5, is_pruned=False, answer=SECRET),
    Sample(text=SECRET, answer=SECRET, normalized_answer=SECRET, temperature=0.1),
    StageStep(stage="draft", text=SECRET, answer=SECRET, score=0.5),
    CustomStep(data={SECRET: SECRET}),
]


@pytest.mark.parametrize("detail", DETAILS)
def test_no_text_of_a_step_is_left_and_its_kind_and_numbers_are(detail: StepDetail) -> None:
    step = Iteration(index=4, answer_found=True, usage=Usage(input_tokens=7), elapsed_s=1.5, detail=detail)
    left = redact(step)
    assert SECRET not in repr(left)
    assert isinstance(left, Iteration)
    assert type(left.detail) is type(detail)
    assert (left.index, left.usage, left.elapsed_s) == (4, step.usage, 1.5)
    for field in dataclasses.fields(detail):
        value = getattr(detail, field.name)
        if isinstance(value, int | float):
            assert getattr(left.detail, field.name) == value


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        CustomMetrics(data={"said": SECRET}),
        SelfConsistencyMetrics(
            samples=3, votes=[AnswerVotes(answer=SECRET, votes=3)], margin=1.0, is_stopped_early=False
        ),
    ],
)
def test_a_result_keeps_its_numbers_and_says_why_it_has_no_text(metrics: StrategyMetrics | None) -> None:
    result = Result(
        execution_id="e",
        answer=SECRET,
        strategy_used="s",
        strategy_source=StrategySource.SYSTEM,
        finish_reason=FinishReason.FAILED,
        metrics=Metrics(usage=Usage(output_tokens=3), execution_time_s=2, strategy_specific=metrics),
        warnings=(SECRET,),
        model="m",
        error=ExecutionFailure(reason="MODEL_FAILED", message=SECRET),
    )
    left = redact(result)
    assert isinstance(left, Result)
    assert SECRET not in repr(left)
    assert left.warnings == (NOT_RECORDED,)
    assert left.error is not None
    assert left.error.reason == "MODEL_FAILED"
    assert left.metrics.usage == result.metrics.usage


def test_the_first_event_is_kept_as_it_is() -> None:
    event: Event = ExecutionStarted(strategy="s", strategy_source=StrategySource.SYSTEM, model="m", config={"a": 1})
    assert redact(event) is event


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A part of a new kind."""

    author: Word
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """A kind that a later release might add, with every type of text, and without declarations about them."""

    text: str
    place: Word
    count: int
    remark: Remark | None
    remarks: Sequence[Remark]
    lines: Sequence[str]
    data: Json
    maybe: str | None = None


@pytest.fixture
def declared() -> Iterator[None]:
    """Declare the new kind while the test runs."""
    STEPS.declare("new_step")(NewStep)
    yield
    del STEPS.kinds[STEPS.classes.pop("new_step")]
    STEPS.types = tuple(STEPS.kinds)


@pytest.mark.usefixtures("declared")
def test_the_texts_of_a_new_kind_are_left_out_without_a_word_about_them_and_what_is_left_can_be_stored() -> None:
    said = Remark(author="critic", text=SECRET)
    detail = NewStep(
        text=SECRET,
        place="n1",
        count=3,
        remark=said,
        remarks=(said,),
        lines=(SECRET,),
        data={SECRET: SECRET},
        maybe=SECRET,
    )
    step = Iteration(
        index=0, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=typing.cast("StepDetail", detail)
    )
    left = redact(step)
    silent = Remark(author="critic", text="")
    kept: object = left.detail
    assert kept == NewStep(text="", place="n1", count=3, remark=silent, remarks=(silent,), lines=(), data={}, maybe="")
    for event in (step, left):
        row = encode_event(LoggedEvent(sequence=1, create_time=START, event=event))
        assert decode_event(1, row).event == event
        assert '"of":"new_step"' in row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """Holds a value of a type that cannot be inspected."""

    anything: object


def test_a_field_that_could_hide_content_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Opaque\.anything is of a type that no kind may hold"):
        list_fields(Opaque)


def test_two_kinds_of_a_family_cannot_have_one_tag() -> None:
    with pytest.raises(ValueError, match="two kinds of step with the tag 'thought'"):
        STEPS.declare("thought")


def test_every_declared_kind_holds_only_what_its_annotations_can_say() -> None:
    for family in (STEPS, METRICS, EVENTS):
        for kind in family.classes.values():
            assert all(field.name for field in list_fields(kind)) or kind is Heartbeat

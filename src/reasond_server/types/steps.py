"""The steps of a run: one kind for each built-in strategy, and one for all third-party strategies."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from reasond_server.types.kinds import STEPS, FieldOptions, JsonText, Word
from reasond_server.types.values import Json, value


class CarryoverMode(StrEnum):
    """How bounded context carries progress from one window to the next."""

    HYBRID = "hybrid"
    SUMMARY = "summary"
    TAIL = "tail"


@STEPS.declare("thought", headline="text")
@value
class Thought:
    """One piece of reasoning text (chain of thought)."""

    text: str
    answer: str = ""


@value
class ReadingProgress:
    """Segment `segment` (from 1) of `segment_count` was read."""

    segment: int
    segment_count: int


@value
class Dropped:
    """What a carryover dropped: a part of the progress, such as "tail" or "facts", and its tokens."""

    part: Word
    tokens: int


@value
class CarryoverReport:
    """How the progress of a window was compressed, in tokens before and after.

    `has_own_call` means that a model call was made for the compression. `fallback_reason` says why the requested mode
    could not be used; it is empty if the mode was used.
    """

    before_tokens: int
    after_tokens: int
    dropped: Sequence[Dropped] = ()
    has_own_call: bool = False
    fallback_reason: str = ""


@STEPS.declare(
    "bounded_context",
    headline="text",
    keys=(
        "text",
        "carryover",
        "carryover_mode",
        "carryover_tokens",
        "carryover_generated",
        "is_window_exact",
        "carryover_report",
        "window_tokens",
        "reading",
    ),
)
@value
class BoundedContextStep:
    """One window of bounded context; `window_tokens` = prompt + carryover + generated.

    `carryover_report` is None if the step made no carryover.
    """

    text: str
    carryover: str
    carryover_mode: CarryoverMode
    carryover_tokens: int
    carryover_generated: bool
    window_tokens: int
    is_window_exact: bool
    reading: ReadingProgress | None = None
    carryover_report: CarryoverReport | None = None


@value
class ToolCall:
    """A call of a tool as the model wrote it.

    `arguments_json` is the text of the model, which may be invalid JSON. `extra_json` is an object of the members that
    the gateway sent beside the standard ones and wants back with the call, such as Gemini's `thought_signature`; empty
    for none. It is kept, and no client sees it.
    """

    call_id: Word
    name: Annotated[str, FieldOptions(is_content=False, wire_name="tool")]
    arguments_json: JsonText
    extra_json: Annotated[str, FieldOptions(is_stored_only=True)] = ""


@value
class ToolResult:
    """The result of a tool call as JSON text; the JSON of a failed call (`is_error`) describes the error."""

    call_id: Word
    result_json: JsonText
    is_error: bool = False


@STEPS.declare("react", headline="thought")
@value
class ReactStep:
    """One thought-action-observation cycle; `observations` answer `actions` in order."""

    thought: str
    actions: Sequence[ToolCall] = ()
    observations: Sequence[ToolResult] = ()


@STEPS.declare(
    "tree",
    headline="thought",
    trace_type="thought",
    keys=("thought", "node_id", "parent_id", "depth", "score", "is_pruned", "answer"),
)
@value
class TreeStep:
    """A judged node of the tree of thought; `score` is 0.0-1.0, the root has depth 0 and no parent."""

    node_id: Word
    parent_id: Word
    depth: int
    thought: str
    score: float
    is_pruned: bool
    answer: str = ""


@STEPS.declare("sample", headline="text")
@value
class Sample:
    """One independent sample of self-consistency; votes are counted on `normalized_answer`.

    `weight` is what its vote counts, 0.0-1.0; None if every vote counts the same.
    """

    text: str
    answer: str
    normalized_answer: str
    temperature: float
    weight: float | None = None


@STEPS.declare("stage", headline="text")
@value
class StageStep:
    """One stage of a strategy that works in stages; the strategy's page lists the names of its stages.

    `score` (0.0-1.0) is what the answer was found to be worth; None where nothing judged it.
    """

    stage: Word
    text: str
    answer: str = ""
    score: float | None = None


@STEPS.declare("custom", body="data")
@value
class CustomStep:
    """A step of a third-party strategy: any JSON object, at most 16 levels deep."""

    data: Json


StepDetail = Thought | BoundedContextStep | ReactStep | TreeStep | Sample | StageStep | CustomStep

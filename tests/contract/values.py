"""One value of every kind of step and of metrics, with no field at its default, for tests of conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig
from reasond_server.types import (
    AnswerVotes,
    BestOfNMetrics,
    BoundedContextMetrics,
    BoundedContextStep,
    CarryoverMode,
    CarryoverReport,
    ChainOfThoughtMetrics,
    ChainOfVerificationMetrics,
    CustomMetrics,
    CustomStep,
    Dropped,
    FinishReason,
    PlanAndSolveMetrics,
    ProgramOfThoughtMetrics,
    ReactMetrics,
    ReactStep,
    ReadingProgress,
    Sample,
    Savings,
    SavingsBaseline,
    ScoredAnswer,
    SelfConsistencyMetrics,
    SelfRefineMetrics,
    StageStep,
    StepDetail,
    StrategyMetrics,
    Thought,
    ToolCall,
    ToolResult,
    TreeOfThoughtMetrics,
    TreeStep,
    WindowMetrics,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import RunContext, StrategyEvent
    from reasond_server.types import Task

WINDOW: Final = BoundedContextStep(
    text="TEXT read",
    carryover="TEXT kept",
    carryover_mode=CarryoverMode.HYBRID,
    carryover_tokens=7,
    carryover_generated=True,
    window_tokens=1000,
    is_window_exact=True,
    reading=ReadingProgress(segment=2, segment_count=9),
    carryover_report=CarryoverReport(
        before_tokens=40,
        after_tokens=30,
        dropped=(Dropped(part="tail", tokens=8), Dropped(part="facts", tokens=2)),
        has_own_call=True,
        fallback_reason="TEXT the summary was empty",
    ),
)
CYCLE: Final = ReactStep(
    thought="TEXT I compute",
    actions=(
        ToolCall(call_id="c1", name="calculator", arguments_json='{"expression": "TEXT 2+2"}'),
        ToolCall(call_id="c2", name="clock", arguments_json="TEXT {not JSON"),
    ),
    observations=(
        ToolResult(call_id="c1", result_json='"TEXT 4"'),
        ToolResult(call_id="c2", result_json='{"error": "TEXT bad"}', is_error=True),
    ),
)
NODE: Final = TreeStep(
    node_id="n0.1", parent_id="n0", depth=1, thought="TEXT half", score=0.75, is_pruned=True, answer="TEXT 24"
)
SAMPLE: Final = Sample(text="TEXT thus", answer="TEXT 4.0", normalized_answer="TEXT 4", temperature=0.625, weight=0.5)
STAGE: Final = StageStep(stage="draft", text="TEXT first", answer="TEXT 4", score=0.5)
DETAILS: Final[dict[type, StepDetail]] = {
    type(detail): detail
    for detail in (
        Thought(text="TEXT so", answer="TEXT 4"),
        WINDOW,
        CYCLE,
        NODE,
        SAMPLE,
        STAGE,
        CustomStep(data={"word": "TEXT mine", "count": 3}),
    )
}
SAVINGS: Final = Savings(
    baseline=SavingsBaseline.SINGLE_PASS,
    attention_pct=40.5,
    kv_read_pct=10.0,
    tokens_pct=-3.5,
    peak_context_pct=75.0,
    is_measured=True,
)
METRICS: Final[dict[type, StrategyMetrics]] = {
    type(metrics): metrics
    for metrics in (
        ChainOfThoughtMetrics(temperature=0.5, max_tokens=300, finish_reason="stop", model="m"),
        BoundedContextMetrics(
            iterations=(
                WindowMetrics(
                    iteration=1,
                    tokens=1000,
                    has_answer=True,
                    carryover_generated=True,
                    execution_time_s=0.25,
                    is_reading=True,
                    is_only_hidden_reasoning=True,
                ),
            ),
            carryover_compressions=1,
            carryover_calls=2,
            savings=SAVINGS,
            reprompt_savings=Savings(
                baseline=SavingsBaseline.REPROMPT,
                attention_pct=60.0,
                kv_read_pct=61.0,
                tokens_pct=62.0,
                peak_context_pct=63.0,
                is_measured=True,
            ),
            capacity_tokens=24_576,
            effective_capacity_tokens=20_000,
            is_window_exact=True,
        ),
        ReactMetrics(
            total_iterations=4,
            answer_found_at_iteration=3,
            temperature=0.75,
            max_iterations=10,
            tool_calls=5,
            failed_tool_calls=1,
            corrections=2,
            masked_observations=6,
        ),
        TreeOfThoughtMetrics(
            nodes_expanded=5, nodes_evaluated=9, nodes_pruned=4, nodes_duplicate=2, depth_reached=3, best_score=0.875
        ),
        SelfConsistencyMetrics(
            samples=5,
            votes=(AnswerVotes(answer="4", votes=3), AnswerVotes(answer="5", votes=2)),
            margin=0.25,
            is_stopped_early=True,
            is_abstained=True,
            saved_samples=3,
            error_bound=0.125,
        ),
        BestOfNMetrics(
            samples=5,
            judgements=4,
            answers=(ScoredAnswer(answer="4", votes=3, score=0.75), ScoredAnswer(answer="5", votes=2, score=0.25)),
            is_abstained=True,
        ),
        SelfRefineMetrics(critiques=3, revisions=2, is_passed=True, is_repeated=True),
        PlanAndSolveMetrics(is_planned=True, plan_steps=4),
        ChainOfVerificationMetrics(questions=4, answered=3, is_revised=True),
        ProgramOfThoughtMetrics(attempts=3, failed_attempts=2, program_time_s=0.25),
        CustomMetrics(data={"rounds": 3, "names": ["a"]}),
    )
}


class Showing(ReasoningStrategy[StrategyConfig]):
    """Yields the given steps and reports the given metrics."""

    name = "showing"
    description = "Shows what it is given."
    config_type = StrategyConfig

    def __init__(self, *details: StepDetail, metrics: StrategyMetrics) -> None:
        self._details = details
        self._metrics = metrics

    async def run(self, task: Task, context: RunContext[Any]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        for detail in self._details:
            yield Step(detail=detail, answer_found=detail is self._details[-1], metrics=self._metrics)
        yield Outcome(answer="shown", finish_reason=FinishReason.ANSWERED, metrics=self._metrics)

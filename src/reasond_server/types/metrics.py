"""The metrics and savings that a strategy reports when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from reasond_server.types.kinds import METRICS, Word
from reasond_server.types.usage import Usage
from reasond_server.types.values import Json, value


class CostClass(StrEnum):
    """How the number of model calls of a strategy grows; its `cost_formula` is exact."""

    CONSTANT = "constant"
    LINEAR = "linear"
    SAMPLED = "sampled"
    SEARCH = "search"


class SavingsBaseline(StrEnum):
    """The baseline of compute savings."""

    SINGLE_PASS = "single_pass"  # noqa: S105 - a baseline, not a password
    REPROMPT = "reprompt"


@value
class Savings:
    """Compute saved against a baseline, in per cent, signed; `is_measured` means that no part of it is estimated."""

    baseline: SavingsBaseline
    attention_pct: float
    kv_read_pct: float
    tokens_pct: float
    peak_context_pct: float
    is_measured: bool = False


@METRICS.declare("chain_of_thought")
@value
class ChainOfThoughtMetrics:
    """The metrics of chain of thought; `finish_reason` is the one that the model reported."""

    temperature: float
    max_tokens: int
    finish_reason: Word
    model: Word


@value
class WindowMetrics:
    """One window of bounded context; `iteration` counts from 0 over all windows.

    `is_only_hidden_reasoning` means that the model wrote only hidden reasoning. In the last window of a run that ended
    as TRUNCATED, the hidden reasoning left no room for the answer.
    """

    iteration: int
    tokens: int
    has_answer: bool
    carryover_generated: bool
    execution_time_s: float
    is_reading: bool
    is_only_hidden_reasoning: bool = False


@METRICS.declare(
    "bounded_context",
    keys=(
        "total_iterations",
        "compute_savings_pct",
        "iterations",
        "carryover_compressions",
        "carryover_calls",
        "reading_iterations",
        "savings",
        "reprompt_savings",
        "capacity_tokens",
        "effective_capacity_tokens",
        "is_window_exact",
        "peak_window_tokens",
    ),
)
@value
class BoundedContextMetrics:
    """The metrics of bounded context; `context.window_plan` explains how the two capacities, in tokens, are computed.

    The baseline of `savings` is one pass; that of `reprompt_savings` sends the whole history again in every window.
    """

    iterations: Sequence[WindowMetrics]
    carryover_compressions: int
    savings: Savings | None
    reprompt_savings: Savings | None = None
    carryover_calls: int = 0
    capacity_tokens: int
    effective_capacity_tokens: int
    is_window_exact: bool

    @property
    def total_iterations(self) -> int:
        """Number of all windows, with those that read material."""
        return len(self.iterations)

    @property
    def reading_iterations(self) -> int:
        """Number of windows that read material."""
        return sum(window.is_reading for window in self.iterations)

    @property
    def peak_window_tokens(self) -> int:
        """Tokens of the largest window of the run."""
        return max((window.tokens for window in self.iterations), default=0)

    @property
    def compute_savings_pct(self) -> float:
        """The attention saved in per cent, 0 if one window was enough; the older name of `savings.attention_pct`."""
        return self.savings.attention_pct if self.savings else 0.0


@METRICS.declare("react")
@value
class ReactMetrics:
    """The metrics of ReAct; `corrections` counts replies that broke the protocol and were requested again.

    `failed_tool_calls` counts calls in which a tool failed; refused calls, which are mistakes of the model, do not
    count.
    """

    total_iterations: int
    answer_found_at_iteration: int | None
    temperature: float
    max_iterations: int
    tool_calls: int
    failed_tool_calls: int = 0
    corrections: int = 0
    masked_observations: int = 0


@METRICS.declare("tree_of_thought")
@value
class TreeOfThoughtMetrics:
    """The metrics of tree of thought; `best_score` is the score of the chosen leaf, 0.0-1.0."""

    nodes_expanded: int
    nodes_evaluated: int
    nodes_pruned: int
    nodes_duplicate: int
    depth_reached: int
    best_score: float


@value
class AnswerVotes:
    """Votes for one normalised answer."""

    answer: str
    votes: int


@METRICS.declare("self_consistency")
@value
class SelfConsistencyMetrics:
    """The metrics of self-consistency: votes by answer, most first; the winner's lead as a share of the samples.

    `saved_samples` are those that were not needed. `error_bound` bounds the probability that all samples would have
    chosen another winner, 0.0-1.0; 0 if that is impossible.
    """

    samples: int
    votes: Sequence[AnswerVotes]
    margin: float
    is_stopped_early: bool
    is_abstained: bool = False
    saved_samples: int = 0
    error_bound: float = 0.0


@value
class ScoredAnswer:
    """One normalised answer with the samples that gave it; `score` is its best score, None if nothing judged it."""

    answer: str
    votes: int
    score: float | None = None


@METRICS.declare("best_of_n")
@value
class BestOfNMetrics:
    """The metrics of best of n: its answers, the best first."""

    samples: int
    judgements: int
    answers: Sequence[ScoredAnswer]
    is_abstained: bool = False


@METRICS.declare("self_refine")
@value
class SelfRefineMetrics:
    """The metrics of self-refine: its calls after the draft, and whether it ended with a critique that found nothing.

    `is_repeated` says that it ended with a revision whose answer was there before.
    """

    critiques: int
    revisions: int
    is_passed: bool
    is_repeated: bool = False


@METRICS.declare("plan_and_solve")
@value
class PlanAndSolveMetrics:
    """The metrics of plan and solve; `plan_steps` counts the lines of the plan that begin with a number or a bullet."""

    is_planned: bool
    plan_steps: int


@METRICS.declare("chain_of_verification")
@value
class ChainOfVerificationMetrics:
    """The metrics of chain of verification; `is_revised`: the answer differs from that of the draft."""

    questions: int
    answered: int
    is_revised: bool


@METRICS.declare("program_of_thought")
@value
class ProgramOfThoughtMetrics:
    """The metrics of program of thought; `program_time_s` is the time of all programs together."""

    attempts: int
    failed_attempts: int
    program_time_s: float


@METRICS.declare("custom", body="data")
@value
class CustomMetrics:
    """The metrics of a third-party strategy: any JSON object, at most 16 levels deep."""

    data: Json


StrategyMetrics = (
    ChainOfThoughtMetrics
    | BoundedContextMetrics
    | ReactMetrics
    | TreeOfThoughtMetrics
    | SelfConsistencyMetrics
    | BestOfNMetrics
    | SelfRefineMetrics
    | PlanAndSolveMetrics
    | ChainOfVerificationMetrics
    | ProgramOfThoughtMetrics
    | CustomMetrics
)


@value
class Metrics:
    """The metrics of every run, and those of its strategy only (None before its first step)."""

    usage: Usage
    execution_time_s: float
    strategy_specific: StrategyMetrics | None = None

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.usage.total_tokens

"""What a strategy reports at its end, and what it saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from reasond_server.types.tasks import Json
from reasond_server.types.usage import Usage


class CostClass(StrEnum):
    """How the model calls of a strategy grow; its `cost_formula` says it exactly."""

    CONSTANT = "constant"
    LINEAR = "linear"
    SAMPLED = "sampled"
    SEARCH = "search"


class SavingsBaseline(StrEnum):
    """What compute savings are measured against."""

    SINGLE_PASS = "single_pass"  # noqa: S105 - a way of thinking, no password
    REPROMPT = "reprompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Compute saved against a baseline in per cent, signed, from measured usage."""

    baseline: SavingsBaseline
    attention_pct: float
    kv_read_pct: float
    tokens_pct: float
    peak_context_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOfThoughtMetrics:
    """What chain of thought reports; `finish_reason` is the model's own word."""

    temperature: float
    max_tokens: int
    finish_reason: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMetrics:
    """One window of bounded context; `iteration` counts from 0 over all windows."""

    iteration: int
    tokens: int
    has_answer: bool
    carryover_generated: bool
    execution_time_s: float
    is_reading: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedContextMetrics:
    """What bounded context reports; `context.windows` says how the two capacities, in tokens, are worked out.

    `savings` compare with one pass, `reprompt_savings` with sending the whole history again in every window.
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
        """Windows in all, reading included."""
        return len(self.iterations)

    @property
    def reading_iterations(self) -> int:
        """Windows that read material."""
        return sum(window.is_reading for window in self.iterations)

    @property
    def peak_window_tokens(self) -> int:
        """The largest window of the run."""
        return max((window.tokens for window in self.iterations), default=0)

    @property
    def compute_savings_pct(self) -> float:
        """The attention saved, 0 where one window was enough; the older name of `savings.attention_pct`."""
        return self.savings.attention_pct if self.savings else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactMetrics:
    """What ReAct reports; `corrections` are replies that broke the protocol and were asked for again."""

    total_iterations: int
    answer_found_at_iteration: int | None
    temperature: float
    max_iterations: int
    tool_calls: int
    failed_tool_calls: int = 0
    corrections: int = 0
    masked_observations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThoughtMetrics:
    """What tree of thought reports; `best_score` is that of the chosen leaf, 0.0-1.0."""

    nodes_expanded: int
    nodes_evaluated: int
    nodes_pruned: int
    nodes_duplicate: int
    depth_reached: int
    best_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVotes:
    """Votes for one normalised answer."""

    answer: str
    votes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfConsistencyMetrics:
    """What self-consistency reports: votes by answer, most first, and the winner's lead as a share of them."""

    samples: int
    votes: Sequence[AnswerVotes]
    margin: float
    is_stopped_early: bool
    is_abstained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomMetrics:
    """Metrics of a third party's strategy: any JSON object, at most 16 levels deep."""

    data: Json


StrategyMetrics = (
    ChainOfThoughtMetrics
    | BoundedContextMetrics
    | ReactMetrics
    | TreeOfThoughtMetrics
    | SelfConsistencyMetrics
    | CustomMetrics
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What every run reports, and what only its strategy does (None before its first step)."""

    usage: Usage
    execution_time_s: float
    strategy_specific: StrategyMetrics | None = None

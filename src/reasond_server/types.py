"""The values of the domain: tasks, steps, usage, events and results; no behaviour beyond arithmetic.

Times are aware datetimes in UTC, durations are seconds (`_s`), counts of tokens are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

Json = Mapping[str, Any]


class StrategySource(StrEnum):
    """Which level chose the strategy."""

    REQUEST = "request"
    AGENT = "agent"
    SYSTEM = "system"


class FinishReason(StrEnum):
    """How an execution ended; the comments of execution.proto explain each."""

    ANSWERED = "answered"
    ANSWERED_UNTAGGED = "answered_untagged"
    MAX_ITERATIONS = "max_iterations"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TRUNCATED = "truncated"
    CONTENT_FILTERED = "content_filtered"
    CANCELLED = "cancelled"
    FAILED = "failed"


class UsageSource(StrEnum):
    """Where token counts come from."""

    REPORTED = "reported"
    ESTIMATED = "estimated"
    PARTIAL = "partial"


class ExecutionState(StrEnum):
    """Whether an execution still runs, and if not, how it fared."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CarryoverMode(StrEnum):
    """How bounded context carries progress from one window to the next."""

    HYBRID = "hybrid"
    SUMMARY = "summary"
    TAIL = "tail"


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
class Budget:
    """Bounds on one execution; None sets no bound."""

    max_total_tokens: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_elapsed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a client asks to be worked out; text limits are checked by `reasoning.requests`.

    `config` holds only what the request set. `agent_capabilities` can only narrow the choice.
    """

    query: str
    material: str = ""
    strategy: str | None = None
    config: Json = field(default_factory=dict)
    agent: str | None = None
    agent_capabilities: Sequence[str] = ()
    budget: Budget = field(default_factory=Budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and calls that were spent; addable."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    model_calls: int = 0
    source: UsageSource = UsageSource.REPORTED

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            model_calls=self.model_calls + other.model_calls,
            source=_joined(self, other),
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            cached_input_tokens=self.cached_input_tokens - other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens - other.reasoning_tokens,
            model_calls=self.model_calls - other.model_calls,
            source=self.source,
        )


def _joined(one: Usage, other: Usage) -> UsageSource:
    """Return where the sum of two usages comes from; a usage without calls has no say."""
    if not one.model_calls:
        return other.source
    if not other.model_calls or one.source is other.source:
        return one.source
    return UsageSource.PARTIAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """One piece of reasoning text (chain of thought)."""

    text: str
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """Segment `segment` (from 1) of `segment_count` was read."""

    segment: int
    segment_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What a carryover left behind: a part of the progress, such as "tail" or "facts", and its tokens."""

    part: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryoverReport:
    """How a window's progress was compressed, in tokens before and after.

    `has_own_call` tells that a model call was made for it; `fallback_reason` why the mode that was asked for
    could not be kept, empty where it was.
    """

    before_tokens: int
    after_tokens: int
    dropped: Sequence[Dropped] = ()
    has_own_call: bool = False
    fallback_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedContextStep:
    """One window of bounded context; `window_tokens` = prompt + carryover + generated.

    `carryover_report` is None where the step made no carryover.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool as the model made it.

    `arguments_json` is JSON text exactly as the model wrote it, which need not be valid.
    """

    call_id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What came of a tool call, as JSON text; of a failed one (`is_error`) the JSON says what was wrong."""

    call_id: str
    result_json: str
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactStep:
    """One thought-action-observation cycle; `observations` answer `actions` in order."""

    thought: str
    actions: Sequence[ToolCall] = ()
    observations: Sequence[ToolResult] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStep:
    """A node of the tree of thought that was judged; `score` is 0.0-1.0, the root has depth 0 and no parent."""

    node_id: str
    parent_id: str
    depth: int
    thought: str
    score: float
    is_pruned: bool
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One independent sample of self-consistency; votes are counted on `normalized_answer`."""

    text: str
    answer: str
    normalized_answer: str
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomStep:
    """A step of a third party's strategy: any JSON object, at most 16 levels deep."""

    data: Json


StepDetail = Thought | BoundedContextStep | ReactStep | TreeStep | Sample | CustomStep


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStarted:
    """The first event of every log; `config` is what applies after precedence."""

    strategy: str
    strategy_source: StrategySource
    model: str
    config: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One completed step; `index` counts from 0."""

    index: int
    answer_found: bool
    usage: Usage
    elapsed_s: float
    detail: StepDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text that the model just wrote in step `iteration_index`; never logged."""

    iteration_index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Nothing happened for a while; never logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFailure:
    """Why an execution failed, as it is kept: a reason of errors.proto and the message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The last event of every log; the proto calls it Reasoning. Steps are read from the log.

    `finish_reason` is None only in the partial result of an execution that still runs.
    """

    execution_id: str
    answer: str
    strategy_used: str
    strategy_source: StrategySource
    finish_reason: FinishReason | None
    metrics: Metrics
    warnings: Sequence[str]
    model: str
    error: ExecutionFailure | None = None


Event = ExecutionStarted | Iteration | Result


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """An event at its place in the log; `sequence` counts from 1 without gaps."""

    sequence: int
    create_time: datetime
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """What a stream carries; deltas and heartbeats repeat the sequence of the last logged event."""

    execution_id: str
    sequence: int
    create_time: datetime
    event: Event | TextDelta | Heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution without its content; the owner is the tenant that started it."""

    execution_id: str
    tenant: str
    state: ExecutionState
    strategy: str
    strategy_source: StrategySource
    model: str
    create_time: datetime
    request_id: str = ""
    finish_reason: FinishReason | None = None
    end_time: datetime | None = None
    expire_time: datetime | None = None
    last_sequence: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls, from the verified token: never from a field of the request."""

    subject: str
    tenant: str
    permissions: frozenset[str]

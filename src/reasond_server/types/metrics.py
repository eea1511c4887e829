"""The metrics and savings that a strategy reports when it ends."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, overload

from reasond_server.types.kinds import METRICS, Word
from reasond_server.types.tasks import Json
from reasond_server.types.usage import Usage
from reasond_server.types.values import value

_MOST_TOKENS: Final = 2**53 - 1
_MOST_SECONDS: Final = 10**9


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """Compute saved against a baseline, in per cent, signed; `is_measured` means that no part of it is estimated."""

    baseline: SavingsBaseline
    attention_pct: float
    kv_read_pct: float
    tokens_pct: float
    peak_context_pct: float
    is_measured: bool = False


@METRICS.declare("chain_of_thought")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOfThoughtMetrics:
    """The metrics of chain of thought; `finish_reason` is the one that the model reported."""

    temperature: float
    max_tokens: int
    finish_reason: Word
    model: Word


@dataclass(frozen=True, slots=True, kw_only=True)
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


class WindowLines(Sequence[WindowMetrics]):
    """The metrics of the windows so far, packed: 17 bytes per window; a `WindowMetrics` object takes about 150.

    An instance never changes: `plus` returns one with one more window, which shares the arrays of this instance. If
    `plus` was called on this instance before, the arrays are copied. `iteration` is the position of the window.
    """

    __slots__ = ("_flags", "_seconds", "_size", "_tokens")

    def __init__(self) -> None:
        self._size = 0
        self._tokens = array("q")
        self._seconds = array("d")
        self._flags = bytearray()

    def plus(
        self,
        *,
        tokens: int,
        has_answer: bool,
        carryover_generated: bool,
        execution_time_s: float,
        is_reading: bool,
        is_only_hidden_reasoning: bool = False,
    ) -> WindowLines:
        """Return these windows and one more. Raises ValueError for a number that no transport can carry."""
        if not (0 <= tokens <= _MOST_TOKENS and 0 <= execution_time_s <= _MOST_SECONDS):
            raise ValueError(f"no window has {tokens!r} tokens or lasts {execution_time_s!r} s")
        longer = WindowLines()
        is_last = self._size == len(self._flags)
        longer._tokens = self._tokens if is_last else self._tokens[: self._size]
        longer._seconds = self._seconds if is_last else self._seconds[: self._size]
        longer._flags = self._flags if is_last else self._flags[: self._size]
        longer._tokens.append(tokens)
        longer._seconds.append(execution_time_s)
        longer._flags.append(has_answer | carryover_generated << 1 | is_reading << 2 | is_only_hidden_reasoning << 3)
        longer._size = self._size + 1
        return longer

    def __len__(self) -> int:
        """Return the number of windows."""
        return self._size

    @overload
    def __getitem__(self, index: int) -> WindowMetrics: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WindowMetrics]: ...
    def __getitem__(self, index: int | slice) -> WindowMetrics | Sequence[WindowMetrics]:
        """Return a new `WindowMetrics`, or a tuple of them for a slice."""
        places = range(self._size)[index]
        return self._line(places) if isinstance(places, int) else tuple(map(self._line, places))

    def __eq__(self, other: object) -> bool:
        """Return whether `other`, packed or not, holds the same windows."""
        if not isinstance(other, WindowLines | tuple | list):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """Return the hash of a tuple of the same windows."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Return the windows as a tuple inside `WindowLines(...)`."""
        return f"WindowLines({tuple(self)!r})"

    def _line(self, place: int) -> WindowMetrics:
        flags = self._flags[place]
        return WindowMetrics(
            iteration=place,
            tokens=self._tokens[place],
            has_answer=bool(flags & 1),
            carryover_generated=bool(flags & 2),
            execution_time_s=self._seconds[place],
            is_reading=bool(flags & 4),
            is_only_hidden_reasoning=bool(flags & 8),
        )


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
@dataclass(frozen=True, slots=True, kw_only=True)
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
@dataclass(frozen=True, slots=True, kw_only=True)
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
@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOfThoughtMetrics:
    """The metrics of tree of thought; `best_score` is the score of the chosen leaf, 0.0-1.0."""

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


@METRICS.declare("self_consistency")
@dataclass(frozen=True, slots=True, kw_only=True)
class SelfConsistencyMetrics:
    """The metrics of self-consistency: votes by answer, most first; the winner's lead as a share of the samples."""

    samples: int
    votes: Sequence[AnswerVotes]
    margin: float
    is_stopped_early: bool
    is_abstained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswer:
    """One normalised answer with the samples that gave it; `score` is its best score, None if nothing judged it."""

    answer: str
    votes: int
    score: float | None = None


@METRICS.declare("best_of_n")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfNMetrics:
    """The metrics of best of n: its answers, the best first."""

    samples: int
    judgements: int
    answers: Sequence[ScoredAnswer]
    is_abstained: bool = False


@METRICS.declare("self_refine")
@dataclass(frozen=True, slots=True, kw_only=True)
class SelfRefineMetrics:
    """The metrics of self-refine: its calls after the draft, and whether it ended with a critique that found nothing.

    `is_repeated` says that it ended with a revision whose answer was there before.
    """

    critiques: int
    revisions: int
    is_passed: bool
    is_repeated: bool = False


@METRICS.declare("plan_and_solve")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndSolveMetrics:
    """The metrics of plan and solve; `plan_steps` counts the lines of the plan that begin with a number or a bullet."""

    is_planned: bool
    plan_steps: int


@METRICS.declare("chain_of_verification")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOfVerificationMetrics:
    """The metrics of chain of verification; `is_revised`: the answer differs from that of the draft."""

    questions: int
    answered: int
    is_revised: bool


@METRICS.declare("program_of_thought")
@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOfThoughtMetrics:
    """The metrics of program of thought; `program_time_s` is the time of all programs together."""

    attempts: int
    failed_attempts: int
    program_time_s: float


@METRICS.declare("custom", body="data")
@dataclass(frozen=True, slots=True, kw_only=True)
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

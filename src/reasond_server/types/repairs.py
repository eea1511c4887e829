"""Repairs: the events of their logs, and what clients send and get.

A repair generates candidates, judges each by checks that really run, and returns a patch. Its state is the fold of its
events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from reasond_server.types.executions import (
    NOT_RECORDED,
    Event,
    Execution,
    ExecutionFailure,
    FinishReason,
    LastEvent,
    TextDelta,
    write_headline,
)
from reasond_server.types.kinds import EVENTS, NOT_CONTENT, FieldOptions, Word
from reasond_server.types.tasks import Budget
from reasond_server.types.usage import Usage
from reasond_server.types.values import Json, value


class RepairGoal(StrEnum):
    """What is wanted: a patch that makes failing checks pass, or a plan."""

    FIX = "fix"
    PLAN = "plan"


class CheckRole(StrEnum):
    """What a check is for: to show the fault, to hold what works, or to judge the winner alone."""

    REPRODUCE = "reproduce"
    REGRESSION = "regression"
    HELD_OUT = "held_out"


class ResultFormat(StrEnum):
    """How a check reports the outcome of its tests."""

    JUNIT = "junit"
    GO_JSON = "go_json"
    TAP = "tap"
    EXIT_CODE = "exit_code"


class CheckStatus(StrEnum):
    """How a check ended; UNKNOWN is no statement about the code."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNKNOWN = "unknown"


class TestOutcome(StrEnum):
    """The outcome of one test; a test that a check should have run and did not is MISSING."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    MISSING = "missing"


class CandidateStatus(StrEnum):
    """What became of a reply: a candidate to judge, an unusable one, or one that was there before."""

    PROPOSED = "proposed"
    INVALID = "invalid"
    DUPLICATE = "duplicate"


class CandidateVerdict(StrEnum):
    """What the critics say of a candidate; UNKNOWN is no statement about it."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How bad a finding is."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Verification(StrEnum):
    """What a patch was checked with: nothing, the checks that the search saw, or checks that it never saw."""

    NONE = "none"
    VISIBLE_ONLY = "visible_only"
    HELD_OUT = "held_out"


_CHECKED = MappingProxyType(
    {
        Verification.NONE: "not checked",
        Verification.VISIBLE_ONLY: "by the checks that it saw",
        Verification.HELD_OUT: "by checks that it never saw",
    }
)


class SandboxLevel(StrEnum):
    """What holds the code of candidates; OFF runs none of it."""

    BWRAP = "bwrap"
    LANDLOCK = "landlock"
    OFF = "off"


class RepairSearch(StrEnum):
    """How candidates are searched; docs/guides/repair.md compares them."""

    REFINE_BEAM = "refine_beam"
    LATS = "lats"
    GREEDY = "greedy"
    BEST_OF_N = "best_of_n"
    TOURNAMENT = "tournament"


@value
class Check:
    """A command whose result says whether code works; either `argv` or the name of a `command` of the server.

    Without a `format` that of the environment applies; `timeout_s` 0 means the limit derived from the baseline.
    """

    name: Word
    role: CheckRole
    argv: Sequence[str] = ()
    command: Word = ""
    format: ResultFormat | None = None
    timeout_s: float = 0.0


@value
class Finding:
    """A finding of static analysis; `line` counts from 1, 0 means the whole file."""

    rule_id: Word
    severity: Severity
    path: str
    line: int
    message: str


@value
class SuiteOutcome:
    """The outcome of a suite of tests that the client ran itself; `coverage` in percent."""

    suite_name: str
    is_passed: bool
    coverage: float = 0.0


@value
class CriticReport:
    """What the client already knows of the fault: findings, and outcomes of test suites."""

    issues: Sequence[Finding] = ()
    test_outcomes: Sequence[SuiteOutcome] = ()


@value
class RepairTask:
    """What is to be repaired or planned.

    Either `files` or `snapshot_id` holds the code. `config` are parameters by name, over those of the server.
    `editable` are glob patterns of protected files that candidates may change all the same.
    """

    description: str = ""
    goal: RepairGoal = RepairGoal.FIX
    files: Sequence[SourceFile] = ()
    snapshot_id: str = ""
    environment: str = ""
    checks: Sequence[Check] = ()
    report: CriticReport = field(default_factory=CriticReport)
    editable: Sequence[str] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)


@value
class CheckReport:
    """How one check ended: counts of tests, the ids of those that failed or are missing, and what it printed.

    `total` 0 means that the check reports no single tests. `failed` holds at most 100 ids, `evidence` at most 8 KiB.
    """

    name: Word
    role: CheckRole
    status: CheckStatus
    total: int = 0
    passed: int = 0
    failed: Sequence[str] = ()
    evidence: str = ""
    exit_code: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0


@value
class CandidateScore:
    """The score of a candidate, 0-100."""

    candidate_id: Word
    score: float


@value
class CandidateVote:
    """The weight of a candidate: the share of candidates that behave like it, times its evidence (0-1)."""

    candidate_id: Word
    weight: float
    cluster_size: int
    evidence: float


@value
class ReflectionIteration:
    """One round of the search: its candidates with their scores. `iteration` counts from 1."""

    iteration: int
    candidate_ids: Sequence[Word]
    critic_scores: Sequence[CandidateScore]
    selected_candidate_id: Word = ""
    notes: str = ""


@value
class VoteResult:
    """The vote among all candidates, the best first; `criteria` names what decided."""

    votes: Sequence[CandidateVote]
    criteria: Sequence[Word] = ()


@value
class RankedPatch:
    """A patch that applies; the result ranks the best ones, the winner first."""

    candidate_id: Word
    patch: str
    score: float
    verification: Verification


@EVENTS.declare("repair_started", wire_tag="started")
@value
class RepairStarted(Event):
    """The first event of a repair; `config` are all parameters as they apply."""

    goal: RepairGoal
    model: Word
    environment: Word
    level: SandboxLevel
    snapshot_id: Word
    config: Annotated[Json, NOT_CONTENT]


@EVENTS.declare("repair_baseline", wire_tag="baseline")
@value
class BaselineStep(Event):
    """How the checks end on the original code; `flaky` are tests that differed in two runs, and do not count."""

    is_reproduced: bool
    elapsed_s: float
    reports: Sequence[CheckReport] = ()
    flaky: Sequence[str] = ()


@EVENTS.declare("repair_candidate", wire_tag="candidate", headline="code_or_plan")
@value
class CandidateStep(Event):
    """One candidate: a unified diff or a plan. `problem` says why an INVALID one cannot be used.

    `reflection_depth` is its distance from the original, at least 1; `parent_id` is empty for a candidate made from
    the original.
    """

    candidate_id: Word
    parent_id: Word
    reflection_depth: int
    status: CandidateStatus
    usage: Usage
    elapsed_s: float
    thought: str = ""
    code_or_plan: str = ""
    problem: str = ""


@EVENTS.declare("repair_critique", wire_tag="critique")
@value
class CritiqueStep(Event):
    """What the critics say of a candidate; `signature` is equal for candidates that behave alike."""

    candidate_id: Word
    verdict: CandidateVerdict
    score: float
    is_accepted: bool
    elapsed_s: float
    reports: Sequence[CheckReport] = ()
    findings: Sequence[Finding] = ()
    signature: Word = ""


@EVENTS.declare("repair_reflection", wire_tag="reflection")
@value
class ReflectionStep(Event):
    """A round of the search has ended."""

    reflection: ReflectionIteration


@EVENTS.declare("repair_vote", wire_tag="vote")
@value
class VoteStep(Event):
    """The candidates were voted on."""

    vote: VoteResult


@EVENTS.declare("repair_validation", wire_tag="validation")
@value
class ValidationStep(Event):
    """Whether the patch of a candidate applies, and what the checks say that the search never saw."""

    candidate_id: Word
    is_valid: bool
    verification: Verification
    problem: str = ""
    reports: Sequence[CheckReport] = ()


@EVENTS.declare("repair_completed", wire_tag="completed")
@value
class Repair(LastEvent):
    """The last event of a repair.

    `patch` is a unified diff against the original, or the plan. It is given even if `is_accepted` is false; `warnings`
    say why. `checks` and `check_cpu_s` count what the critics ran. `suspect_lines` are those of the patch
    that could mislead checks.
    """

    execution_id: Word
    goal: RepairGoal
    patch: str
    is_accepted: bool
    verification: Verification
    level: SandboxLevel
    finish_reason: FinishReason
    model: Word
    usage: Usage
    elapsed_s: float
    final_candidate_id: Word = ""
    total_iterations: int = 0
    checks: int = 0
    check_cpu_s: float = 0.0
    vote: VoteResult | None = None
    ranking: Sequence[RankedPatch] = ()
    reflection_summary: Sequence[ReflectionIteration] = ()
    warnings: Annotated[Sequence[str], FieldOptions(instead=(NOT_RECORDED,))] = ()
    error: ExecutionFailure | None = None
    suspect_lines: Sequence[Finding] = ()

    @property
    def headline(self) -> str:
        """Whether it found a patch, and what that was checked with; or the error."""
        if self.error is not None:
            return self.error.headline
        if self.goal is RepairGoal.PLAN:
            return write_headline(self.patch)
        return f"patch accepted, {_CHECKED[self.verification]}" if self.is_accepted else "no patch was accepted"


@value
class RepairView:
    """A repair for callers: its execution, and how it ended; None before that.

    `task` is what was asked for, with its parameters as they apply; None where it is not kept.
    """

    execution: Execution
    repair: Repair | None = None
    task: RepairTask | None = None


@value
class EnvironmentInfo:
    """An environment for callers."""

    name: str
    format: ResultFormat
    description: str


@value
class EnvironmentList:
    """The environments by name, the level of the sandbox, and the names of the server's commands."""

    environments: Sequence[EnvironmentInfo]
    level: SandboxLevel
    commands: Sequence[str]


@EVENTS.declare("repair_delta", wire_tag="delta", is_logged=False)
@value
class RepairDelta(TextDelta):
    """Text that the model has just written; `iteration_index` counts the replies of the repair from 0."""


@value
class SourceFile:
    """A file with its content; `path` is relative, with slashes."""

    path: str
    content: bytes
    is_executable: bool = False


@value
class FileEntry:
    """A file of a manifest without its content; `digest` is the SHA-256 of the content in hexadecimal digits."""

    path: str
    digest: str
    size_bytes: int
    is_executable: bool = False


@value
class Snapshot:
    """A manifest that the server keeps; `snapshot_id` is derived from it, so equal manifests have one id.

    `missing` are the digests of the contents that the server does not have yet, each once.
    """

    snapshot_id: str
    entries: Sequence[FileEntry]
    create_time: datetime
    expire_time: datetime
    missing: Sequence[str] = ()

    @property
    def file_count(self) -> int:
        """The number of files."""
        return len(self.entries)

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.size_bytes for entry in self.entries)

"""A repair with every event, no field of which has its default, and a scripted service that records its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from reasond_server.repair.service.repair_service import RepairService
from reasond_server.types import (
    Execution,
    ExecutionFailure,
    ExecutionState,
    FinishReason,
    Heartbeat,
    StrategySource,
    StreamEvent,
    Usage,
    UsageSource,
)
from reasond_server.types.repairs import (
    BaselineStep,
    CandidateScore,
    CandidateStatus,
    CandidateStep,
    CandidateVerdict,
    CandidateVote,
    CheckReport,
    CheckRole,
    CheckStatus,
    CritiqueStep,
    EnvironmentInfo,
    EnvironmentList,
    FileEntry,
    Finding,
    RankedPatch,
    ReflectionIteration,
    ReflectionStep,
    Repair,
    RepairDelta,
    RepairGoal,
    RepairStarted,
    RepairView,
    ResultFormat,
    SandboxLevel,
    Severity,
    Snapshot,
    ValidationStep,
    Verification,
    VoteResult,
    VoteStep,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.types import Principal

START: Final = datetime(2026, 11, 23, 12, 0, 0, 123_000, tzinfo=UTC)
STAMP: Final = "2026-11-23T12:00:00.123000Z"
USAGE: Final = Usage(
    input_tokens=120,
    output_tokens=30,
    cached_input_tokens=20,
    reasoning_tokens=5,
    model_calls=1,
    source=UsageSource.PARTIAL,
    cost_usd=0.25,
)
REPORT: Final = CheckReport(
    name="tests",
    role=CheckRole.HELD_OUT,
    status=CheckStatus.TIMED_OUT,
    total=9,
    passed=7,
    failed=("test_a", "test_b"),
    evidence="TEXT AssertionError",
    exit_code=137,
    elapsed_s=1.5,
    cpu_s=0.75,
)
ITERATION: Final = ReflectionIteration(
    iteration=2,
    candidate_ids=("c1", "c2"),
    critic_scores=(CandidateScore(candidate_id="c1", score=62.5),),
    selected_candidate_id="c2",
    notes="TEXT one candidate is better",
)
VOTE: Final = VoteResult(
    votes=(CandidateVote(candidate_id="c2", weight=0.5, cluster_size=2, evidence=0.75),), criteria=("score",)
)
REPAIR: Final = Repair(
    execution_id="repair-1",
    goal=RepairGoal.FIX,
    patch="--- a/a.py\n+++ b/a.py\n",
    is_accepted=True,
    verification=Verification.HELD_OUT,
    level=SandboxLevel.LANDLOCK,
    finish_reason=FinishReason.ANSWERED,
    model="scripted",
    usage=USAGE,
    elapsed_s=12.25,
    final_candidate_id="c2",
    total_iterations=2,
    checks=14,
    check_cpu_s=9.5,
    vote=VOTE,
    ranking=(RankedPatch(candidate_id="c2", patch="TEXT", score=97.5, verification=Verification.VISIBLE_ONLY),),
    reflection_summary=(ITERATION,),
    warnings=("one warning",),
    error=ExecutionFailure(reason="MODEL_TIMEOUT", message="too late"),
    suspect_lines=(
        Finding(rule_id="tampering.exit", severity=Severity.MEDIUM, path="a.py", line=4, message="TEXT exit"),
    ),
)
HAPPENINGS: Final[tuple[Any, ...]] = (
    RepairStarted(
        goal=RepairGoal.PLAN,
        model="scripted",
        environment="python",
        level=SandboxLevel.BWRAP,
        snapshot_id="s1",
        config={"beam_width": 2, "search": "lats"},
    ),
    BaselineStep(is_reproduced=True, elapsed_s=2.5, reports=(REPORT,), flaky=("tests::test_c",)),
    CandidateStep(
        candidate_id="c2",
        parent_id="c1",
        reflection_depth=2,
        status=CandidateStatus.INVALID,
        usage=USAGE,
        elapsed_s=3.5,
        thought="TEXT the sign is wrong",
        code_or_plan="TEXT diff",
        problem="TEXT no anchor",
    ),
    CritiqueStep(
        candidate_id="c2",
        verdict=CandidateVerdict.UNKNOWN,
        score=84.0,
        is_accepted=True,
        elapsed_s=4.5,
        reports=(REPORT,),
        findings=(Finding(rule_id="F821", severity=Severity.MEDIUM, path="a.py", line=3, message="TEXT name"),),
        signature="b1",
    ),
    ReflectionStep(reflection=ITERATION),
    VoteStep(vote=VOTE),
    ValidationStep(
        candidate_id="c2",
        is_valid=True,
        verification=Verification.VISIBLE_ONLY,
        problem="TEXT a held-out check failed",
        reports=(REPORT,),
    ),
    REPAIR,
)
"""The logged events in the order of a log."""

DELTA: Final = RepairDelta(iteration_index=3, text="TEXT new")
EXECUTION: Final = Execution(
    execution_id="repair-1",
    tenant="acme",
    state=ExecutionState.SUCCEEDED,
    strategy="repair",
    strategy_source=StrategySource.SYSTEM,
    model="scripted",
    create_time=START,
    request_id="mine",
    finish_reason=FinishReason.ANSWERED,
    end_time=START + timedelta(seconds=12),
    expire_time=START + timedelta(hours=1),
    last_sequence=8,
    usage=USAGE,
    kind="repair",
)
VIEW: Final = RepairView(execution=EXECUTION, repair=REPAIR)
ENTRY: Final = FileEntry(path="a.py", digest="ab" * 32, size_bytes=12, is_executable=True)
SNAPSHOT: Final = Snapshot(
    snapshot_id="s1",
    entries=(ENTRY, FileEntry(path="b.py", digest="cd" * 32, size_bytes=30)),
    create_time=START,
    expire_time=START + timedelta(days=1),
    missing=("cd" * 32,),
)
ENVIRONMENTS: Final = EnvironmentList(
    environments=(EnvironmentInfo(name="python", format=ResultFormat.JUNIT, description="Python 3.13"),),
    level=SandboxLevel.BWRAP,
    commands=("tests",),
)


def repair_event(sequence: int, event: Any) -> StreamEvent:
    return StreamEvent(execution_id="repair-1", sequence=sequence, create_time=START, event=event)


EVENTS: Final = (
    repair_event(1, HAPPENINGS[0]),
    repair_event(1, Heartbeat()),
    repair_event(1, DELTA),
    *(repair_event(place, happening) for place, happening in enumerate(HAPPENINGS[1:], start=2)),
)


@dataclass
class ScriptedRepairs(RepairService):
    """A repair service that answers from the values above; all but `get` raise `failure` if there is one."""

    view: RepairView = field(default_factory=lambda: VIEW)
    failure: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, caller: Principal, task: Any, *, request_id: str = "") -> Repair:
        self._note("run", caller, task=task, request_id=request_id)
        return REPAIR

    async def stream(self, caller: Principal, source: Any, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        self._note("stream", caller, source=source, **options)
        after = getattr(source, "after_sequence", 0)
        for event in EVENTS:
            if event.sequence > after:
                yield event

    async def get(self, caller: Principal, execution_id: str) -> RepairView:
        self.calls.append({"method": "get", "caller": caller, "execution_id": execution_id})
        return self.view

    async def create_snapshot(self, caller: Principal, entries: Sequence[FileEntry]) -> Snapshot:
        self._note("create_snapshot", caller, entries=entries)
        return SNAPSHOT

    async def upload_blobs(self, caller: Principal, contents: Sequence[bytes]) -> Sequence[str]:
        self._note("upload_blobs", caller, contents=contents)
        return ["ab" * 32] * len(contents)

    def list_environments(self) -> EnvironmentList:
        self.calls.append({"method": "list_environments"})
        return ENVIRONMENTS

    def _note(self, method: str, caller: Principal, **options: Any) -> None:
        self.calls.append({"method": method, "caller": caller, **options})
        if self.failure is not None:
            raise self.failure

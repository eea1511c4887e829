from __future__ import annotations

import io
from typing import Any

from google.protobuf.duration_pb2 import Duration

from reasond import FinishReason
from reasond.v1.execution_pb2 import Usage
from reasond.v1.repair_service_pb2 import RepairStepsResponse
from reasond.v1.repairs_pb2 import (
    BaselineStep,
    CandidateScore,
    CandidateStatus,
    CandidateStep,
    CandidateVerdict,
    CandidateVote,
    CheckReport,
    CheckStatus,
    CritiqueStep,
    Finding,
    ReflectionIteration,
    ReflectionStep,
    Repair,
    RepairGoal,
    RepairStarted,
    SandboxLevel,
    ValidationStep,
    Verification,
    VoteResult,
    VoteStep,
)
from reasond_server.cli.show.live import LiveConsole
from reasond_server.cli.show.repair import RepairDisplay, RepairLines, color_diff, write_end

DIFF = "diff --git a/one.py b/one.py\n--- a/one.py\n+++ b/one.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
FAILED = CheckStatus.CHECK_STATUS_FAILED
PASSED = CheckStatus.CHECK_STATUS_PASSED


def _candidate(name: str, status: str = "PROPOSED", **fields: Any) -> RepairStepsResponse:
    number = CandidateStatus.Value(f"CANDIDATE_STATUS_{status}")
    return RepairStepsResponse(candidate=CandidateStep(candidate_id=name, status=number, **fields))


def _critique(name: str, verdict: str, passed: int, score: float) -> RepairStepsResponse:
    reports = [CheckReport(name="test", total=4, passed=passed)] if passed else []
    number = CandidateVerdict.Value(f"CANDIDATE_VERDICT_{verdict}")
    findings = [Finding(rule_id="F821", path="one.py", line=3)] if verdict == "FAILED" else []
    return RepairStepsResponse(
        critique=CritiqueStep(candidate_id=name, verdict=number, score=score, reports=reports, findings=findings)
    )


STARTED = RepairStepsResponse(
    execution_id="e1",
    started=RepairStarted(model="demo", environment="python", level=SandboxLevel.SANDBOX_LEVEL_LANDLOCK),
)
BASELINE = RepairStepsResponse(
    baseline=BaselineStep(
        is_reproduced=True,
        elapsed=Duration(nanos=250_000_000),
        reports=[
            CheckReport(name="test", status=FAILED, total=6, passed=2, failed=["a", "b", "c", "d\x1b"]),
            CheckReport(name="regression", status=PASSED),
        ],
        flaky=["test::slow"],
    )
)
REFLECTION = RepairStepsResponse(
    reflection=ReflectionStep(
        reflection=ReflectionIteration(
            iteration=2,
            candidate_ids=["cand-3", "cand-4"],
            critic_scores=[CandidateScore(candidate_id="cand-3", score=61.4)],
            notes="Candidates too similar; aborting further reflection",
        )
    )
)
VOTE = RepairStepsResponse(
    vote=VoteStep(
        vote=VoteResult(votes=[CandidateVote(candidate_id="cand-3", weight=0.5, cluster_size=2)], criteria=["gate"])
    )
)
VALIDATION = RepairStepsResponse(
    validation=ValidationStep(
        candidate_id="cand-3",
        is_valid=True,
        reports=[CheckReport(name="held-out", status=PASSED, total=5, passed=5)],
    )
)


def _lines(*events: RepairStepsResponse) -> list[str]:
    lines = RepairLines()
    return [text for event in events for text, _ in lines.write(event)]


def test_the_start_says_what_holds_the_code_and_the_baseline_what_fails() -> None:
    assert _lines(STARTED, BASELINE) == [
        "repair e1, model demo, environment python, held by Landlock",
        "the checks on the original (250 ms):",
        "   test: failed, 2 of 6 tests pass; fails: a, b, c, 1 more",
        "   regression: passed",
        "   left out, because two runs differed: test::slow",
    ]


def test_a_candidate_waits_for_its_verdict_and_shows_what_it_changes() -> None:
    proposed = _candidate("cand-1", parent_id="cand-0", code_or_plan=DIFF)
    assert _lines(proposed) == []
    assert _lines(proposed, _critique("cand-1", "FAILED", 3, 61.4)) == [
        "   cand-1 failed, 3 of 4 tests pass, score 61, from cand-0, 0 ms, F821 in one.py:3",
        "          - a = 1; + a = 2",
    ]


def test_what_no_check_judges_is_told_at_once_and_once() -> None:
    events = [
        _candidate("cand-2", "INVALID", problem="no\x1b edit"),
        _critique("cand-2", "FAILED", 0, 0.0),
        _candidate("cand-3", "DUPLICATE"),
    ]
    assert _lines(*events) == [
        "   cand-2 invalid: no\N{REPLACEMENT CHARACTER} edit",
        "   cand-3 duplicate: the same code was there before",
    ]


def test_rounds_votes_and_validations_are_told() -> None:
    assert _lines(REFLECTION, VOTE, VALIDATION) == [
        "round 2: 2 candidates, best score 61; Candidates too similar; aborting further reflection",
        "vote: cand-3 0.50 (2 alike); decided by gate",
        "the patch of cand-3 applies",
        "   held out, held-out: passed, 5 of 5 tests pass",
    ]
    refused = RepairStepsResponse(validation=ValidationStep(candidate_id="cand-3", problem="a link"))
    assert _lines(refused) == ["the patch of cand-3 is refused: a link"]


def _format_result(**fields: Any) -> Repair:
    return Repair(
        goal=RepairGoal.REPAIR_GOAL_FIX,
        finish_reason=FinishReason.FINISH_REASON_ANSWERED,
        total_iterations=1,
        usage=Usage(model_calls=23, input_tokens=1000, output_tokens=234),
        checks=24,
        elapsed=Duration(seconds=5),
        **fields,
    )


def test_the_end_says_what_a_patch_was_checked_with_and_what_it_cost() -> None:
    held_out = _format_result(is_accepted=True, patch=DIFF, verification=Verification.VERIFICATION_HELD_OUT)
    assert [text for text, _ in write_end(held_out)] == [
        "accepted: it passes checks that the search never saw, too",
        "answered, 1 round, 23 model calls, 1,234 tokens, 24 checks with 0 ms of processor time, 5.0 s",
    ]


def test_the_end_never_calls_a_patch_accepted_that_was_not() -> None:
    lines = [text for text, _ in write_end(_format_result(patch=DIFF, warnings=["held-out tests fail\x1b"]))]
    assert lines[0] == "NOT accepted: this patch is only the best that was found"
    assert lines[-1] == "note: held-out tests fail\N{REPLACEMENT CHARACTER}"
    assert next(iter(write_end(_format_result()))) == ("no patch was found", "bold red")


def test_a_diff_has_the_colours_of_diffs() -> None:
    assert [style for _, style in color_diff(DIFF)] == ["bold", "bold", "bold", "cyan", "red", "green"]
    # A removed line that begins with two hyphens is not a header.
    assert [*color_diff("diff --git a/q b/q\n--- a/q\n+++ b/q\n@@ -1 +0,0 @@\n--- note\n")][-1] == ("--- note", "red")


class Terminal(io.StringIO):
    """A stream that reports that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_there_are_plain_lines() -> None:
    stream = io.StringIO()
    display = RepairDisplay(LiveConsole(stream))
    for event in (STARTED, _candidate("cand-1", code_or_plan=DIFF), _critique("cand-1", "PASSED", 4, 100)):
        display.show(event)
    display.show_patch(_format_result(patch=DIFF))
    display.show_end(_format_result(patch=DIFF))
    shown = stream.getvalue()
    assert "   cand-1 passed, 4 of 4 tests pass, score 100" in shown
    assert "\n-a = 1\n+a = 2\n" in shown
    assert "\x1b" not in shown

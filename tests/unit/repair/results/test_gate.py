"""The gate and the score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.repair.results.gate import (
    apply_rulings,
    compare_with_baseline,
    compute_score,
    counts,
    is_disputed,
    judge_candidate,
    list_faults,
    needs_review,
    report_baseline,
    report_candidate,
)
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.results.reported_tests import AS_A_WHOLE
from reasond_server.types.repairs import (
    CandidateVerdict,
    CheckRole,
    CheckStatus,
    Finding,
    Severity,
    TestOutcome,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

P, F, S, M = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED, TestOutcome.MISSING
REPRODUCE, REGRESSION, HELD_OUT = CheckRole.REPRODUCE, CheckRole.REGRESSION, CheckRole.HELD_OUT


def outcome(
    name: str = "unit",
    role: CheckRole = REPRODUCE,
    *,
    code: int | None = None,
    status: CheckStatus | None = None,
    reason: str = "",
    marks: dict[str, str] | None = None,
    more: Mapping[str, TestOutcome] | None = None,
    **named: TestOutcome,
) -> CheckOutcome:
    tests = {**named, **(more or {})}
    has_failed = F in tests.values()
    exit_code = (1 if has_failed else 0) if code is None else code
    derived = CheckStatus.FAILED if has_failed or exit_code or reason else CheckStatus.PASSED
    fingerprints = {test_id: "f" for test_id, found in tests.items() if found is F} if marks is None else marks
    return CheckOutcome(
        name=name,
        role=role,
        status=status or derived,
        tests=tests,
        fingerprints=fingerprints,
        exit_code=exit_code,
        reason=reason,
        evidence=f"trace of {name}" if has_failed else "",
    )


def finding(severity: Severity = Severity.HIGH, rule_id: str = "F821") -> Finding:
    return Finding(rule_id=rule_id, severity=severity, path="a.py", line=3, message="undefined name")


def baseline(*outcomes: CheckOutcome, flaky: tuple[str, ...] = ()) -> Baseline:
    return Baseline(outcomes={one.name: one for one in outcomes}, flaky=frozenset(flaky))


def judge(before: Baseline, *after: CheckOutcome, findings: tuple[Finding, ...] = ()) -> Critique:
    return judge_candidate([compare_with_baseline(one, before) for one in after], findings, before)


def test_a_candidate_that_flips_and_holds_everything_passes() -> None:
    before = baseline(outcome(a=F, b=P), outcome("all", REGRESSION, c=P, d=F))
    critique = judge(before, outcome(a=P, b=P), outcome("all", REGRESSION, c=P, d=F))
    assert (critique.verdict, critique.is_solution, critique.score) == (CandidateVerdict.PASSED, True, 100.0)
    assert not critique.evidence
    assert [(report.total, report.passed, report.failed) for report in critique.reports] == [(2, 2, ()), (1, 1, ())]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (outcome(a=F, b=P), outcome(a=F, b=P)),
        (outcome(a=F, b=P), outcome(a=P)),
        (outcome(a=F, b=P), outcome(b=P)),
        (outcome(a=F, b=P), outcome(a=S, b=P)),
        (outcome(a=F, b=P), outcome(a=P, b=S)),
        (outcome(a=F, b=P), outcome(a=P, b=P, new=F)),
        (outcome(a=F, b=P), outcome(a=P, b=P, code=1)),
        (outcome(a=F, b=P), outcome(reason="it wrote no report")),
        (outcome(a=F, b=P), outcome()),
        (outcome("r", REGRESSION, a=P), outcome("r", REGRESSION)),
        (outcome("r", REGRESSION, a=P, b=F), outcome("r", REGRESSION, a=S, b=P)),
        (outcome("r", REGRESSION, a=P), outcome("r", REGRESSION, a=P, new=F)),
        (outcome("r", REGRESSION, a=P), outcome("r", REGRESSION, a=P, code=1)),
        (outcome("r", REGRESSION, a=P, b=F), outcome("r", REGRESSION, a=P, b=P, code=1)),
        (outcome("x", code=1), outcome("x", code=1)),
        (outcome("x", REGRESSION), outcome("x", REGRESSION, code=2)),
        (outcome("crash", code=139), outcome("crash", a=S)),
        (outcome("h", HELD_OUT, a=P), outcome("h", HELD_OUT, a=M)),
    ],
)
def test_whatever_is_missing_skipped_failed_or_contradictory_fails(before: CheckOutcome, after: CheckOutcome) -> None:
    compared = compare_with_baseline(after, baseline(before))
    assert compared.status is CheckStatus.FAILED
    if before.role is not HELD_OUT:
        critique = judge(baseline(before), after)
        assert critique.verdict is CandidateVerdict.FAILED
        assert critique.score <= 84
        assert critique.evidence


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (outcome("r", REGRESSION, a=P, b=F, c=S), outcome("r", REGRESSION, a=P, c=S)),
        (outcome("r", REGRESSION, a=P, b=F), outcome("r", REGRESSION, a=P, b=F)),
        (outcome("r", REGRESSION, a=P, code=3), outcome("r", REGRESSION, a=P, code=3)),
        (outcome(a=F, c=S), outcome(a=P, c=S, new=S)),
        (outcome("x", code=1), outcome("x")),
        (outcome("crash", code=139), outcome("crash", a=P)),
        (outcome("slow", status=CheckStatus.TIMED_OUT, code=137), outcome("slow", a=P)),
    ],
)
def test_what_was_so_on_the_original_or_is_new_and_good_passes(before: CheckOutcome, after: CheckOutcome) -> None:
    assert compare_with_baseline(after, baseline(before)).status is CheckStatus.PASSED


def test_a_file_that_could_not_be_loaded_needs_a_test_that_passes_afterwards() -> None:
    whole = f"tests.test_a{AS_A_WHOLE}"
    before = baseline(outcome(more={whole: F, "tests.test_b::x": P}))
    for tests, status in (
        ({"tests.test_a::one": P}, CheckStatus.PASSED),
        ({"tests.test_a.TestC::one": P}, CheckStatus.PASSED),
        ({"tests.test_a::one": S}, CheckStatus.FAILED),
        ({"tests.test_a::one": P, "tests.test_a::two": F}, CheckStatus.FAILED),
        ({"tests.test_ab::one": P}, CheckStatus.FAILED),
        ({whole: S}, CheckStatus.FAILED),
        ({whole: P}, CheckStatus.FAILED),
        ({}, CheckStatus.FAILED),
    ):
        after = outcome(more={"tests.test_b::x": P, **tests})
        assert compare_with_baseline(after, before).status is status, tests


def test_tests_of_a_file_that_could_not_be_loaded_are_no_regressions() -> None:
    before = baseline(outcome("r", REGRESSION, more={f"m/b{AS_A_WHOLE}": F, "m/a::x": P}))
    assert compare_with_baseline(outcome("r", REGRESSION, more={"m/a::x": P, "m/b::y": F}), before).status is (
        CheckStatus.PASSED
    )
    assert compare_with_baseline(outcome("r", REGRESSION, more={"m/a::x": P, "m/c::y": F}), before).status is (
        CheckStatus.FAILED
    )


def test_many_files_that_could_not_be_loaded_take_no_longer_than_their_tests() -> None:
    names = [f"tests.test_{n}" for n in range(30_000)]
    before = baseline(outcome(more={f"{name}{AS_A_WHOLE}": F for name in names}))
    after = outcome(more={f"{name}::one": P for name in names})
    assert compare_with_baseline(after, before).status is CheckStatus.PASSED


def test_flaky_tests_do_not_count_at_all() -> None:
    before = baseline(outcome(a=F, b=P), flaky=("unit::b",))
    for b in (P, F, S):
        assert judge(before, outcome(a=P, b=b)).is_solution
    assert judge(before, outcome(a=P)).is_solution
    assert report_baseline(before)[0].total == 1


@pytest.mark.parametrize(
    ("one", "flaky", "says"),
    [
        (outcome(a=F), (), True),
        (outcome(a=F), ("unit",), False),
        (outcome(a=F), ("unit::a",), False),
        (outcome(a=F, b=P), ("unit::a",), True),
        (outcome(code=139), (), True),
        (outcome(role=REGRESSION, a=F), (), False),
        (outcome(role=REGRESSION, a=P), (), True),
        (outcome(role=REGRESSION, code=1), (), False),
        (outcome(role=REGRESSION), (), True),
        (outcome(role=REGRESSION, status=CheckStatus.TIMED_OUT), (), False),
        (outcome(role=HELD_OUT, a=F), (), True),
    ],
)
def test_a_check_that_holds_nothing_has_no_say(one: CheckOutcome, flaky: tuple[str, ...], *, says: bool) -> None:
    assert counts("unit", baseline(one, flaky=flaky)) is says


def test_where_no_check_has_a_say_nothing_is_known() -> None:
    critique = judge_candidate([], (), baseline(outcome(a=F), flaky=("unit",)))
    assert (critique.verdict, critique.is_solution, critique.signature) == (CandidateVerdict.UNKNOWN, False, "")


def test_where_no_check_was_sent_static_analysis_alone_judges() -> None:
    assert judge_candidate([], (), baseline()).score == 100
    critique = judge_candidate([], (finding(),), baseline())
    assert (critique.verdict, critique.is_solution) == (CandidateVerdict.FAILED, False)
    assert critique.score < 85


@pytest.mark.parametrize(
    ("percent", "findings", "score"),
    [
        (100, (), 84.0),
        (80, (), 84.0),
        (50, (Severity.HIGH,), 0.75 * 50 + 0.25 * 75),
        (50, (Severity.MEDIUM, Severity.LOW), 0.75 * 50 + 0.25 * 87),
        (10, (Severity.HIGH,) * 5, 7.5),
        (0, (), 25.0),
    ],
)
def test_the_score_is_that_of_the_design(percent: float, findings: tuple[Severity, ...], score: float) -> None:
    assert compute_score(percent, [finding(one) for one in findings], has_passed=False) == score


def test_a_passed_gate_lifts_the_cap_and_findings_still_count() -> None:
    before = baseline(outcome(a=F))
    assert judge(before, outcome(a=P), findings=(finding(Severity.MEDIUM),)).score == 0.75 * 100 + 0.25 * 90


def test_no_threshold_of_85_accepts_a_failing_test() -> None:
    before = baseline(outcome(more={f"t{n}": F if n == 0 else P for n in range(1000)}))
    critique = judge(before, outcome(more={f"t{n}": F if n == 0 else P for n in range(1000)}))
    assert critique.pass_percent == 99.9
    assert critique.score == 84.0


def test_a_new_high_finding_fails_a_candidate_that_passes_every_test() -> None:
    critique = judge(baseline(outcome(a=F)), outcome(a=P), findings=(finding(),))
    assert (critique.verdict, critique.is_solution, critique.score) == (CandidateVerdict.FAILED, False, 84.0)
    assert "F821" in critique.evidence
    assert is_disputed(critique)


def test_a_time_out_is_judged_as_the_original_and_never_as_0() -> None:
    before = baseline(outcome(a=F, b=P), outcome("r", REGRESSION, c=P, d=P))
    late = outcome(status=CheckStatus.TIMED_OUT, code=137, reason="it did not end in time")
    critique = judge(before, late, outcome("r", REGRESSION, c=P, d=P))
    assert critique.verdict is CandidateVerdict.TIMED_OUT
    assert critique.pass_percent == 75.0
    assert 0 < critique.score <= 84
    assert "did not end in time" in critique.evidence


def test_what_could_not_be_run_says_nothing_and_shows_nothing() -> None:
    unknown = outcome(status=CheckStatus.UNKNOWN, reason="the sandbox could not run it")
    critique = judge(baseline(outcome(a=F)), unknown)
    assert (critique.verdict, critique.signature, critique.evidence) == (CandidateVerdict.UNKNOWN, "", "")


def test_a_report_that_its_exit_code_contradicts_earns_nothing() -> None:
    assert judge(baseline(outcome(a=F, b=P)), outcome(a=P, b=P, code=1)).pass_percent == 0.0


def test_a_signature_is_equal_for_equal_behaviour_and_for_nothing_else() -> None:
    before = baseline(outcome(a=F, b=P))
    plain = judge(before, outcome(a=F, b=P)).signature
    assert plain == judge(before, outcome(b=P, a=F)).signature
    assert plain != judge(before, outcome(a=F, b=P, marks={"a": "other"})).signature
    assert plain != judge(before, outcome(a=P, b=P)).signature
    assert plain != judge(before, outcome(b=P)).signature
    assert len(plain) == 32


def test_a_failure_that_looked_different_in_two_runs_on_the_original_parts_nobody() -> None:
    before = baseline(outcome(a=F, marks={}))
    assert judge(before, outcome(a=F)).signature == judge(before, outcome(a=F, marks={"a": "x"})).signature


def test_the_model_is_told_what_the_checks_of_the_role_reproduce_found_alone() -> None:
    before = baseline(
        outcome(a=F, b=F, c=S, d=P),
        outcome("old", REGRESSION, e=F, f=P),
        outcome("secret", HELD_OUT, g=F),
        outcome("shaky", h=F),
        flaky=("unit::b", "shaky"),
    )
    assert [(one.name, one.tests) for one in list_faults(before)] == [("unit", {"a": F, "d": P})]


def test_held_out_checks_are_in_no_critique() -> None:
    before = baseline(outcome(a=F), outcome("secret", HELD_OUT, hidden=F))
    critique = judge(before, outcome(a=F), outcome("secret", HELD_OUT, hidden=F))
    assert "hidden" not in repr(critique)
    assert "secret" not in repr(critique)


def test_more_than_two_rounds_in_which_tests_and_findings_disagree_need_a_review() -> None:
    before = baseline(outcome(a=F))
    disputed = judge(before, outcome(a=P), findings=(finding(),))
    failed = judge(before, outcome(a=F), findings=(finding(),))
    assert not is_disputed(failed)
    assert not needs_review([[disputed, disputed], [failed], [disputed]])
    assert needs_review([[disputed], [failed, disputed], [disputed]])


def test_a_report_names_at_most_100_failures() -> None:
    report = report_candidate(outcome(more={f"t{n}": F for n in range(150)}))
    assert (report.total, report.passed, len(report.failed)) == (150, 0, 100)


@pytest.mark.parametrize(
    ("rulings", "severities"),
    [
        ({}, [Severity.MEDIUM, Severity.HIGH, Severity.MEDIUM]),
        ({"arguments": "allow"}, [Severity.HIGH, Severity.MEDIUM]),
        ({"arguments": "refuse"}, [Severity.HIGH, Severity.HIGH, Severity.MEDIUM]),
        ({"all": "allow"}, [Severity.HIGH, Severity.MEDIUM]),
        ({"all": "allow", "arguments": "review"}, [Severity.MEDIUM, Severity.HIGH, Severity.MEDIUM]),
    ],
)
def test_an_operator_rules_on_signs_that_are_no_certain_ones(
    rulings: Mapping[str, str], severities: Sequence[Severity]
) -> None:
    findings = [
        finding(Severity.MEDIUM, "tampering.arguments"),
        finding(Severity.HIGH, "tampering.exit"),
        finding(Severity.MEDIUM, "F401"),
    ]
    assert [one.severity for one in apply_rulings(findings, rulings)] == severities

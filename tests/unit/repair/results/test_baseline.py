"""The baseline: what differs in two runs, what fails, and what cannot be used."""

from __future__ import annotations

import pytest

from reasond_server.errors.repairs import CheckUnusableError, NotReproducedError
from reasond_server.repair.results.baseline import CheckRuns, conclude_baseline, needs_more_runs
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome
from reasond_server.types.repairs import CheckRole, CheckStatus, TestOutcome
from tests.repairing import check

P, F, S = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED
BROKEN = "it wrote no report"


def ran(
    code: int | None = None,
    *,
    status: CheckStatus | None = None,
    reason: str = "",
    evidence: str = "",
    marks: dict[str, str] | None = None,
    elapsed_s: float = 1.0,
    **tests: TestOutcome,
) -> CheckOutcome:
    has_failed = F in tests.values()
    exit_code = (1 if has_failed else 0) if code is None else code
    return CheckOutcome(
        name="unit",
        role=CheckRole.REPRODUCE,
        status=status or (CheckStatus.FAILED if exit_code or reason else CheckStatus.PASSED),
        tests=tests,
        fingerprints=marks or {},
        exit_code=exit_code,
        reason=reason,
        evidence=evidence,
        elapsed_s=elapsed_s,
    )


def conclude(first: CheckOutcome, second: CheckOutcome, **options: bool) -> Baseline:
    return conclude_baseline([CheckRuns(check=check("unit"), first=first, second=second)], timeouts_s={}, **options)


@pytest.mark.parametrize(
    "one",
    [
        ran(a=F, b=P),
        ran(1),
        ran(139, reason=BROKEN),
        ran(137, status=CheckStatus.TIMED_OUT),
        ran(1, a=P),
    ],
)
def test_a_check_that_fails_twice_reproduces_the_fault(one: CheckOutcome) -> None:
    baseline = conclude(one, one)
    assert baseline.is_reproduced
    assert not baseline.flaky
    assert not baseline.warnings


@pytest.mark.parametrize(
    ("first", "second", "flaky"),
    [
        (ran(a=F, b=P), ran(a=F, b=F), {"unit::b"}),
        (ran(a=F, b=P), ran(a=F), {"unit::b"}),
        (ran(a=F, b=P), ran(a=F, b=S, c=P), {"unit::b", "unit::c"}),
    ],
)
def test_tests_that_differ_in_two_runs_are_flaky_and_told(
    first: CheckOutcome, second: CheckOutcome, flaky: set[str]
) -> None:
    baseline = conclude(first, second)
    assert baseline.flaky == flaky
    assert "Flaky on the original code" in baseline.warnings[0]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ran(1), ran(0)),
        (ran(a=F), ran(137, status=CheckStatus.TIMED_OUT)),
        (ran(a=F), ran(2, reason=BROKEN)),
        (ran(139, reason=BROKEN), ran(a=F)),
        (ran(a=F), ran(a=P)),
        (ran(a=P), ran(a=P)),
        (ran(status=CheckStatus.UNKNOWN, reason="killed"), ran(a=F)),
    ],
)
def test_what_does_not_fail_twice_is_not_reproduced_unless_that_is_allowed(
    first: CheckOutcome, second: CheckOutcome
) -> None:
    with pytest.raises(NotReproducedError, match="No check of the role REPRODUCE fails"):
        conclude(first, second)
    baseline = conclude(first, second, allow_unreproduced=True)
    assert not baseline.is_reproduced
    assert any("none shows a repair" in warning for warning in baseline.warnings)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (ran(127, reason=BROKEN, evidence="pytest: not found"), "its command is not there"),
        (ran(126), "cannot be executed"),
        (ran(127), "its command is not there"),
        (ran(2, reason=BROKEN, evidence="usage: pytest"), BROKEN),
        (ran(0, reason="its report names no test"), "names no test"),
        (ran(0, status=CheckStatus.UNKNOWN, reason="the sandbox could not run it"), "could not run it"),
    ],
)
def test_a_check_that_says_nothing_is_refused_with_its_name_command_code_and_last_lines(
    one: CheckOutcome, why: str
) -> None:
    with pytest.raises(CheckUnusableError, match=why) as caught:
        conclude(one, one)
    message = caught.value.message
    assert "'unit'" in message
    assert "python -m pytest" in message
    assert f"exit code {one.exit_code}" in message
    assert message.endswith(one.evidence or "It printed nothing")


def test_only_the_last_lines_are_quoted() -> None:
    one = ran(2, reason=BROKEN, evidence="\n".join(f"line {n} {'x' * 300}" for n in range(100)))
    with pytest.raises(CheckUnusableError) as caught:
        conclude(one, one)
    assert len(caught.value.message) < 1500
    assert "line 99" in caught.value.message


def test_fingerprints_that_differ_are_not_kept_and_the_longer_time_counts() -> None:
    first = ran(a=F, b=F, marks={"a": "1", "b": "1"}, elapsed_s=1.0)
    second = ran(a=F, b=F, marks={"a": "1", "b": "2"}, elapsed_s=3.0)
    outcome = conclude(first, second).outcomes["unit"]
    assert (outcome.fingerprints, outcome.elapsed_s) == ({"a": "1"}, 3.0)


def test_only_the_role_reproduce_shows_the_fault() -> None:
    regression = check("r", role=CheckRole.REGRESSION)
    one = CheckOutcome(name="r", role=CheckRole.REGRESSION, status=CheckStatus.FAILED, exit_code=1)
    with pytest.raises(NotReproducedError):
        conclude_baseline([CheckRuns(check=regression, first=one, second=one)], timeouts_s={})
    baseline = conclude_baseline(
        [CheckRuns(check=regression, first=one, second=one)], timeouts_s={}, allow_unreproduced=True
    )
    assert any("hold nothing: 'r'" in warning for warning in baseline.warnings)


def pair(first: CheckOutcome, second: CheckOutcome, *others: CheckOutcome, **options: CheckRole) -> CheckRuns:
    return CheckRuns(check=check("unit", **options), first=first, second=second, others=others)


@pytest.mark.parametrize(
    ("runs", "count"),
    [
        ([pair(ran(a=F), ran(a=P))], 1),
        ([pair(ran(1), ran(0))], 1),
        ([pair(ran(a=F, b=F), ran(a=P, b=F))], 0),
        ([pair(ran(a=P), ran(a=P))], 0),
        ([pair(ran(1, reason=BROKEN), ran(a=P))], 0),
        ([pair(ran(a=F), ran(a=P), role=CheckRole.REGRESSION)], 0),
    ],
)
def test_a_flaky_check_is_run_more_often_where_nothing_else_fails(runs: list[CheckRuns], count: int) -> None:
    assert len(needs_more_runs(runs)) == count


def test_a_fault_that_shows_itself_now_and_then_is_reproduced_and_candidates_have_to_pass_often() -> None:
    runs = pair(ran(a=P, b=P), ran(a=P, b=F), ran(a=P, b=P), ran(a=P, b=P), ran(a=P, b=F))
    baseline = conclude_baseline([runs], timeouts_s={})
    assert baseline.is_reproduced
    assert not baseline.flaky
    assert baseline.repeats == {"unit": 5}
    assert any("run it more often: 'unit (5 runs)'" in warning for warning in baseline.warnings)


def test_without_checks_it_is_told_that_nothing_is_run() -> None:
    baseline = conclude_baseline([], timeouts_s={})
    assert not baseline.is_visible
    assert any("No check was sent, so nothing was run" in warning for warning in baseline.warnings)

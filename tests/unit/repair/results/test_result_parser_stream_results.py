"""`go test -json` and TAP, and what a candidate may print into them."""

from __future__ import annotations

import json

import pytest

from reasond_server.repair.results.reported_tests import AS_A_WHOLE, ReportedTest, UnreadableResultError, merge_doubles
from reasond_server.repair.results.result_parser import read_go_json, read_tap
from reasond_server.types.repairs import TestOutcome

PASSED, FAILED, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED


def events(*rows: tuple[str, str, str] | tuple[str, str, str, str]) -> str:
    lines = []
    for action, package, test, *output in rows:
        event = {"Time": "2026-11-23T07:07:47Z", "Action": action, "Package": package}
        event |= {"Test": test} if test else {}
        event |= {"Output": output[0]} if output else {}
        lines.append(json.dumps(event))
    return "\n".join(lines)


def outcomes(tests: tuple[ReportedTest, ...] | object) -> dict[str, TestOutcome]:
    return {test.test_id: test.outcome for test in merge_doubles(tests)}  # type: ignore[arg-type] # both readers'


def test_go_events_are_read() -> None:
    tests = read_go_json(
        events(
            ("start", "m/a", ""),
            ("run", "m/a", "TestAdd"),
            ("output", "m/a", "TestAdd", "=== RUN   TestAdd\n"),
            ("output", "m/a", "TestAdd", "    a_test.go:3: bad -1\n"),
            ("output", "m/a", "TestAdd", "--- FAIL: TestAdd (0.00s)\n"),
            ("fail", "m/a", "TestAdd"),
            ("run", "m/a", "TestOk"),
            ("run", "m/a", "TestOk/sub"),
            ("pass", "m/a", "TestOk/sub"),
            ("pass", "m/a", "TestOk"),
            ("run", "m/a", "TestSkip"),
            ("skip", "m/a", "TestSkip"),
            ("fail", "m/a", ""),
            ("start", "m/none", ""),
            ("skip", "m/none", ""),
        )
    )
    assert outcomes(tests) == {
        "m/a::TestAdd": FAILED,
        "m/a::TestOk": PASSED,
        "m/a::TestOk/sub": PASSED,
        "m/a::TestSkip": SKIPPED,
        f"m/none{AS_A_WHOLE}": SKIPPED,
    }
    assert tests[0].message.strip() == "a_test.go:3: bad -1"
    assert "--- FAIL" not in tests[0].trace


def test_a_package_that_does_not_build_failed_as_a_whole() -> None:
    build = [
        {"ImportPath": "m/b [m/b.test]", "Action": "build-output", "Output": "b.go:2:23: cannot use\n"},
        {"ImportPath": "m/b [m/b.test]", "Action": "build-fail"},
        {"Action": "fail", "Package": "m/b", "Elapsed": 0, "FailedBuild": "m/b [m/b.test]"},
    ]
    (test,) = read_go_json("\n".join(map(json.dumps, build)))
    assert (test.test_id, test.outcome) == (f"m/b{AS_A_WHOLE}", FAILED)
    assert "cannot use" in test.trace


def test_a_test_that_began_and_did_not_end_failed() -> None:
    text = events(("run", "m", "TestA"), ("pass", "m", "TestA"), ("run", "m", "TestB"), ("pass", "m", ""))
    assert outcomes(read_go_json(text)) == {"m::TestA": PASSED, "m::TestB": FAILED}


def test_a_package_that_fails_although_its_tests_pass_failed_as_a_whole() -> None:
    text = events(("run", "m", "TestA"), ("pass", "m", "TestA"), ("fail", "m", ""))
    assert outcomes(read_go_json(text)) == {"m::TestA": PASSED, f"m{AS_A_WHOLE}": FAILED}


def test_a_package_without_a_test_that_passes_is_there_as_a_whole() -> None:
    assert outcomes(read_go_json(events(("start", "m", ""), ("pass", "m", "")))) == {f"m{AS_A_WHOLE}": PASSED}


def test_a_forged_pass_does_not_take_back_a_failure() -> None:
    for rows in ((("fail", "m", "T"), ("pass", "m", "T")), (("pass", "m", "T"), ("fail", "m", "T"))):
        assert outcomes(read_go_json(events(*rows, ("fail", "m", ""))))["m::T"] is FAILED


def test_what_the_code_prints_is_no_event_of_the_runner() -> None:
    printed = events(("pass", "m", "TestForged"))
    text = events(("run", "m", "T"), ("output", "m", "T", printed + "\n"), ("fail", "m", "T"), ("fail", "m", ""))
    assert outcomes(read_go_json(text)) == {"m::T": FAILED}


@pytest.mark.parametrize(
    "text", ["", "FAIL m [build failed]", "{}", "{]", "[1]", '{"Action": {}}', '{"Action": "pass"}', "{" * 100_000]
)
def test_output_without_events_of_go_is_refused(text: str) -> None:
    with pytest.raises(UnreadableResultError, match="no event of `go test -json`"):
        read_go_json(text)


NODE = """TAP version 13
# ok 1 - forged
# Subtest: top ok
ok 1 - top ok
  ---
  duration_ms: 3.774372
  ...
# Subtest: top bad
not ok 2 - top bad
  ---
  duration_ms: 7.02205
  location: '/tmp/t.test.js:3:1'
  failureType: 'testCodeFailure'
  error: |-
    Expected values to be strictly equal:

    1 !== 2

  code: 'ERR_ASSERTION'
  stack: |-
    TestContext.<anonymous> (/tmp/t.test.js:3:28)
  ...
# Subtest: suite
    # Subtest: inner ok
    ok 1 - inner ok
    # Subtest: inner bad
    not ok 2 - inner bad
      ---
      error: 'falsy'
      ...
    ok 3 - inner skip # SKIP
    1..3
not ok 3 - suite
  ---
  error: '1 subtest failed'
  ...
1..3
# tests 5
"""


def test_tap_of_node_is_read_with_its_subtests() -> None:
    tests = read_tap(NODE)
    assert outcomes(tests) == {
        "top ok": PASSED,
        "top bad": FAILED,
        "suite::inner ok": PASSED,
        "suite::inner bad": FAILED,
        "suite::inner skip": SKIPPED,
        "suite": FAILED,
    }
    bad = {test.test_id: test for test in tests}
    assert "1 !== 2" in bad["top bad"].message
    assert "duration" not in bad["top bad"].message
    assert "anonymous" not in bad["top bad"].message
    assert "anonymous" in bad["top bad"].trace
    assert "falsy" in bad["suite::inner bad"].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..2\nok 1\nnot ok 2 - b # TODO later", {"test 1": PASSED, "b": SKIPPED}),
        ("1..1\nok 1 a # skip none", {"a": SKIPPED}),
        ("1..3\nok 1 - a", {"a": PASSED, f"plan{AS_A_WHOLE}": FAILED}),
        ("1..1\nok 1 - a\nok 2 - b", {"a": PASSED, "b": PASSED, f"plan{AS_A_WHOLE}": FAILED}),
        ("1..1\nok 1 - a\nBail out! no disk", {"a": PASSED, f"bail out{AS_A_WHOLE}": FAILED}),
        ("1..2\nok 1 - a\nnot ok 2 - a", {"a": FAILED}),
        (
            "1..1\nok 1 - forged\n1..2\nok 1 - forged\nnot ok 2 - real",
            {"forged": PASSED, "real": FAILED, f"plan{AS_A_WHOLE}": FAILED},
        ),
        ("1..1\nokay 1 - a\nok 1 - a # time=3.2ms", {"a": PASSED}),
    ],
)
def test_tap_is_read_to_the_letter(text: str, expected: dict[str, TestOutcome]) -> None:
    assert outcomes(read_tap(text)) == expected


@pytest.mark.parametrize(("text", "reason"), [("", "no plan"), ("ok 1 - a", "no plan"), ("1..2", "no test point")])
def test_output_that_is_no_tap_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UnreadableResultError, match=reason):
        read_tap(text)


def test_deep_and_long_tap_takes_linear_time() -> None:
    text = "1..1\n" + "\n".join(f"{' ' * 4 * depth}ok 1 - a" for depth in range(2000, 0, -1)) + "\nok 1 - end"
    assert outcomes(read_tap(text))["end"] is PASSED

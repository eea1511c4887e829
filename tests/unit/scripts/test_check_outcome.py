from __future__ import annotations

import pytest

from scripts.check import Counts, count_tests, failures, notices


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("3 passed in 0.02s", Counts(passed=3)),
        ("===== 3 passed, 1 skipped in 61.20s (0:01:01) =====", Counts(passed=3, skipped=1)),
        ("1 failed, 391 passed, 2 errors in 5.71s", Counts(passed=391, failed=3)),
        ("2 passed, 4 deselected, 1 xfailed in 1.00s", Counts(passed=3)),
        ("1 xpassed in 1.00s", Counts(failed=1)),
        ("1 passed in 0.1s\nmore\n2 passed in 0.1s", Counts(passed=3)),
    ],
)
def test_closing_lines_are_read(output: str, expected: Counts) -> None:
    assert count_tests(output, is_passed=not expected.failed) == expected


def test_text_that_only_looks_like_a_closing_line_is_not_counted() -> None:
    assert count_tests("    7 passed in 0.1s\nsaid: 7 passed in 0.1s", is_passed=True) == Counts()


@pytest.mark.parametrize("output", ["", "no tests ran in 0.01s", "3 passed in 0.1s"])
def test_a_run_that_failed_without_a_failed_test_counts_as_one_failed(output: str) -> None:
    assert count_tests(output, is_passed=False).failed == 1


def test_counts_add_up_to_one_line() -> None:
    assert (Counts(passed=2) + Counts(passed=1, failed=1)).line() == "3 passed, 1 failed"
    assert Counts(passed=2, skipped=1).line() == "2 passed, 0 failed, 1 skipped"


def test_skipped_tests_and_notes_are_notices() -> None:
    assert notices("..s\nSKIPPED [1] a.py:3: no go\nnote: small\n1 passed") == [
        "SKIPPED [1] a.py:3: no go",
        "note: small",
    ]


def test_tests_that_failed_are_named_by_the_lines_of_the_summary() -> None:
    assert failures("E  boom\nFAILED a.py::b - boom\nERROR c.py::d\n1 failed") == [
        "FAILED a.py::b - boom",
        "ERROR c.py::d",
    ]

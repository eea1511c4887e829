"""Ids, fingerprints and evidence of reported tests."""

from __future__ import annotations

import pytest

from reasond_server.repair.results.reported_tests import (
    MAX_EVIDENCE_BYTES,
    MAX_TESTS,
    ReportedTest,
    UnreadableResultError,
    escape_text,
    fingerprint_failure,
    make_id,
    merge_doubles,
    shorten,
    write_failures,
    write_output,
)
from reasond_server.types.repairs import TestOutcome


def make_failed(message: str = "", *, test_id: str = "a", trace: str = "") -> ReportedTest:
    return ReportedTest(test_id=test_id, outcome=TestOutcome.FAILED, message=message, trace=trace)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assert <A at 0x7f00aa> == 1", "assert <A at 0xffee01> == 1"),
        ("took 0.53s", "took 12.1s"),
        ("FileNotFoundError: /tmp/pytest-of-a/x1/conf.ini", "FileNotFoundError: /tmp/pytest-of-b/x2/conf.ini"),
        ("calc.py:12: ValueError: bad", "calc.py:40: ValueError: bad"),
        ('File "calc.py", line 3, in add', 'File "calc.py", line 77, in add'),
        ("at 2026-11-23T07:07:47.65Z no", "at 2025-01-02T17:00:01.1Z no"),
        ("goroutine 6 [running]", "goroutine 91 [running]"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174fff"),
        ("in tmpab12cd34/x", "in tmpzz99yy88/x"),
    ],
)
def test_failures_that_differ_in_times_addresses_and_places_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint_failure(make_failed(one)) == fingerprint_failure(make_failed(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("assert 3 == 4", "assert 3 == 5"), ("ValueError: a", "TypeError: a"), ("assert 'x:1' == y", "assert 'z:1' == y")],
)
def test_failures_that_differ_in_what_they_say_have_two_fingerprints(one: str, other: str) -> None:
    assert fingerprint_failure(make_failed(one)) != fingerprint_failure(make_failed(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (".0 = <range_iterator object at 0x7f1e20ad4300>", ".0 = <range_iterator object at 0x7f1e20ad5860>"),
        ("==== 1 failed, 2 passed in 0.05s ====", "==== 1 failed, 2 passed in 0.31s ===="),
        ("==== 1 failed in 61.20s (0:01:01) ====", "==== 1 failed in 65.00s (0:01:05) ===="),
        ("1 failed in 0.05s", "1 failed in 1.15s"),
        ("Ran 3 tests in 0.002s", "Ran 3 tests in 0.010s"),
        ("--- FAIL: TestAdd (0.00s)\n", "--- FAIL: TestAdd (0.02s)\n"),
        ("FAIL\texample.com/add\t0.003s", "FAIL\texample.com/add\t0.112s"),
        ("  duration_ms: 1.25\n", "  duration_ms: 0.981\n"),
        ("# duration_ms 40.1", "# duration_ms 38"),
    ],
)
def test_equal_failures_of_two_runs_are_shown_alike(one: str, other: str) -> None:
    """Else a prompt differs in every run, no engine has its prefix, and a repair cannot be repeated from its record."""
    assert write_output(one.encode()) == write_output(other.encode())
    assert write_failures([make_failed(trace=one)]) == write_failures([make_failed(trace=other)])


@pytest.mark.parametrize(
    "text", ["assert h == 0xcbf29ce484222325", "took 0.53s", "expected in 0.5s or less", "look at 0x"]
)
def test_what_may_matter_is_shown_as_it_was_printed(text: str) -> None:
    assert write_output(text.encode()) == text


def test_without_a_message_the_last_line_of_the_trace_counts() -> None:
    one = make_failed(trace="code of the first candidate\nE  assert 1 == 2\n\n")
    assert fingerprint_failure(one) == fingerprint_failure(make_failed(trace="other code\nE  assert 1 == 2"))


def test_a_message_of_megabytes_is_compared_in_its_beginning() -> None:
    assert fingerprint_failure(make_failed("a" * 5_000_000)) == fingerprint_failure(make_failed("a" * 4_000_000))


def test_of_doubled_ids_the_worst_outcome_counts() -> None:
    outcomes = [TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.SKIPPED]
    merged = merge_doubles(ReportedTest(test_id="a", outcome=outcome) for outcome in outcomes)
    assert [(test.test_id, test.outcome) for test in merged] == [("a", TestOutcome.FAILED)]


def test_too_many_tests_are_refused() -> None:
    tests = (ReportedTest(test_id=str(index), outcome=TestOutcome.PASSED) for index in range(MAX_TESTS + 1))
    with pytest.raises(UnreadableResultError, match="more than 50000 tests"):
        merge_doubles(tests)


def test_an_id_is_short_on_one_line_and_still_its_own() -> None:
    one, other = make_id("c", "n\n" * 1000 + "a"), make_id("c", "n\n" * 1000 + "b")
    assert one != other
    assert len(one) == len(other) == 500
    assert "\n" not in one
    assert make_id("", "name\u202e") == "name\\u202e"


def test_nothing_invisible_is_shown() -> None:
    text = escape_text("\x1b[31mred\x1b[0m \x1b]0;title\x07a\u202eb\u200b\x00\x08\r\nnext\ttab\ud800")
    assert text == "red a\\u202eb\\u200b\\x00\\x08\nnext\ttab?"


def test_a_long_text_keeps_its_beginning_and_its_longer_end() -> None:
    text = shorten("b" + "ä" * 10_000 + "e", 1000)
    assert len(text.encode()) <= 1000
    assert text.startswith("bä")
    assert text.endswith("äe")
    assert text.index("[…]") < len(text) / 2


def test_the_evidence_of_many_failures_is_bounded_and_says_how_many_are_left_out() -> None:
    tests = [make_failed(test_id=f"t{index}", trace="x" * 5000) for index in range(20)]
    text = write_failures(tests)
    assert len(text.encode()) <= MAX_EVIDENCE_BYTES
    assert text.startswith("FAILED t0\n")
    assert "more failed tests]" in text


def test_megabytes_of_output_give_their_beginning_and_end() -> None:
    text = write_output(b"begin\n" + b"x" * 3_000_000 + "\nänd".encode())
    assert len(text.encode()) <= MAX_EVIDENCE_BYTES
    assert text.startswith("begin")
    assert text.endswith("änd")

"""JUnit XML from whoever: what is read of it, and what is refused."""

from __future__ import annotations

import pytest

from reasond_server.repair.results.reported_tests import AS_A_WHOLE, UnreadableResultError
from reasond_server.repair.results.result_parser import MAX_REPORT_BYTES, read_junit
from reasond_server.types.repairs import TestOutcome

PYTEST = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1">
<testcase classname="test_a" name="test_add"><failure message="assert -1 == 3">def test_add():
E  assert &lt;3&gt;</failure></testcase>
<testcase classname="test_a" name="test_ok"><system-out>printed</system-out></testcase>
<testcase classname="test_a" name="test_skip"><skipped type="pytest.skip" message="no">x</skipped></testcase>
<testcase classname="test_a.TestC" name="test_td"><failure message="first">one</failure></testcase>
<testcase classname="test_a.TestC" name="test_td"><error message="failed on teardown">two</error></testcase>
<testcase classname="" name="test_b"><error message="collection failure">No module named 'nothere'</error></testcase>
<testcase classname="" name="test_c"><skipped message="collection skipped">all</skipped></testcase>
</testsuite></testsuites>"""


def test_a_report_of_pytest_is_read() -> None:
    tests = read_junit(PYTEST.encode())
    assert [(test.test_id, test.outcome) for test in tests] == [
        ("test_a::test_add", TestOutcome.FAILED),
        ("test_a::test_ok", TestOutcome.PASSED),
        ("test_a::test_skip", TestOutcome.SKIPPED),
        ("test_a.TestC::test_td", TestOutcome.FAILED),
        ("test_a.TestC::test_td", TestOutcome.FAILED),
        (f"test_b{AS_A_WHOLE}", TestOutcome.FAILED),
        (f"test_c{AS_A_WHOLE}", TestOutcome.SKIPPED),
    ]
    assert tests[0].message == "assert -1 == 3"
    assert tests[0].trace.endswith("E  assert <3>")
    assert not tests[1].trace


def test_a_failure_and_an_error_of_one_test_are_one_failure() -> None:
    inner = b"<skipped/><failure message='f'>1</failure><error>2</error>"
    (test,) = read_junit(b"<testsuite><testcase name='a'>" + inner + b"</testcase></testsuite>")
    assert (test.test_id, test.outcome, test.message, test.trace) == ("a", TestOutcome.FAILED, "f", "1")


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (b"", "not well-formed"),
        (b"no xml", "not well-formed"),
        (b"<testsuite><testcase name='a'/>", "not well-formed"),
        (b"<testsuite/>\0", "not well-formed"),
        (b"\xff\xfe<\0a\0", "not well-formed"),
        (b"<html/>", "neither testsuites nor testsuite"),
        (b"<!DOCTYPE testsuite><testsuite/>", "document type"),
        (b"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><testsuite>&x;</testsuite>", "document type"),
        (b"<testsuite>&lol;</testsuite>", "not well-formed"),
        (b"<testsuite>" + b"<a>" * 40 + b"</a>" * 40 + b"</testsuite>", "deeper than 32 levels"),
        (b"<testsuite>" + b"<a/>" * 200_001 + b"</testsuite>", "more than 200000 elements"),
        (b"<testsuite>" + b" " * MAX_REPORT_BYTES + b"</testsuite>", "at most 4194304"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_no_report_or_attacks_its_reader_is_refused(report: bytes, reason: str) -> None:
    with pytest.raises(UnreadableResultError, match=reason):
        read_junit(report)


def test_entities_that_multiply_are_refused_before_they_are_read() -> None:
    entities = "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 12))
    report = f"<!DOCTYPE t [<!ENTITY l0 'lol'>{entities}]><testsuite>&l11;</testsuite>"
    with pytest.raises(UnreadableResultError, match="document type"):
        read_junit(report.encode())


def test_a_declared_encoding_is_not_believed() -> None:
    report = '<?xml version="1.0" encoding="utf-16"?><testsuite><testcase name="ä"/></testsuite>'
    assert [test.test_id for test in read_junit(report.encode())] == ["ä"]


def test_the_text_of_one_failure_is_bounded() -> None:
    text = "x" * 1_000_000
    (test,) = read_junit(f"<testsuite><testcase name='a'><error>{text}</error></testcase></testsuite>".encode())
    assert len(test.trace) == 64 * 1024

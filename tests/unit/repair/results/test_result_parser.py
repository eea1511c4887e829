"""One run of a check in each form of results."""

from __future__ import annotations

import pytest

from reasond_server.repair.results.reported_tests import UnreadableResultError
from reasond_server.repair.results.result_parser import CheckResults, read_results
from reasond_server.types.repairs import ResultFormat, TestOutcome
from tests.repairing import junit


def read(
    form: ResultFormat, *, report: str | None = None, output: str = "", code: int = 0, cut: bool = False
) -> CheckResults:
    content = None if report is None else report.encode()
    return read_results(form, report=content, output=output.encode(), is_output_cut=cut, exit_code=code)


def test_an_exit_code_names_no_tests_and_shows_what_was_printed_where_it_is_not_0() -> None:
    assert read(ResultFormat.EXIT_CODE, output="fine").evidence == ""
    failed = read(ResultFormat.EXIT_CODE, output="Traceback\nValueError: x", code=1)
    assert not failed.tests
    assert failed.evidence == "Traceback\nValueError: x"
    assert failed.fingerprints == read(ResultFormat.EXIT_CODE, output="Traceback\nValueError: x", code=1).fingerprints
    assert failed.fingerprints != read(ResultFormat.EXIT_CODE, output="Traceback\nTypeError: x", code=1).fingerprints


def test_a_report_gives_outcomes_fingerprints_and_evidence() -> None:
    results = read(ResultFormat.JUNIT, report=junit(a="passed", b="failed", c="skipped"), code=1)
    assert results.tests == {
        "t::a": TestOutcome.PASSED,
        "t::b": TestOutcome.FAILED,
        "t::c": TestOutcome.SKIPPED,
    }
    assert results.fingerprints.keys() == {"t::b"}
    assert results.evidence == "FAILED t::b\ntrace"


def test_where_a_report_names_no_failure_for_an_exit_code_the_output_is_shown() -> None:
    assert read(ResultFormat.JUNIT, report=junit(a="passed"), output="killed", code=3).evidence == "killed"


@pytest.mark.parametrize("form", [ResultFormat.TAP, ResultFormat.GO_JSON])
def test_a_stream_of_which_some_is_lost_is_not_read(form: ResultFormat) -> None:
    with pytest.raises(UnreadableResultError, match="results are lost"):
        read(form, output="1..1\nok 1 - a", cut=True)


def test_no_report_and_an_empty_report_are_told_apart() -> None:
    with pytest.raises(UnreadableResultError, match="wrote no report"):
        read(ResultFormat.JUNIT)
    with pytest.raises(UnreadableResultError, match="names no test"):
        read(ResultFormat.JUNIT, report="<testsuites><testsuite tests='0'/></testsuites>")
    with pytest.raises(UnreadableResultError, match="names no test"):
        read(ResultFormat.TAP, output="1..0 # skip nothing here")

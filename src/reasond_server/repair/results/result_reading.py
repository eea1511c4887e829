"""Reads how a check ended from its report or its output, in each of the forms that a check may have."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from reasond_server.repair.results.junit_results import read_junit
from reasond_server.repair.results.reported_tests import (
    ReportedTest,
    UnreadableResultError,
    fingerprint_failure,
    merge_doubles,
    write_failures,
    write_output,
)
from reasond_server.repair.results.stream_results import read_go_json, read_tap
from reasond_server.types.repairs import ResultFormat, TestOutcome
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping


@value
class CheckResults:
    """The tests of one run of a check, by id; none for a check that has an exit code alone.

    `fingerprints` identify how the failed ones failed, by id; the empty id is a check that has an exit code alone.
    `evidence` is what is shown of the failures.
    """

    tests: Mapping[str, TestOutcome] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    evidence: str = ""


def read_results(
    result_format: ResultFormat, *, report: bytes | None, output: bytes, is_output_cut: bool, exit_code: int
) -> CheckResults:
    """Return what a run reports; `report` is the content of its report file, None if there is none.

    Raises:
        UnreadableResultError: there is no report, it names no test, or it cannot be read.
    """
    if result_format is ResultFormat.EXIT_CODE:
        if exit_code == 0:
            return CheckResults()
        evidence = write_output(output)
        whole = ReportedTest(test_id="", outcome=TestOutcome.FAILED, message=evidence)
        return CheckResults(fingerprints={whole.test_id: fingerprint_failure(whole)}, evidence=evidence)
    if result_format is ResultFormat.JUNIT:
        if report is None:
            raise UnreadableResultError("it wrote no report, or one that is no plain file of at most 4 MiB")
        found = read_junit(report)
    elif is_output_cut:
        raise UnreadableResultError("it printed more than is kept, so results are lost")
    else:
        text = output.decode("utf-8", "replace")
        found = read_go_json(text) if result_format is ResultFormat.GO_JSON else read_tap(text)
    tests = merge_doubles(found)
    if not tests:
        raise UnreadableResultError("its report names no test")
    failed = [test for test in tests if test.outcome is TestOutcome.FAILED]
    return CheckResults(
        tests={test.test_id: test.outcome for test in tests},
        fingerprints={test.test_id: fingerprint_failure(test) for test in failed},
        evidence=write_failures(failed) or (write_output(output) if exit_code else ""),
    )

"""Reads how a check ended from its report or its output, in each of the forms that a check may have."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Final
from xml.parsers import expat

from reasond_server.repair.results.reported_tests import (
    AS_A_WHOLE,
    MAX_TESTS,
    ReportedTest,
    UnreadableResultError,
    fingerprint_failure,
    make_id,
    merge_doubles,
    write_failures,
    write_output,
)
from reasond_server.repair.results.stream_results import read_go_json, read_tap
from reasond_server.types.repairs import ResultFormat, TestOutcome
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_REPORT_BYTES: Final = 4 * 1024 * 1024
"""Largest report; the sandbox reads no more of a file."""

_MAX_DEPTH: Final = 32
_MAX_ELEMENTS: Final = 4 * MAX_TESTS
_MAX_TEXT: Final = 64 * 1024
_ROOTS: Final = ("testsuites", "testsuite")
_OUTCOMES: Final = {"failure": TestOutcome.FAILED, "error": TestOutcome.FAILED, "skipped": TestOutcome.SKIPPED}


def read_junit(content: bytes) -> Sequence[ReportedTest]:
    """Return the tests of a report in its order; ids may come twice.

    Raises:
        UnreadableResultError: it is not a report, too large, or XML that could attack its reader.
    """
    if len(content) > MAX_REPORT_BYTES:
        raise UnreadableResultError(f"the report has {len(content)} bytes; at most {MAX_REPORT_BYTES} are read")
    return _JunitReader().read(content)


class _JunitReader:
    """The handlers of one parse. The first test, element or level too many ends it."""

    def __init__(self) -> None:
        self._tests: list[ReportedTest] = []
        self._open: list[str] = []
        self._elements = 0
        self._case: tuple[str, str] | None = None
        self._outcome = TestOutcome.PASSED
        self._message = ""
        self._text: list[str] = []
        self._room = 0

    def read(self, content: bytes) -> Sequence[ReportedTest]:
        # The encoding is given, so that a declaration cannot choose one of Python's codecs.
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse_doctype
        parser.EntityDeclHandler = _refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            place = f"line {error.lineno}, column {error.offset}"
            raise UnreadableResultError(f"the report is not well-formed XML at {place}") from None
        return self._tests

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if not self._open and name not in _ROOTS:
            raise UnreadableResultError("the report is XML, but its root is neither testsuites nor testsuite")
        self._elements += 1
        if self._elements > _MAX_ELEMENTS:
            raise UnreadableResultError(f"the report has more than {_MAX_ELEMENTS} elements")
        if len(self._open) >= _MAX_DEPTH:
            raise UnreadableResultError(f"the report is nested deeper than {_MAX_DEPTH} levels")
        parent = self._open[-1] if self._open else ""
        self._open.append(name)
        if name == "testcase":
            self._case = (attributes.get("classname", ""), attributes.get("name", ""))
            self._outcome, self._message, self._text, self._room = TestOutcome.PASSED, "", [], 0
        elif parent == "testcase" and name in _OUTCOMES and self._outcome is not TestOutcome.FAILED:
            self._outcome = _OUTCOMES[name]
            self._message = attributes.get("message", "")[:_MAX_TEXT]
            self._text, self._room = [], _MAX_TEXT

    def _end(self, name: str) -> None:
        self._open.pop()
        if name in _OUTCOMES:
            self._room = 0
        elif name == "testcase" and self._case is not None:
            self._tests.append(self._make_test(*self._case))
            self._case = None

    def _make_test(self, classname: str, name: str) -> ReportedTest:
        # pytest reports a file that it cannot collect as a test without a class.
        is_file = not classname and self._message in {"collection failure", "collection skipped"}
        trace = "".join(self._text)
        return ReportedTest(
            test_id=make_id(classname, name) + (AS_A_WHOLE if is_file else ""),
            outcome=self._outcome,
            message="" if is_file else self._message,
            trace=trace,
        )

    def _add_text(self, text: str) -> None:
        if self._room > 0:
            self._text.append(text[: self._room])
            self._room -= len(text)


def _refuse_doctype(*_: object) -> None:
    raise UnreadableResultError("the report has a document type, which could define entities")


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

"""Reads how a check ended from its report or its output, in each of the forms that a check may have."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final
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
from reasond_server.types.repairs import ResultFormat, TestOutcome
from reasond_server.types.values import value

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


_MAX_LINE: Final = 64 * 1024
_MAX_TRACE: Final = 64 * 1024
_INDENT: Final = 4
_GO_OUTCOMES: Final = {"pass": TestOutcome.PASSED, "fail": TestOutcome.FAILED, "skip": TestOutcome.SKIPPED}
# Lines of the runner itself, which hold times and say nothing about a failure.
_GO_FRAME = re.compile(r"\s*(?:=== |--- (?:FAIL|PASS|SKIP)|PASS$|FAIL$|FAIL\t|ok  \t|exit status )")
_TAP_POINT = re.compile(r"(?P<no>not )?ok\b *(?P<number>\d{0,9}) *(?:- )?(?P<rest>.*)")
_TAP_PLAN = re.compile(r"1\.\.(?P<count>\d{1,9})\b(?P<skip> *# *skip)?", re.IGNORECASE)
_TAP_DIRECTIVE = re.compile(r"(?<!\\)# *(?P<word>skip|todo)\b", re.IGNORECASE)
_TAP_TIME = re.compile(r" +# time=[\d.]+ *m?s *$")
# Fields of Node's reports that say where and when, not what.
_TAP_NOISE = re.compile(r"\s*(?:duration_ms|location|stack|type|failureType|name|code|at):")


def read_go_json(output: str) -> Sequence[ReportedTest]:
    """Return the tests of `go test -json`; a package that failed without one is a test as a whole.

    A test that began and did not end has failed.

    Raises:
        UnreadableResultError: no line is an event of a package.
    """
    reader = _GoReader()
    for line in output.splitlines():
        event = _read_event(line)
        if event is not None:
            reader.add(event)
    return tuple(reader.finish())


def read_tap(output: str) -> Sequence[ReportedTest]:
    """Return the test points; those of subtests have the names of their parents before them.

    Another number of points than the plan promises, and a "Bail out!", are failures. A failed TODO is skipped.

    Raises:
        UnreadableResultError: there is no plan, or none of the points of the outermost level.
    """
    return _TapReader().read(output)


def _read_event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{") or len(line) > _MAX_LINE:
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(event, dict) and all(isinstance(value, str | int | float) for value in event.values())
    return event if is_event and isinstance(event.get("Action"), str) else None


class _GoReader:
    """Events by package and test, in the order of their first event."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], TestOutcome | None] = {}
        self._output: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        self._builds: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        package = str(event.get("Package") or event.get("ImportPath") or "")
        key = (package, str(event.get("Test", "")))
        action = event["Action"]
        if action in {"output", "build-output"}:
            self._add_output(key, str(event.get("Output", "")))
        elif "Package" not in event:
            return
        elif action in _GO_OUTCOMES:
            self._note(key, _GO_OUTCOMES[action])
            self._builds[package] = str(event.get("FailedBuild", ""))
        elif action in {"run", "start"}:
            self._outcomes.setdefault(key, None)

    def finish(self) -> Iterator[ReportedTest]:
        if not any(package for package, _ in self._outcomes):
            raise UnreadableResultError("the output has no event of `go test -json`")
        single: dict[str, list[TestOutcome]] = defaultdict(list)
        for (package, name), outcome in self._outcomes.items():
            if name:
                ended = outcome or TestOutcome.FAILED
                single[package].append(ended)
                yield self._make(make_id(package, name), ended, (package, name))
        for (package, name), outcome in self._outcomes.items():
            ended = outcome or TestOutcome.FAILED
            is_said = bool(single[package]) and (
                ended is not TestOutcome.FAILED or TestOutcome.FAILED in single[package]
            )
            if not name and not is_said:
                built = (self._builds.get(package, ""), "")
                yield self._make(make_id(package) + AS_A_WHOLE, ended, built if built[0] else (package, ""))

    def _note(self, key: tuple[str, str], outcome: TestOutcome) -> None:
        # A forged event cannot take back a failure.
        if self._outcomes.get(key) is not TestOutcome.FAILED:
            self._outcomes[key] = outcome

    def _add_output(self, key: tuple[str, str], text: str) -> None:
        if self._sizes[key] < _MAX_TRACE and not _GO_FRAME.match(text):
            self._output[key].append(text)
            self._sizes[key] += len(text)

    def _make(self, test_id: str, outcome: TestOutcome, key: tuple[str, str]) -> ReportedTest:
        trace = "".join(self._output[key]) if outcome is TestOutcome.FAILED else ""
        lines = trace.strip().splitlines()
        return ReportedTest(test_id=test_id, outcome=outcome, message=lines[0] if lines else "", trace=trace)


class _TapReader:
    """Test points by level; the points of a level wait for the point of their parent, which comes after them."""

    def __init__(self) -> None:
        self._levels: list[list[ReportedTest]] = [[]]
        self._planned: int | None = None
        self._points = 0
        self._is_skipped = False
        self._block: list[str] | None = None

    def read(self, output: str) -> Sequence[ReportedTest]:
        for line in output.splitlines():
            self._take(line[:_MAX_LINE])
        if self._planned is None:
            raise UnreadableResultError("the output has no plan of TAP, such as 1..3")
        if not self._points and not self._is_skipped:
            raise UnreadableResultError("the output has no test point of TAP")
        tests = [test for level in self._levels for test in level]
        if self._points != self._planned:
            text = f"{self._points} tests ended where {self._planned} were planned"
            tests.append(
                ReportedTest(test_id=f"plan{AS_A_WHOLE}", outcome=TestOutcome.FAILED, message=text, trace=text)
            )
        return tests

    def _take(self, line: str) -> None:
        text = line.lstrip(" ")
        level = (len(line) - len(text)) // _INDENT
        if self._block is not None:
            if text == "...":
                self._close_block()
            else:
                self._block.append(line)
        elif text == "---":
            self._block = []
        elif text.startswith("Bail out!"):
            reason = text.removeprefix("Bail out!").strip()
            failed = ReportedTest(
                test_id=f"bail out{AS_A_WHOLE}", outcome=TestOutcome.FAILED, message=reason, trace=reason
            )
            self._levels[0].append(failed)
        elif plan := _TAP_PLAN.match(text):
            self._take_plan(level, plan)
        elif point := _TAP_POINT.match(text):
            self._take_point(min(level, _MAX_DEPTH), point)

    def _take_plan(self, level: int, plan: re.Match[str]) -> None:
        if level == 0:
            # Of several plans the largest holds: a forged one cannot make the real one smaller.
            self._planned = max(self._planned or 0, int(plan["count"]))
            self._is_skipped = plan["skip"] is not None and int(plan["count"]) == 0

    def _take_point(self, level: int, point: re.Match[str]) -> None:
        while len(self._levels) <= level:
            self._levels.append([])
        rest = _TAP_TIME.sub("", point["rest"].removesuffix("{").rstrip())
        directive = _TAP_DIRECTIVE.search(rest)
        name = (rest[: directive.start()] if directive else rest).strip() or f"test {point['number']}"
        outcome = TestOutcome.FAILED if point["no"] else TestOutcome.PASSED
        if directive and (directive["word"].lower() == "skip" or outcome is TestOutcome.FAILED):
            outcome = TestOutcome.SKIPPED
        inner = [test for deeper in self._levels[level + 1 :] for test in deeper]
        del self._levels[level + 1 :]
        self._levels[level].extend(
            ReportedTest(
                test_id=make_id(name, test.test_id), outcome=test.outcome, message=test.message, trace=test.trace
            )
            for test in inner
        )
        self._levels[level].append(ReportedTest(test_id=make_id(name), outcome=outcome))
        self._points += level == 0

    def _close_block(self) -> None:
        lines, self._block = self._block or [], None
        last = next((level[-1] for level in reversed(self._levels) if level), None)
        if last is None or last.outcome is not TestOutcome.FAILED:
            return
        trace = "\n".join(lines)[:_MAX_TRACE]
        telling = "\n".join(_drop_noise(lines))[:_MAX_TRACE]
        level = next(level for level in reversed(self._levels) if level)
        level[-1] = ReportedTest(test_id=last.test_id, outcome=last.outcome, message=telling.strip(), trace=trace)


def _drop_noise(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a YAML block without the fields that say where and when, and what belongs to these."""
    indent: int | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip(" "))
        if indent is not None and (not line.strip() or depth > indent):
            continue
        indent = depth if _TAP_NOISE.match(line) else None
        if indent is None:
            yield line

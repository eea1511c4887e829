"""Reads results from what a command prints: `go test -json`, and the Test Anything Protocol.

The code under test writes to the same stream. What these formats cannot exclude stands in docs/guides/verified.md.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from reasond_server.repair.results.reported_tests import AS_A_WHOLE, ReportedTest, UnreadableResultError, make_id
from reasond_server.types.repairs import TestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_LINE: Final = 64 * 1024
_MAX_TRACE: Final = 64 * 1024
_MAX_DEPTH: Final = 32
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

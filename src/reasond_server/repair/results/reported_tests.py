"""Tests as reports name them: their ids, outcomes and failures, and what is shown of these.

Everything in a report is untrusted: the code under test ran in the process that wrote it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from reasond_server.tools.results import escape_unseen
from reasond_server.types.repairs import TestOutcome
from reasond_server.types.values import value

MAX_EVIDENCE_BYTES: Final = 8 * 1024
"""Most bytes of evidence, of one check and of all of them for the model."""
MAX_TESTS: Final = 50_000
"""Most tests that one report may name."""
AS_A_WHOLE: Final = " (as a whole)"
"""Ends the id of a file or package that failed, or said nothing, before its single tests were known."""

_MAX_ID_CHARACTERS: Final = 500
_MAX_TRACE_BYTES: Final = 2 * 1024
_MAX_COMPARED_CHARACTERS: Final = 8 * 1024
_HEAD_SHARE: Final = 0.25
_CUT: Final = "\n[…]\n"
_WORST_FIRST: Final = (TestOutcome.FAILED, TestOutcome.MISSING, TestOutcome.SKIPPED, TestOutcome.PASSED)
_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f]")
# What differs between two runs of the same code, in the order in which it is replaced.
_NOISE: Final = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "UUID"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"), "TIME"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "ADDRESS"),
    (re.compile(r"(?:/[\w.@+~-]+)+/(?=[\w.@+~-])"), ""),
    (re.compile(r"\b(?:tmp|report-)[\w-]{6,}"), "TEMPORARY"),
    (re.compile(r"\b(?:goroutine|pid|process|thread)[ =:]+\d+", re.IGNORECASE), "PROCESS"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|seconds?|milliseconds?)\b"), "DURATION"),
    (re.compile(r"\bline \d+", re.IGNORECASE), "LINE"),
    (re.compile(r"(?<=[\w)]):\d+(?::\d+)?(?=$|[\s:),'\"])", re.MULTILINE), ":LINE"),
    (re.compile(r"\s+"), " "),
)
# The same in what the model is shown, where all else may tell it something: addresses of Python's objects, and how long
# pytest, unittest, Go and Node say that they ran.
_CHANCE: Final = (
    (re.compile(r"(?<= at )0x[0-9a-fA-F]+\b"), "0x…"),
    (re.compile(r"(?<= in )\d+\.\d+s(?: \([\d:]+\))?(?=(?: =+)?$)", re.MULTILINE), "…s"),
    (re.compile(r"(?<= \()\d+\.\d\ds(?=\)$)|(?<=\t)\d+\.\d{3}s$", re.MULTILINE), "…s"),
    (re.compile(r"(?<=\bduration_ms[: ])(\s*)\d+(?:\.\d+)?$", re.MULTILINE), r"\1…"),
)


class UnreadableResultError(Exception):
    """The result of a check cannot be read; the text says why, in our own words."""


@value
class ReportedTest:
    """One test of a report. `message` is how it failed in short, `trace` all that is said about it."""

    test_id: str
    outcome: TestOutcome
    message: str = ""
    trace: str = ""


def make_id(*parts: str) -> str:
    """Return the id of a test from its parts: visible, on one line, at most 500 characters, different for each test."""
    text = escape_text("::".join(part for part in parts if part)).replace("\n", "\\n").replace("\t", "\\t")
    if len(text) <= _MAX_ID_CHARACTERS:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: _MAX_ID_CHARACTERS - len(mark) - 1]}~{mark}"


def merge_doubles(tests: Iterable[ReportedTest]) -> Sequence[ReportedTest]:
    """Return `tests` with one entry for each id, the worst of them.

    Raises:
        UnreadableResultError: there are more than MAX_TESTS.
    """
    merged: dict[str, ReportedTest] = {}
    for test in tests:
        before = merged.get(test.test_id)
        if before is None or _WORST_FIRST.index(test.outcome) < _WORST_FIRST.index(before.outcome):
            merged[test.test_id] = test
        if len(merged) > MAX_TESTS:
            raise UnreadableResultError(f"the report names more than {MAX_TESTS} tests")
    return tuple(merged.values())


def fingerprint_failure(test: ReportedTest) -> str:
    """Return 16 hexadecimal digits that are equal for failures that differ in times, addresses and places only."""
    text = (test.message or _last_line(test.trace))[:_MAX_COMPARED_CHARACTERS]
    for pattern, replacement in _NOISE:
        text = pattern.sub(replacement, text)
    return hashlib.sha256(text.strip().encode("utf-8", "replace")).hexdigest()[:16]


def write_failures(tests: Iterable[ReportedTest]) -> str:
    """Return what is said about the tests that failed, at most MAX_EVIDENCE_BYTES."""
    parts: list[str] = []
    room = MAX_EVIDENCE_BYTES
    failed = [test for test in tests if test.outcome is TestOutcome.FAILED]
    for index, test in enumerate(failed):
        text = _hide_chance(escape_text(test.trace or test.message)).strip()
        part = f"FAILED {test.test_id}\n{shorten(text, _MAX_TRACE_BYTES)}".rstrip()
        if len(part.encode()) + 2 > room:
            parts.append(f"[and {len(failed) - index} more failed tests]")
            break
        parts.append(part)
        room -= len(part.encode()) + 2
    return shorten("\n\n".join(parts), MAX_EVIDENCE_BYTES)


def write_output(output: bytes) -> str:
    """Return the beginning and the end of what a command printed, at most MAX_EVIDENCE_BYTES."""
    most = 4 * MAX_EVIDENCE_BYTES
    kept = output if len(output) <= 2 * most else output[:most] + output[-most:]
    return shorten(_hide_chance(escape_text(kept.decode("utf-8", "replace"))).strip(), MAX_EVIDENCE_BYTES)


def _hide_chance(text: str) -> str:
    """Return `text` without what differs between two runs of the same code: equal failures are shown alike."""
    for pattern, replacement in _CHANCE:
        text = pattern.sub(replacement, text)
    return text


def escape_text(text: str) -> str:
    """Return `text` without codes for terminals, and with all other characters that cannot be seen as escapes."""
    text = _TERMINAL_CODES.sub("", text.replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8"))
    return escape_unseen(_CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text))


def shorten(text: str, most: int) -> str:
    """Return `text` in at most `most` bytes of UTF-8: its beginning and its longer end, with a mark between."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    room = most - len(_CUT.encode())
    head = int(room * _HEAD_SHARE)
    begins, ends = encoded[:head], encoded[head - room :]
    return begins.decode("utf-8", "ignore") + _CUT + ends.decode("utf-8", "ignore")


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")

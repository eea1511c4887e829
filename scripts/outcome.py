"""Read the summary lines of pytest, so that the counts of several runs can be added."""

from __future__ import annotations

import re
from dataclasses import dataclass

CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s\b", re.MULTILINE)
COUNT = re.compile(r"(\d+) ([a-z]+)")
BAD = {"failed", "error", "errors", "xpassed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tests by outcome; can be added."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
        )

    def line(self) -> str:
        """Return the counts in pytest's words; skipped tests are named only if there are any."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_tests(output: str, *, is_passed: bool) -> Counts:
    """Return the sum of the counts in all summary lines of `output`.

    A run that failed without a failed test (collection failed, or the run was stopped) counts as one failed test.
    """
    total = Counts()
    for closing in CLOSING.findall(output):
        ended = {word: int(number) for number, word in COUNT.findall(closing)}
        total += Counts(
            passed=ended.get("passed", 0) + ended.get("xfailed", 0),
            failed=sum(number for word, number in ended.items() if word in BAD),
            skipped=ended.get("skipped", 0),
        )
    return total if is_passed or total.failed else total + Counts(failed=1)


def failed_tests(output: str) -> list[str]:
    """Return the ids of the failed tests in pytest's summary, each once."""
    return list(dict.fromkeys(line.partition(" ")[2].partition(" - ")[0] for line in failures(output)))


def notices(output: str) -> list[str]:
    """Return the lines to show even after success: skipped tests and notes of stages."""
    return [line for line in output.splitlines() if line.startswith(("SKIPPED", "note:"))]


def failures(output: str) -> list[str]:
    """Return the lines of pytest's summary that name a failed test and the reason."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]

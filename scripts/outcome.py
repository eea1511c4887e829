"""Read the closing lines of pytest, so that several runs can be summed into one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

CLOSING = re.compile(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s\b", re.MULTILINE)
COUNT = re.compile(r"(\d+) ([a-z]+)")
BAD = {"failed", "error", "errors", "xpassed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of tests by how they ended; addable."""

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
        """Return the counts in pytest's words; what was skipped only where something was."""
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count_tests(output: str, *, is_passed: bool) -> Counts:
    """Return the counts of all closing lines in `output`.

    A run that failed without saying which test did (it could not collect, or was stopped) counts as one failed.
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


def notices(output: str) -> list[str]:
    """Return the lines that deserve to be seen although all went well: skipped tests and notes of stages."""
    return [line for line in output.splitlines() if line.startswith(("SKIPPED", "note:"))]


def failures(output: str) -> list[str]:
    """Return the lines that name a test that failed, and why, as pytest's summary has them."""
    return [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]

"""Notes of failed candidates for the prompts of later ones: what each behaviour changed, and how it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.types.repairs import CandidateStatus, CheckStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.repair.results.outcomes import Critique
    from reasond_server.repair.search.voting import JudgedCandidate

MOST_NOTES: Final = 12
_MOST_CHANGE: Final = 300
_MOST_FAILURE: Final = 160


def write_notes(judged: Sequence[JudgedCandidate]) -> str:
    """Return one line for each behaviour of failed candidates, at most MOST_NOTES; the nearest to a repair come first.

    Equal behaviours are one line, with the change of the first that showed it.
    """
    alike: dict[str, list[JudgedCandidate]] = {}
    for one in judged:
        if one.candidate.status is CandidateStatus.PROPOSED and not one.critique.is_solution:
            alike.setdefault(one.critique.signature or one.candidate.key, []).append(one)
    best = sorted(alike.values(), key=lambda group: -group[0].critique.score)[:MOST_NOTES]
    return "\n".join(
        f"- score {group[0].critique.score:.0f}{f', {len(group)} times' if len(group) > 1 else ''}: "
        f"{write_change(group[0].candidate.diff)} | {_describe_failure(group[0].critique)}"
        for group in best
    )


def write_change(diff: str) -> str:
    """Return the changed lines of a diff in one line."""
    changed = [
        f"{line[0]} {line[1:].strip()}"
        for line in diff.splitlines()
        if line[:1] in {"+", "-"} and not line.startswith(("+++", "---")) and line[1:].strip()
    ]
    return "; ".join(changed)[:_MOST_CHANGE]


def _describe_failure(critique: Critique) -> str:
    failed = [test for report in critique.reports for test in report.failed]
    ended = [f"{report.name} {report.status}" for report in critique.reports if report.status is not CheckStatus.PASSED]
    return f"fails {', '.join(failed or ended) or critique.evidence}"[:_MOST_FAILURE].replace("\n", " ")

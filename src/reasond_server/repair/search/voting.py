"""The vote among candidates, and what the prompts of later ones tell of those that failed.

Those that behave alike are one cluster, which weighs its share times its evidence.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from reasond_server.types.repairs import CandidateStatus, CandidateVote, CheckStatus, VoteResult
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.repair.results.outcomes import Critique
    from reasond_server.repair.search.activities import RepairCandidate

CRITERIA: Final = ("gate", "cluster", "score", "diff_size")
"""What decides, in this order."""


@value
class JudgedCandidate:
    """A candidate with what the critics say of it."""

    candidate: RepairCandidate
    critique: Critique


def rank_candidates(judged: Sequence[JudgedCandidate]) -> Sequence[JudgedCandidate]:
    """Return the candidates, the best first.

    Those that pass the gate come before all others. Then decides the weight of the cluster, then the share of tests
    that pass, then the score, then the smaller diff, then the age.
    """
    weights = {vote.candidate_id: vote.weight for vote in vote_on(judged).votes}
    return sorted(
        judged,
        key=lambda one: (
            not one.critique.is_solution,
            -weights[one.candidate.candidate_id],
            -one.critique.pass_percent,
            -one.critique.score,
            len(one.candidate.diff),
            one.candidate.number,
        ),
    )


def vote_on(judged: Sequence[JudgedCandidate]) -> VoteResult:
    """Return the votes, the heaviest first.

    A candidate weighs the share of the candidates that behave like it, times the evidence for it, which is its score as
    a share of 100. A candidate of which nothing was run is a cluster of its own.
    """
    clusters = [one.critique.signature or one.candidate.candidate_id for one in judged]
    sizes = Counter(clusters)
    votes = []
    for one, cluster in zip(judged, clusters, strict=True):
        evidence = one.critique.score / 100
        votes.append(
            CandidateVote(
                candidate_id=one.candidate.candidate_id,
                weight=sizes[cluster] / len(judged) * evidence,
                cluster_size=sizes[cluster],
                evidence=evidence,
            )
        )
    # The sort is stable: the older of two equal candidates comes first.
    return VoteResult(votes=sorted(votes, key=lambda vote: -vote.weight), criteria=CRITERIA)


def name_models(judged: Sequence[JudgedCandidate]) -> str:
    """Return who wrote the candidates, in the order in which they first did; empty where one model has that name."""
    return ", ".join(dict.fromkeys(one.candidate.model for one in judged if one.candidate.model))


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

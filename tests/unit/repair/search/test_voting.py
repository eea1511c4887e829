"""The vote among candidates."""

from __future__ import annotations

from reasond_server.repair.results.outcomes import Critique
from reasond_server.repair.search.activities import RepairCandidate
from reasond_server.repair.search.voting import JudgedCandidate, rank_candidates, vote_on
from reasond_server.types.repairs import CandidateVerdict


def make(
    number: int, score: float, *, passes: bool = False, behaviour: str = "", diff: str = "d", percent: float = 50.0
) -> JudgedCandidate:
    return JudgedCandidate(
        candidate=RepairCandidate(
            candidate_id=f"cand-{number}", number=number, parent_id="", depth=1, changes={}, diff=diff
        ),
        critique=Critique(
            verdict=CandidateVerdict.PASSED if passes else CandidateVerdict.FAILED,
            score=score,
            is_solution=passes,
            signature=behaviour,
            pass_percent=percent,
        ),
    )


def order(*judged: JudgedCandidate) -> list[int]:
    return [one.candidate.number for one in rank_candidates(judged)]


def test_a_candidate_that_passes_beats_any_number_that_fail_alike() -> None:
    assert (
        order(make(1, 84, behaviour="a"), make(2, 84, behaviour="a"), make(3, 80, passes=True, behaviour="b"))[0] == 3
    )


def test_among_equals_the_larger_cluster_wins() -> None:
    judged = [make(1, 100, passes=True, behaviour="a")]
    judged += [make(number, 100, passes=True, behaviour="b") for number in (2, 3)]
    assert order(*judged) == [2, 3, 1]


def test_a_cluster_weighs_its_share_times_its_evidence() -> None:
    votes = vote_on([make(1, 100, behaviour="a"), make(2, 40, behaviour="b"), make(3, 40, behaviour="b")]).votes
    assert [(vote.candidate_id, round(vote.weight, 3), vote.cluster_size) for vote in votes] == [
        ("cand-1", 0.333, 1),
        ("cand-2", 0.267, 2),
        ("cand-3", 0.267, 2),
    ]


def test_ties_go_to_the_smaller_diff_then_to_the_older_one() -> None:
    assert order(
        make(1, 90, behaviour="a", diff="long diff"), make(2, 90, behaviour="a"), make(3, 90, behaviour="a")
    ) == [
        2,
        3,
        1,
    ]


def test_candidates_of_which_nothing_was_run_are_no_cluster() -> None:
    assert [vote.cluster_size for vote in vote_on([make(1, 0), make(2, 0)]).votes] == [1, 1]


def test_a_vote_on_nothing_is_empty() -> None:
    assert not vote_on([]).votes

"""A vote over answers: who leads, by how much, and whether the votes to come can still change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Shares such as 0.6 of 5 votes must not fail by the last bit of a float.
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Votes in the order in which they were cast; an empty one is a sample without an answer, and no vote."""

    cast: Sequence[str] = ()

    @property
    def votes(self) -> Sequence[tuple[str, int]]:
        """Answers with their votes: most votes first, of equals the one that was given first."""
        counts: dict[str, int] = {}
        for answer in self.cast:
            if answer:
                counts[answer] = counts.get(answer, 0) + 1
        return sorted(counts.items(), key=lambda item: -item[1])

    @property
    def total(self) -> int:
        """Votes in all."""
        return sum(votes for _, votes in self.votes)

    @property
    def winner(self) -> str:
        """The answer that leads; empty without votes."""
        votes = self.votes
        return votes[0][0] if votes else ""

    @property
    def margin(self) -> float:
        """Share of the winner less that of the runner-up, 0.0-1.0; 0 without votes."""
        counts = [count for _, count in self.votes]
        if not counts:
            return 0.0
        return (counts[0] - (counts[1] if len(counts) > 1 else 0)) / sum(counts)

    def agrees(self, min_agreement: float) -> bool:
        """Return whether the winner has at least that share of the votes."""
        votes = self.votes
        return bool(votes) and votes[0][1] + _TOLERANCE >= min_agreement * self.total

    def is_decided(self, left: int, *, min_agreement: float) -> bool:
        """Return whether nothing that `left` further samples may say changes the outcome.

        Either the leader stays ahead (a tie goes to the answer that was given first, so a later one must have more)
        and has its share even if all others disagree, or no answer can reach its share any more, not even the leader
        with every vote that is left.
        """
        votes = self.votes
        most = votes[0][1] if votes else 0
        if most + left + _TOLERANCE < min_agreement * (self.total + left):
            return True
        if not votes:
            return left == 0
        leader = self.cast.index(votes[0][0])
        rivals = [count + left - (self.cast.index(answer) > leader) for answer, count in votes[1:]]
        stays = all(rival < most for rival in [*rivals, left - 1])
        return stays and most + _TOLERANCE >= min_agreement * (self.total + left)

    def fewest(self, left: int, *, min_agreement: float) -> int:
        """Return how many of the `left` samples can decide the vote at the earliest: fewer never can.

        That is if all agree with the leader, or, where that rules out agreement, if no two agree with anybody.
        """
        for count in range(left):
            agreeing = [self.winner or "?"] * count
            differing = [f"?{number}" for number in range(count)]
            for more in (agreeing, differing):
                if Tally(cast=(*self.cast, *more)).is_decided(left - count, min_agreement=min_agreement):
                    return count
        return left

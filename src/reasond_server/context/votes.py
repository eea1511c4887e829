"""The count of votes: who leads, whether the outcome is decided, and how probable it is that it would change.

Votes come one by one, and their order tells how sure the lead is. Against a rival w it is weighed by betting: before
each vote a part s of what we hold is staked on the leader among the others, at even odds against w,

    s = max(0, (a - b) / (a + b + 1)),    a and b: the votes so far of that leader and of w,

so that a vote for the leader multiplies the evidence by 1 + s, one for w by 1 - s, and any other leaves it. If w is
what all samples together would choose, or what the model says most often, none of these bets gains on average, and by
Ville's inequality the evidence ever reaches 1 / e with a probability of at most e. That holds whatever the shares of
the answers are, and whenever one stops; it needs no prior, only samples that could have come in any other order. So 1
over the least evidence against a rival, one that was never seen included, bounds the probability of a wrong winner.

Sources: Ville 1939; Krichevsky and Trofimov 1981 (the stake); Waudby-Smith and Ramdas 2020, arXiv 2010.09686 (bets) and
2006.04347 (draws without replacement).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reasond_server.types.values import value

# A share such as 0.6 of 5 votes must not fail because of floating-point rounding.
_TOLERANCE = 1e-9


@value
class Tally:
    """The answers of samples, in order; an empty answer is not a vote, but its sample counts in every share.

    `weights` are what each counts, above 0 and at most 1; without them, every one counts 1.
    """

    cast: Sequence[str] = ()
    weights: Sequence[float] = ()

    @property
    def votes(self) -> Sequence[tuple[str, float]]:
        """Answers with their votes: most votes first; in a tie, the answer that was given first."""
        counts: dict[str, float] = {}
        for answer, weight in zip(self.cast, self.weights or [1] * len(self.cast), strict=True):
            if answer:
                counts[answer] = counts.get(answer, 0) + weight
        return sorted(counts.items(), key=lambda item: -item[1])

    @property
    def total(self) -> float:
        """Votes of all samples taken, with or without an answer."""
        return sum(self.weights) if self.weights else len(self.cast)

    @property
    def winner(self) -> str:
        """The leading answer; empty without votes."""
        votes = self.votes
        return votes[0][0] if votes else ""

    @property
    def margin(self) -> float:
        """Share of the samples with the winner minus the share of the second answer, 0.0-1.0; 0 without votes."""
        counts = [count for _, count in self.votes]
        if not counts:
            return 0.0
        return (counts[0] - (counts[1] if len(counts) > 1 else 0)) / self.total

    def has_agreement(self, min_agreement: float) -> bool:
        """Return whether at least the share `min_agreement` of the samples gave the winner."""
        votes = self.votes
        return bool(votes) and votes[0][1] + _TOLERANCE >= min_agreement * self.total

    def is_decided(self, left: int, *, min_agreement: float, confidence: float = 1.0) -> bool:
        """Return whether the answers of `left` further samples need not be known.

        That is true in three cases. Either the leader stays ahead and reaches `min_agreement` even if all further
        samples disagree (in a tie the first answer wins, so a later one needs more votes). Or no answer can reach
        `min_agreement`, not even the leader with every remaining vote. Or the leader reaches it now, and another would
        win with a probability of at most 1 - `confidence`.
        """
        votes = self.votes
        most = votes[0][1] if votes else 0
        if most + left + _TOLERANCE < min_agreement * (self.total + left):
            return True
        if not votes:
            return left == 0
        if self._is_leader_safe(left) and most + _TOLERANCE >= min_agreement * (self.total + left):
            return True
        return confidence < 1 and self.has_agreement(min_agreement) and self.bound_error(left) <= 1 - confidence

    def _is_leader_safe(self, left: int) -> bool:
        """Return whether the leader stays ahead, whatever `left` further samples answer."""
        (answer, most), *others = self.votes
        place = self.cast.index(answer)
        is_later = {rival: self.cast.index(rival) > place for rival, _ in others}
        return left <= most and all(
            count + left < most or (is_later[rival] and count + left == most) for rival, count in others
        )

    def bound_error(self, left: int) -> float:
        """Return a bound of the probability that the winner is not that of all samples, `left` further ones included.

        It is 0 if the winner stays ahead in any case, and 1 without votes and for weighed ones, whose order says less.
        """
        if not self.winner:
            return 1.0
        if self._is_leader_safe(left):
            return 0.0
        if self.weights:
            return 1.0
        rivals = [*(answer for answer, _ in self.votes[1:]), ""]
        return 1 / max(1.0, min(self._weigh_evidence(rival) for rival in rivals))

    def _weigh_evidence(self, rival: str) -> float:
        """Return the evidence that `rival` does not win; "" is one that was never seen. See the head of the module."""
        counts: Counter[str] = Counter()
        leader, evidence = "", 1.0
        for answer in filter(None, self.cast):
            ahead, behind = counts[leader], counts[rival]
            stake = max(0, ahead - behind) / (ahead + behind + 1)
            if answer == rival:
                evidence *= 1 - stake
            elif answer == leader:
                evidence *= 1 + stake
            counts[answer] += 1
            if answer != rival and counts[answer] > counts[leader]:
                leader = answer
        return evidence

    def count_fewest(self, left: int, *, min_agreement: float, confidence: float = 1.0) -> int:
        """Return the fewest of the `left` samples that can end the vote.

        It ends earliest if all of them agree with the leader, or if they all differ, which can make agreement
        impossible.
        """
        for count in range(left):
            weights = (*self.weights, *[1.0] * count) if self.weights else ()
            agreeing = Tally(cast=(*self.cast, *[self.winner or "?"] * count), weights=weights)
            differing = Tally(cast=(*self.cast, *[f"?{number}" for number in range(count)]), weights=weights)
            if agreeing.is_decided(left - count, min_agreement=min_agreement, confidence=confidence):
                return count
            if differing.is_decided(left - count, min_agreement=min_agreement):
                return count
        return left

"""The tree: nodes that were judged, and the ports through which they are made."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reasond_server.search.allowance import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

PayloadT = TypeVar("PayloadT")

ROOT_ID = "n0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an evaluator found out about one candidate.

    Attributes:
        score: 0.0-1.0; None where there is no evidence.
        is_solution: whether the candidate solves the task; a solution is never expanded.
        signature: equal for candidates that behave alike, however they are written; empty where that was not observed.
        evidence: what the verdict rests on, for the caller's own proposer and steps; the search does not read it.
    """

    score: float | None = None
    is_solution: bool = False
    signature: str = ""
    evidence: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node(Generic[PayloadT]):
    """A place in the tree. Child `i` (from 0) of node `n0.2` is `n0.2.i`; the root is `n0`.

    `number` counts nodes in the order in which they were made, the root being 0. `score` is that of the verdict, or the
    plan's `unknown_score` where the verdict has none.
    """

    node_id: str
    number: int
    payload: PayloadT
    parent: Node[PayloadT] | None = None
    depth: int = 0
    score: float = 0.0
    verdict: Verdict = Verdict()

    @property
    def is_solution(self) -> bool:
        """Whether the node is a whole solution."""
        return self.verdict.is_solution

    @property
    def is_judged(self) -> bool:
        """Whether the evaluator had a score to give."""
        return self.verdict.score is not None

    @property
    def path(self) -> Sequence[Node[PayloadT]]:
        """The nodes from the first below the root to this one; empty for the root."""
        path, node = [], self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


def build_root(payload: PayloadT) -> Node[PayloadT]:
    """Return the root of a tree, which is never judged."""
    return Node(node_id=ROOT_ID, number=0, payload=payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[PayloadT]):
    """What a proposer thinks of. Of candidates with the same `key` the tree keeps the first.

    `claims_solution` is what the proposer holds it to be. The verdict decides; the claim counts where there is none.
    """

    payload: PayloadT
    key: str
    claims_solution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals(Generic[PayloadT]):
    """The candidates of one expansion, best first if there is an order, and what they cost."""

    candidates: Sequence[Candidate[PayloadT]]
    spent: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdicts in the order of the candidates that were judged; a missing one says as much as `Verdict()`."""

    verdicts: Sequence[Verdict]
    spent: Cost = field(default_factory=Cost)


class Proposer(Protocol[PayloadT]):
    """Expands nodes. Where `propose` raises a failure that the search was told of, the node has no children."""

    def bound_cost(self, node: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of `propose`."""
        ...

    async def propose(self, node: Node[PayloadT], *, count: int) -> Proposals[PayloadT]:
        """Return at most `count` ways to go on from `node`."""
        ...


class Evaluator(Protocol[PayloadT]):
    """Judges candidates; where all of one parent are judged in one call, they are compared with each other."""

    def bound_cost(self, parent: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of judging `count` candidates below `parent`, in however many batches."""
        ...

    def divide(self, candidates: Sequence[Candidate[PayloadT]]) -> Sequence[Sequence[Candidate[PayloadT]]]:
        """Divide the candidates of one parent, in order, into what is judged in one call each."""
        ...

    async def judge(self, parent: Node[PayloadT], batch: Sequence[Candidate[PayloadT]]) -> Judgement:
        """Return a verdict on each candidate of one batch. May raise as `Proposer.propose`."""
        ...


def content_key_of(*texts: str) -> str:
    """Return a key that is equal for texts that differ only in case, white space and compatibility forms (NFKC).

    SHA-256 in hexadecimal; where one text ends and the next begins counts.
    """
    folded = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    return hashlib.sha256("\0".join(folded).encode("utf-8", "replace")).hexdigest()

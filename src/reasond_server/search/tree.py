"""The tree of judged nodes, and the ports of the proposer and the evaluator that make them."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from reasond_server.search.allowance import Cost
from reasond_server.types.values import value

PayloadT = TypeVar("PayloadT")

ROOT_ID = "n0"


@value
class Verdict:
    """An evaluator's verdict on one candidate.

    Attributes:
        score: 0.0-1.0; None without evidence.
        is_solution: whether the candidate solves the task; a solution is never expanded.
        signature: equal for candidates with the same behaviour, even if their text differs; empty if not observed.
        evidence: the reasons for the verdict, for the caller's own proposer and steps; the search does not read it.
    """

    score: float | None = None
    is_solution: bool = False
    signature: str = ""
    evidence: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node(Generic[PayloadT]):
    """A node of the tree. Child `i` (from 0) of node `n0.2` is `n0.2.i`; the root is `n0`.

    `number` counts nodes in the order in which they were made; the root is 0. `score` is that of the verdict, or the
    plan's `unknown_score` if the verdict has none.
    """

    node_id: str
    number: int
    payload: PayloadT
    parent: Node[PayloadT] | None = None
    depth: int = 0
    score: float = 0.0
    verdict: Verdict = Verdict()  # noqa: RUF009 - it is frozen

    @property
    def is_solution(self) -> bool:
        """Whether the node is a whole solution."""
        return self.verdict.is_solution

    @property
    def is_judged(self) -> bool:
        """Whether the evaluator gave a score."""
        return self.verdict.score is not None

    @property
    def path(self) -> Sequence[Node[PayloadT]]:
        """The nodes on the path from the root, which is excluded, to this node; empty for the root."""
        path, node = [], self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


def build_root(payload: PayloadT) -> Node[PayloadT]:
    """Return the root of a tree, which is never judged."""
    return Node(node_id=ROOT_ID, number=0, payload=payload)


@value
class Candidate(Generic[PayloadT]):
    """A proposed child. The tree keeps only the first candidate with a given `key`.

    `claims_solution` says whether the proposer considers it a solution; it counts only if there is no verdict.
    """

    payload: PayloadT
    key: str
    claims_solution: bool = False


@value
class Proposals(Generic[PayloadT]):
    """The candidates of one expansion, best first if they have an order, and their cost."""

    candidates: Sequence[Candidate[PayloadT]]
    spent: Cost = field(default_factory=Cost)


@value
class Judgement:
    """Verdicts in the order of the judged candidates; a candidate without one counts as not judged."""

    verdicts: Sequence[Verdict]
    spent: Cost = field(default_factory=Cost)


class Proposer(Protocol[PayloadT]):
    """Expands nodes. If `propose` raises one of the search's `failures`, the node gets no children."""

    def bound_cost(self, node: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of `propose`."""

    async def propose(self, node: Node[PayloadT], *, count: int) -> Proposals[PayloadT]:
        """Return at most `count` candidates below `node`."""


class Evaluator(Protocol[PayloadT]):
    """Judges candidates; a call that judges all candidates of a parent can compare them."""

    def bound_cost(self, parent: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of judging `count` candidates below `parent`, over all their batches."""

    def divide(self, candidates: Sequence[Candidate[PayloadT]]) -> Sequence[Sequence[Candidate[PayloadT]]]:
        """Divide the candidates of one parent, in order, into batches; each batch is judged in one call."""

    async def judge(self, parent: Node[PayloadT], batch: Sequence[Candidate[PayloadT]]) -> Judgement:
        """Return a verdict on each candidate of one batch. May raise the same errors as `Proposer.propose`."""


def compute_content_key(*texts: str) -> str:
    """Return a SHA-256 key in hexadecimal; differences in case, white space and compatibility forms (NFKC) are ignored.

    The boundaries between the texts are part of the key.
    """
    folded = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    return hashlib.sha256("\0".join(folded).encode("utf-8", "replace")).hexdigest()

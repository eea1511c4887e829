"""The tree: nodes that were judged, and the ports through which they are made."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from reasond_server.search.allowance import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

PayloadT = TypeVar("PayloadT")

ROOT_ID = "n0"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node(Generic[PayloadT]):
    """A place in the tree. Child `i` (from 0) of node `n0.2` is `n0.2.i`; the root is `n0`.

    `number` counts nodes in the order in which they were made, the root being 0. `score` is 0.0-1.0. A terminal node
    is a whole solution and is never expanded. `is_judged` is false where the evaluator had nothing to say, so that
    `score` is only the plan's `unknown_score`.
    """

    node_id: str
    number: int
    payload: PayloadT
    parent: Node[PayloadT] | None = None
    depth: int = 0
    is_terminal: bool = False
    score: float = 0.0
    is_judged: bool = True

    @property
    def path(self) -> Sequence[Node[PayloadT]]:
        """The nodes from the first below the root to this one; empty for the root."""
        path, node = [], self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Generic[PayloadT]):
    """What a proposer thinks of. Of candidates with the same `key` the tree keeps the first."""

    payload: PayloadT
    key: str
    is_terminal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals(Generic[PayloadT]):
    """The candidates of one expansion, best first if there is an order, and what they cost."""

    candidates: Sequence[Candidate[PayloadT]]
    spent: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Scores in the order of the candidates that were judged, 0.0-1.0; None says that there is no evidence."""

    scores: Sequence[float | None]
    spent: Cost = field(default_factory=Cost)


class Proposer(Protocol[PayloadT]):
    """Expands nodes. `propose` may fail as a model does: then the node has no children."""

    def cost(self, node: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of `propose`."""
        ...

    async def propose(self, node: Node[PayloadT], *, count: int) -> Proposals[PayloadT]:
        """Return at most `count` ways to go on from `node`.

        Raises:
            ModelError: the model failed.
            TokenBudgetExhaustedError: the budget does not cover the call.
        """
        ...


class Evaluator(Protocol[PayloadT]):
    """Judges candidates; where all of one parent are judged in one call, they are compared with each other."""

    def cost(self, parent: Node[PayloadT], *, count: int) -> Cost:
        """Return the worst case of judging `count` candidates below `parent`, in however many batches."""
        ...

    def batches(self, candidates: Sequence[Candidate[PayloadT]]) -> Sequence[Sequence[Candidate[PayloadT]]]:
        """Divide the candidates of one parent, in order, into what is judged in one call each."""
        ...

    async def judge(self, parent: Node[PayloadT], batch: Sequence[Candidate[PayloadT]]) -> Judgement:
        """Score one batch.

        Raises:
            ModelError: the model failed.
            TokenBudgetExhaustedError: the budget does not cover the call.
        """
        ...


def content_key(*texts: str) -> str:
    """Return a key that is equal for texts that differ only in case, white space and compatibility forms (NFKC).

    SHA-256 in hexadecimal; where one text ends and the next begins counts.
    """
    folded = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts)
    return hashlib.sha256("\0".join(folded).encode("utf-8", "replace")).hexdigest()

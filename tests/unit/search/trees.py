"""Trees that tests of the search define: payloads are paths of digits, a function of the payload gives the score."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.controller import TreeSearch
from reasond_server.search.policies import BeamSelection, SearchPlan, UctSelection
from reasond_server.search.tree import Candidate, Judgement, Node, Proposals, Verdict, build_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.search.controller import JudgedNode


class WrittenError(Exception):
    """A call failed."""


class SpentError(Exception):
    """The caller's budget is gone."""


class WrittenTree:
    """Proposer and evaluator: node `p` has the children `p0`, `p1` …; a node in `goals` is terminal.

    `fails` maps a payload to the error of its expansion, `judge_fails` to the error of its judgement. `turns` maps the
    number of a call to the turns of the event loop that it takes.
    """

    def __init__(
        self,
        score: Callable[[str], float | None],
        *,
        goals: Sequence[str] = (),
        fails: Mapping[str, Exception] | None = None,
        judge_fails: Mapping[str, Exception] | None = None,
        turns: Sequence[int] = (),
        is_comparing: bool = False,
        key: Callable[[str], str] = str,
        tokens: int = 0,
        checks: int = 0,
        signature: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.score = score
        self.goals = goals
        self.fails = fails or {}
        self.judge_fails = judge_fails or {}
        self.turns = turns
        self.is_comparing = is_comparing
        self.key = key
        self.tokens = tokens
        self.checks = checks
        self.signature = signature
        self.open = self.most_open = self.calls = 0
        self.expanded: list[str] = []
        self.made = Counter[str]()

    async def _call(self) -> None:
        self.calls += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            turns = self.turns[self.calls % len(self.turns)] if self.turns else 0
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            self.open -= 1

    def bound_cost(self, node: Node[str], *, count: int) -> Cost:  # noqa: ARG002 - the port declares it
        return Cost(model_calls=1, tokens=self.tokens)

    async def propose(self, node: Node[str], *, count: int) -> Proposals[str]:
        self.expanded.append(node.payload)
        await self._call()
        if node.payload in self.fails:
            raise self.fails[node.payload]
        first = self.made[node.payload]
        self.made[node.payload] += count
        names = [f"{node.payload}{digit}" for digit in range(first, first + count)]
        candidates = [Candidate(payload=name, key=self.key(name), claims_solution=name in self.goals) for name in names]
        return Proposals(candidates=candidates, spent=Cost(model_calls=1, tokens=self.tokens))

    def divide(self, candidates: Sequence[Candidate[str]]) -> Sequence[Sequence[Candidate[str]]]:
        return [candidates] if self.is_comparing else [[candidate] for candidate in candidates]

    async def judge(self, parent: Node[str], batch: Sequence[Candidate[str]]) -> Judgement:  # noqa: ARG002 - the port
        await self._call()
        for candidate in batch:
            if candidate.payload in self.judge_fails:
                raise self.judge_fails[candidate.payload]
        spent = Cost(model_calls=1, tokens=self.tokens, resources={"checks": len(batch) * self.checks})
        return Judgement(verdicts=[self.find_verdict(one.payload) for one in batch], spent=spent)

    def find_verdict(self, name: str) -> Verdict:
        return Verdict(
            score=self.score(name),
            is_solution=name in self.goals,
            signature=self.signature(name),
            evidence=f"seen {name}",
        )


class WrittenEvaluator:
    """The evaluator of a written tree, with its own cost."""

    def __init__(self, tree: WrittenTree) -> None:
        self._tree = tree
        self.divide = tree.divide
        self.judge = tree.judge

    def bound_cost(self, parent: Node[str], *, count: int) -> Cost:  # noqa: ARG002 - the port declares it
        times = 1 if self._tree.is_comparing else count
        return Cost(
            model_calls=times, tokens=times * self._tree.tokens, resources={"checks": count * self._tree.checks}
        )


def search_of(
    tree: WrittenTree,
    plan: SearchPlan,
    *,
    is_best_first: bool = False,
    allowance: Allowance | None = None,
) -> TreeSearch[str]:
    root = build_root("")
    return TreeSearch(
        proposer=tree,
        evaluator=WrittenEvaluator(tree),
        plan=plan,
        selection=UctSelection(root, plan) if is_best_first else BeamSelection(root, plan),
        allowance=allowance or Allowance(max_calls=None),
        failures=(WrittenError,),
        exhaustions=(SpentError,),
    )


async def run_search(search: TreeSearch[str]) -> list[JudgedNode[str]]:
    return [judged async for judged in search.run()]

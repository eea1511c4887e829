"""The controller finds planted optima, keeps its bounds, and gives the same result however long calls take."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.search.allowance import Allowance, Cost
from reasond_server.search.controller import SearchEnding
from reasond_server.search.policies import SearchPlan, Widening
from reasond_server.search.tree import Verdict, build_root
from tests.unit.search.trees import SpentError, WrittenError, WrittenTree, run_search, search_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.search.tree import Candidate, Judgement, Node, Proposals

FAILED = WrittenError("gone")


def trap(name: str) -> float:
    """Score the path to "1022" low at first and high at its end; nodes below "0" score high but lead nowhere."""
    goal = "1022"
    if goal.startswith(name):
        return (0.3, 0.5, 0.8, 1.0)[len(name) - 1]
    return 0.75 if name[0] == "0" else 0.2


async def test_uct_finds_the_planted_optimum_where_greedy_and_a_beam_fail() -> None:
    reached = {}
    for name, width, is_best_first in (("greedy", 1, False), ("beam", 2, False), ("uct", 1, True)):
        tree = WrittenTree(trap, goals=("1022",))
        plan = SearchPlan(max_depth=4, branching=3, width=width, solved_score=0.9)
        search = search_of(tree, plan, is_best_first=is_best_first, allowance=Allowance(max_calls=160))
        await run_search(search)
        reached[name] = search.best_solution is not None and search.best_solution.payload
    assert reached == {"greedy": False, "beam": False, "uct": "1022"}


@pytest.mark.slow
@given(goal=st.text(alphabet="012", min_size=1, max_size=4), seed=st.none() | st.integers(0, 99))
def test_with_a_true_judge_either_search_finds_every_planted_optimum(goal: str, seed: int | None) -> None:
    for is_best_first in (False, True):
        tree = WrittenTree(lambda name: 0.2 + 0.2 * len(name) if goal.startswith(name) else 0.1, goals=(goal,))
        plan = SearchPlan(max_depth=4, branching=3, width=1, solved_score=0.2 + 0.2 * len(goal), seed=seed)
        search = search_of(tree, plan, is_best_first=is_best_first)
        asyncio.run(run_search(search))
        assert search.best_solution is not None
        assert search.best_solution.payload == goal
        assert search.ending is SearchEnding.SOLVED


async def test_ids_numbers_and_tally_follow_the_order_of_the_nodes() -> None:
    tree = WrittenTree(lambda name: 1 - len(name) / 10 - int(name[-1]) / 100)
    search = search_of(tree, SearchPlan(max_depth=2, branching=2, width=2))
    judged = await run_search(search)
    assert [each.node.node_id for each in judged] == ["n0.0", "n0.1", "n0.0.0", "n0.0.1", "n0.1.0", "n0.1.1"]
    assert [each.node.number for each in judged] == [1, 2, 3, 4, 5, 6]
    assert [each.is_pruned for each in judged] == [False, False, False, True, False, True]
    assert search.ending is SearchEnding.EXHAUSTED
    tally = search.tally
    assert (tally.expanded, tally.evaluated, tally.pruned, tally.duplicate) == (3, 6, 2, 0)
    assert (tally.depth_reached, tally.unjudged, tally.failed_calls) == (2, 0, 0)
    assert search.best_open is not None
    assert search.best_open.payload == "00"


async def test_the_best_open_node_is_the_deepest_one_whose_way_has_no_bad_step() -> None:
    scores = {"0": 0.9, "1": 0.6, "00": 0.4, "01": 0.3, "10": 0.7, "11": 0.55}
    plan = SearchPlan(max_depth=2, branching=2, width=2, unknown_score=0.5)
    search = search_of(WrittenTree(scores.__getitem__), plan)
    await run_search(search)
    assert search.best_open is not None
    assert search.best_open.payload == "10"
    low = search_of(WrittenTree(lambda name: 0.2 + 0.01 * len(name)), plan)
    await run_search(low)
    assert low.best_open is not None
    assert len(low.best_open.payload) == 2


async def test_duplicates_are_left_out_over_the_whole_tree() -> None:
    tree = WrittenTree(lambda _: 0.5, key=lambda name: "".join(sorted(name)))
    search = search_of(tree, SearchPlan(max_depth=2, branching=2, width=2))
    names = [judged.node.payload for judged in await run_search(search)]
    assert names == ["0", "1", "00", "01", "11"]
    assert search.tally.duplicate == 1
    assert tree.calls == 3 + 5


@pytest.mark.slow
@given(
    max_calls=st.integers(0, 40),
    branching=st.integers(1, 4),
    width=st.integers(1, 4),
    is_best_first=st.booleans(),
    is_comparing=st.booleans(),
    kept=st.integers(0, 2),
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=5),
)
def test_the_bound_on_calls_is_never_exceeded_and_nearly_used_up(
    max_calls: int,
    branching: int,
    width: int,
    is_best_first: bool,  # noqa: FBT001 - drawn by name
    is_comparing: bool,  # noqa: FBT001 - drawn by name
    kept: int,
    turns: list[int],
) -> None:
    tree = WrittenTree(lambda name: 1 / (1 + len(name)), turns=turns, is_comparing=is_comparing)
    allowance = Allowance(max_calls=max_calls, margin=Cost(model_calls=kept))
    plan = SearchPlan(max_depth=50, branching=branching, width=width, at_once=3)
    search = search_of(tree, plan, is_best_first=is_best_first, allowance=allowance)
    asyncio.run(run_search(search))
    assert tree.calls == allowance.taken.model_calls <= max(0, max_calls - kept)
    assert tree.calls > max_calls - kept - 2
    assert tree.most_open <= 3
    assert search.ending is SearchEnding.BUDGET


@pytest.mark.slow
@given(st.data())
def test_the_order_in_which_calls_end_changes_nothing(data: st.DataObject) -> None:
    is_best_first = data.draw(st.booleans())
    is_widening = data.draw(st.booleans())
    failing = data.draw(st.sampled_from(["", "0", "1", "01", "10"]))

    def run(turns: list[int]) -> str:
        tree = WrittenTree(
            lambda name: (hash_of(name) % 11) / 10,
            goals=("012", "2101"),
            fails={failing: FAILED} if failing else {},
            judge_fails={"11": FAILED},
            turns=turns,
            key=lambda name: "".join(sorted(name)),
        )
        plan = SearchPlan(
            max_depth=4,
            branching=3,
            width=3,
            at_once=4,
            solved_score=2.0,
            patience=9,
            seed=3,
            widening=Widening(factor=1.5) if is_widening else None,
        )
        search = search_of(tree, plan, is_best_first=is_best_first, allowance=Allowance(max_calls=50))
        judged = [
            (each.node.node_id, each.node.payload, each.node.score, each.is_pruned)
            for each in asyncio.run(run_search(search))
        ]
        return repr((judged, search.tally, search.ending, tree.calls))

    draws = st.lists(st.integers(0, 9), min_size=1, max_size=12)
    assert run([0]) == run(data.draw(draws)) == run(data.draw(draws))


def hash_of(name: str) -> int:
    return sum((place + 3) * (int(digit) + 1) * 7 for place, digit in enumerate(name))


async def test_a_solved_search_makes_no_further_call() -> None:
    tree = WrittenTree(lambda name: 1.0 if name == "1" else 0.5, goals=("1",))
    search = search_of(tree, SearchPlan(max_depth=5, branching=2, width=2))
    assert len(await run_search(search)) == 2
    assert (tree.calls, search.ending) == (3, SearchEnding.SOLVED)


async def test_an_unjudged_solution_does_not_end_the_search() -> None:
    tree = WrittenTree(lambda name: None if name == "1" else 0.7, goals=("1",))
    search = search_of(tree, SearchPlan(max_depth=2, branching=2, width=1, solved_score=0.5, unknown_score=0.6))
    await run_search(search)
    assert search.ending is SearchEnding.EXHAUSTED
    assert (search.tally.unjudged, search.tally.depth_reached) == (1, 2)


async def test_patience_ends_a_search_that_finds_nothing_better() -> None:
    tree = WrittenTree(lambda _: 0.5, goals=("0",))
    plan = SearchPlan(max_depth=9, branching=2, width=1, patience=4)
    search = search_of(tree, plan, is_best_first=True)
    await run_search(search)
    assert (search.ending, search.tally.expanded) == (SearchEnding.STALLED, 5)


async def test_a_failed_proposal_costs_its_node_only() -> None:
    tree = WrittenTree(lambda _: 0.5, fails={"0": FAILED})
    search = search_of(tree, SearchPlan(max_depth=2, branching=2, width=2))
    assert [judged.node.payload for judged in await run_search(search)] == ["0", "1", "10", "11"]
    assert (search.tally.failed_calls, search.tally.expanded) == (1, 2)


async def test_a_failed_judgement_leaves_its_node_with_the_unknown_score() -> None:
    tree = WrittenTree(lambda _: 0.9, judge_fails={"0": FAILED})
    search = search_of(tree, SearchPlan(max_depth=1, branching=2, unknown_score=0.4))
    assert [judged.node.score for judged in await run_search(search)] == [0.4, 0.9]
    assert (search.tally.unjudged, search.tally.failed_calls) == (1, 1)


async def test_where_the_root_cannot_be_expanded_the_error_is_raised() -> None:
    with pytest.raises(WrittenError) as raised:
        await run_search(
            search_of(WrittenTree(lambda _: 0.5, fails={"": FAILED}), SearchPlan(max_depth=2, branching=2))
        )
    assert raised.value is FAILED


async def test_failures_in_a_row_end_the_search_after_its_nodes_were_told() -> None:
    fails = dict.fromkeys(("0", "1", "2"), FAILED)
    search = search_of(WrittenTree(lambda _: 0.5, fails=fails), SearchPlan(max_depth=2, branching=3, width=3))
    told: list[str] = []

    async def consume() -> None:
        async for judged in search.run():
            told.append(judged.node.payload)  # noqa: PERF401 - what came before the error is kept

    with pytest.raises(WrittenError):
        await consume()
    assert told == ["0", "1", "2"]
    assert search.ending is None


@pytest.mark.parametrize(("fails", "judge_fails", "names"), [("0", "", ["0", "1", "10", "11"]), ("", "1", ["0", "1"])])
async def test_a_budget_that_is_gone_ends_the_search_with_what_there_is(
    fails: str, judge_fails: str, names: list[str]
) -> None:
    spent = SpentError("spent")
    tree = WrittenTree(
        lambda _: 0.5,
        fails={fails: spent} if fails else {},
        judge_fails={judge_fails: spent} if judge_fails else {},
    )
    search = search_of(tree, SearchPlan(max_depth=5, branching=2, width=2))
    assert [judged.node.payload for judged in await run_search(search)] == names
    assert (search.ending, search.tally.failed_calls) == (SearchEnding.BUDGET, 0)


async def test_tokens_are_reserved_too_and_what_was_kept_is_left() -> None:
    tree = WrittenTree(lambda _: 0.5, tokens=10)
    allowance = Allowance(max_calls=None, max_tokens=100, margin=Cost(tokens=25))
    search = search_of(tree, SearchPlan(max_depth=9, branching=2, width=2), allowance=allowance)
    await run_search(search)
    assert (search.ending, tree.calls, search.tally.unjudged) == (SearchEnding.BUDGET, 7, 2)
    assert (tree.expanded, allowance.taken) == (["", "0", "1"], Cost(model_calls=7, tokens=70))


async def test_a_small_rest_buys_a_smaller_expansion() -> None:
    tree = WrittenTree(lambda _: 0.5)
    search = search_of(tree, SearchPlan(max_depth=9, branching=5, width=1), allowance=Allowance(max_calls=4))
    assert len(await run_search(search)) == 3
    assert tree.calls == 4


@pytest.mark.parametrize("score", [7.0, -3.0, float("nan"), float("inf")])
async def test_scores_are_kept_within_bounds(score: float) -> None:
    search = search_of(WrittenTree(lambda _: score), SearchPlan(max_depth=1, branching=1))
    (judged,) = await run_search(search)
    assert 0 <= judged.node.score <= 1
    assert judged.node.is_judged == (score == score)  # noqa: PLR0124 - false for NaN only


async def test_closing_the_search_closes_every_call() -> None:
    held = asyncio.Event()

    class Holding(WrittenTree):
        async def _call(self) -> None:
            self.open += 1
            try:
                if self.calls:
                    held.set()
                    await asyncio.Event().wait()
                self.calls += 1
            finally:
                self.open -= 1

    tree = Holding(lambda _: 0.5)
    search = search_of(tree, SearchPlan(max_depth=2, branching=4, width=2))

    async def consume() -> None:
        async with aclosing(search.run()) as judged:
            async for _ in judged:
                pass

    task = asyncio.create_task(consume())
    await held.wait()
    assert tree.open == 4
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tree.open == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_node_keeps_the_verdict_on_it() -> None:
    tree = WrittenTree(lambda _: 0.5, goals=("1",), signature=lambda name: f"like {name[-1]}")
    search = search_of(tree, SearchPlan(max_depth=1, branching=2))
    first, second = [judged.node.verdict for judged in await run_search(search)]
    assert first == Verdict(score=0.5, signature="like 0", evidence="seen 0")
    assert second == Verdict(score=0.5, is_solution=True, signature="like 1", evidence="seen 1")
    assert [node.payload for node in search.solutions] == ["1"]


class _Unclaimed(WrittenTree):
    """A tree whose proposer claims the wrong nodes as solutions, or whose evaluator gives no verdict."""

    is_silent = False

    async def propose(self, node: Node[str], *, count: int) -> Proposals[str]:
        made = await super().propose(node, count=count)
        candidates = [replace(one, claims_solution=one.claims_solution == self.is_silent) for one in made.candidates]
        return replace(made, candidates=candidates)

    async def judge(self, parent: Node[str], batch: Sequence[Candidate[str]]) -> Judgement:
        made = await super().judge(parent, batch)
        return replace(made, verdicts=()) if self.is_silent else made


@pytest.mark.parametrize("is_silent", [False, True])
async def test_the_verdict_says_what_is_a_solution_and_the_claim_only_where_there_is_none(is_silent: bool) -> None:  # noqa: FBT001 - a case
    tree = _Unclaimed(lambda _: 1.0, goals=("1",))
    tree.is_silent = is_silent
    search = search_of(tree, SearchPlan(max_depth=2, branching=2, unknown_score=1.0))
    await run_search(search)
    assert [node.payload for node in search.solutions] == ["1"]
    assert search.ending is (SearchEnding.EXHAUSTED if is_silent else SearchEnding.SOLVED)


@given(
    max_checks=st.integers(0, 30),
    branching=st.integers(1, 4),
    width=st.integers(1, 4),
    is_comparing=st.booleans(),
    failing=st.sampled_from(["", "0", "1", "10"]),
)
def test_the_bound_on_a_resource_is_never_exceeded(
    max_checks: int,
    branching: int,
    width: int,
    is_comparing: bool,  # noqa: FBT001 - drawn by name
    failing: str,
) -> None:
    tree = WrittenTree(lambda _: 0.5, is_comparing=is_comparing, checks=1, judge_fails={failing: FAILED})
    allowance = Allowance(max_calls=None, max_resources={"checks": max_checks})
    plan = SearchPlan(max_depth=50, branching=branching, width=width, max_failures=99)
    search = search_of(tree, plan, allowance=allowance)
    asyncio.run(run_search(search))
    assert search.ending is SearchEnding.BUDGET
    assert max_checks - branching < allowance.taken.resources.get("checks", 0) <= max_checks


async def test_a_search_that_finds_only_what_it_knows_ends_as_repetitive() -> None:
    tree = WrittenTree(lambda _: 0.5, signature=lambda name: str(min(len(name), 2)))
    search = search_of(tree, SearchPlan(max_depth=9, branching=2, width=1, novelty_patience=3))
    await run_search(search)
    assert (search.ending, search.tally.expanded) == (SearchEnding.REPETITIVE, 5)
    assert search.tally.behaviours == 2


async def test_without_that_plan_signatures_change_nothing() -> None:
    search = search_of(WrittenTree(lambda _: 0.5, signature=lambda _: "same"), SearchPlan(max_depth=5, branching=2))
    await run_search(search)
    assert search.ending is SearchEnding.EXHAUSTED


async def test_widened_nodes_go_on_numbering_their_children() -> None:
    tree = WrittenTree(lambda name: 1 / (1 + len(name)))
    plan = SearchPlan(max_depth=2, branching=4, widening=Widening(factor=1, exponent=0.5), exploration=0.5)
    search = search_of(tree, plan, is_best_first=True, allowance=Allowance(max_calls=40))
    nodes = [judged.node for judged in await run_search(search)]
    assert search.ending is SearchEnding.BUDGET
    assert len({node.node_id for node in nodes}) == len(nodes)
    assert all(node.node_id == ".".join(["n0", *node.payload]) for node in nodes)
    below_root = sum(node.depth == 1 for node in nodes)
    assert 2 <= below_root < len(nodes) / 2


async def test_widening_finds_what_the_first_children_of_a_node_do_not_lead_to() -> None:
    reached = []
    for widening in (None, Widening(factor=1, exponent=0.7)):
        tree = WrittenTree(lambda name: 0.9 if name == "4" else 0.5, goals=("4",))
        plan = SearchPlan(max_depth=1, branching=2, widening=widening, solved_score=0.9)
        search = search_of(tree, plan, is_best_first=True, allowance=Allowance(max_calls=40))
        await run_search(search)
        reached.append(search.ending)
    assert reached == [SearchEnding.EXHAUSTED, SearchEnding.SOLVED]


def test_a_root_has_no_path_and_the_first_id() -> None:
    root = build_root("start")
    assert (root.node_id, root.number, root.depth, list(root.path)) == ("n0", 0, 0, [])

"""Policies: what a beam keeps, and where UCT goes."""

from __future__ import annotations

import math

import pytest

from reasond_server.search.controller import root_node
from reasond_server.search.selection import BeamSelection, Expansion, SearchPlan, UctSelection, rank
from reasond_server.search.tree import Node


def children(parent: Node[str], scores: list[float], *, terminals: tuple[int, ...] = ()) -> list[Node[str]]:
    return [
        Node(
            node_id=f"{parent.node_id}.{place}",
            number=parent.number * 10 + place + 1,
            payload="",
            parent=parent,
            depth=parent.depth + 1,
            is_terminal=place in terminals,
            score=score,
        )
        for place, score in enumerate(scores)
    ]


def settled(selection: BeamSelection[str] | UctSelection[str], scores: dict[str, list[float]]) -> list[str]:
    """Expand what is chosen with the written scores and return its ids."""
    chosen = selection.choose()
    expansions = [Expansion(node=node, children=children(node, scores.get(node.node_id, []))) for node in chosen]
    selection.settle(chosen, expansions)
    return [node.node_id for node in chosen]


def test_a_beam_keeps_the_best_of_a_depth_and_prunes_the_others() -> None:
    plan = SearchPlan(max_depth=2, branching=3, width=2, min_score=0.1)
    root = root_node("")
    beam = BeamSelection(root, plan)
    (chosen,) = beam.choose()
    made = children(chosen, [0.2, 0.9, 0.05, 0.5])
    assert beam.settle([chosen], [Expansion(node=chosen, children=made)]) == {"n0.0", "n0.2"}
    assert [node.node_id for node in beam.choose()] == ["n0.1", "n0.3"]
    last = [child for node in beam.choose() for child in children(node, [0.4, 0.6])]
    pruned = beam.settle(beam.choose(), [Expansion(node=node, children=last) for node in beam.choose()[:1]])
    assert pruned == {"n0.1.0", "n0.3.0"}
    assert not beam.choose()


def test_a_beam_prunes_what_is_worth_less_than_a_whole_solution() -> None:
    beam = BeamSelection(root_node(""), SearchPlan(max_depth=3, branching=3, width=3))
    (root,) = beam.choose()
    made = children(root, [0.6, 0.5, 0.7], terminals=(0,))
    assert beam.settle([root], [Expansion(node=root, children=made)]) == {"n0.1"}
    assert [node.node_id for node in beam.choose()] == ["n0.2"]


def test_without_a_seed_ties_go_to_the_older_and_with_one_they_are_drawn() -> None:
    nodes = children(root_node(""), [0.5] * 8)
    assert sorted(nodes, key=lambda node: rank(node, seed=None)) == nodes
    orders = {tuple(node.node_id for node in sorted(nodes, key=lambda n: rank(n, seed=s))) for s in range(10)}
    assert len(orders) == 10
    best = Node(node_id="n0.9", number=9, payload="", score=0.6)
    assert all(min([*nodes, best], key=lambda node: rank(node, seed=s)) is best for s in range(10))


def test_uct_expands_every_child_before_any_grandchild_the_best_first() -> None:
    uct = UctSelection(root_node(""), SearchPlan(max_depth=3, branching=3))
    assert settled(uct, {"n0": [0.1, 0.9, 0.5]}) == ["n0"]
    order = [settled(uct, {f"n0.{place}": [0.3, 0.3] for place in range(3)}) for _ in range(3)]
    assert order == [["n0.1"], ["n0.2"], ["n0.0"]]


def test_uct_goes_where_the_formula_is_largest() -> None:
    """Q + 2 C_p sqrt(ln N / n), by hand: after 3 visits below the root, n = 1 each and N = 3."""
    values = {"n0.0": [0.8], "n0.1": [0.2]}
    uct = UctSelection(root_node(""), SearchPlan(max_depth=4, branching=2, exploration=0.1))
    settled(uct, {"n0": [0.5, 0.5]})
    assert [settled(uct, values), settled(uct, values)] == [["n0.0"], ["n0.1"]]
    bonus = 0.2 * math.sqrt(math.log(3))
    assert 0.8 + bonus > 0.2 + bonus
    assert settled(uct, {"n0.0.0": [0.1]}) == ["n0.0.0"]
    # Now Q(n0.0) = (0.45 + 0.8) / 2, n = 2, N = 4; Q(n0.1) = 0.2, n = 1.
    first = (0.45 + 0.8) / 2 + 0.2 * math.sqrt(math.log(4) / 2)
    assert first > 0.2 + 0.2 * math.sqrt(math.log(4))
    assert settled(uct, {}) == ["n0.0.0.0"]


def test_a_virtual_loss_sends_the_second_of_a_wave_elsewhere() -> None:
    plan = SearchPlan(max_depth=5, branching=2, width=2, exploration=0.2)
    uct = UctSelection(root_node(""), plan)
    settled(uct, {"n0": [0.9, 0.8]})
    assert settled(uct, {"n0.0": [0.9, 0.9], "n0.1": [0.8, 0.8]}) == ["n0.0", "n0.1"]
    # Without the loss both would lie below n0.0, whose two children have the best values.
    assert settled(uct, {}) == ["n0.0.0", "n0.1.0"]


def test_what_is_pruned_terminal_too_deep_or_failed_is_never_expanded() -> None:
    uct = UctSelection(root_node(""), SearchPlan(max_depth=1, branching=3, min_score=0.1))
    (root,) = uct.choose()
    made = children(root, [0.05, 0.9, 0.9], terminals=(1,))
    assert uct.settle([root], [Expansion(node=root, children=made)]) == {"n0.0"}
    assert not uct.choose()


def test_a_chosen_node_that_was_not_expanded_leaves_no_trace() -> None:
    uct = UctSelection(root_node(""), SearchPlan(max_depth=3, branching=2, width=2))
    settled(uct, {"n0": [0.5, 0.4]})
    chosen = uct.choose()
    uct.settle(chosen, [Expansion(node=chosen[0], children=children(chosen[0], [0.3]))])
    assert [node.node_id for node in uct.choose()] == ["n0.0.0"]


@pytest.mark.parametrize("is_failed", [True, False])
def test_a_failed_expansion_is_no_evidence_and_an_empty_one_is_worth_nothing(is_failed: bool) -> None:  # noqa: FBT001 - a case
    uct = UctSelection(root_node(""), SearchPlan(max_depth=3, branching=2))
    settled(uct, {"n0": [0.5, 0.4]})
    (chosen,) = uct.choose()
    uct.settle([chosen], [Expansion(node=chosen, children=(), is_failed=is_failed)])
    standing = uct._standings[chosen.node_id]
    assert (standing.visits, standing.total, standing.virtual, standing.open) == (0 if is_failed else 1, 0.0, 0, 0)

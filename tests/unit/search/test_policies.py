"""Policies: the nodes that a beam keeps, and the nodes that UCT chooses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.search.policies import BeamSelection, Expansion, SearchPlan, UctSelection, Widening, rank
from reasond_server.search.tree import Node, Verdict, build_root


def children(parent: Node[str], scores: list[float], *, solutions: tuple[int, ...] = ()) -> list[Node[str]]:
    return [
        Node(
            node_id=f"{parent.node_id}.{place}",
            number=parent.number * 10 + place + 1,
            payload="",
            parent=parent,
            depth=parent.depth + 1,
            verdict=Verdict(score=score, is_solution=place in solutions),
            score=score,
        )
        for place, score in enumerate(scores)
    ]


def expand(selection: BeamSelection[str] | UctSelection[str], scores: dict[str, list[float]]) -> list[str]:
    """Expand the chosen nodes with the given scores and return their ids."""
    chosen = selection.choose()
    expansions = [
        Expansion(node=one.node, children=children(one.node, scores.get(one.node.node_id, []))) for one in chosen
    ]
    selection.settle(chosen, expansions)
    return [one.node.node_id for one in chosen]


def test_a_beam_keeps_the_best_of_a_depth_and_prunes_the_others() -> None:
    plan = SearchPlan(max_depth=2, branching=3, width=2, min_score=0.1)
    root = build_root("")
    beam = BeamSelection(root, plan)
    (chosen,) = beam.choose()
    made = children(chosen.node, [0.2, 0.9, 0.05, 0.5])
    assert beam.settle([chosen], [Expansion(node=chosen.node, children=made)]) == {"n0.0", "n0.2"}
    assert [one.node.node_id for one in beam.choose()] == ["n0.1", "n0.3"]
    last = [child for one in beam.choose() for child in children(one.node, [0.4, 0.6])]
    pruned = beam.settle(beam.choose(), [Expansion(node=one.node, children=last) for one in beam.choose()[:1]])
    assert pruned == {"n0.1.0", "n0.3.0"}
    assert not beam.choose()


def test_a_beam_prunes_what_is_worth_less_than_a_whole_solution() -> None:
    beam = BeamSelection(build_root(""), SearchPlan(max_depth=3, branching=3, width=3))
    (root,) = beam.choose()
    made = children(root.node, [0.6, 0.5, 0.7], solutions=(0,))
    assert beam.settle([root], [Expansion(node=root.node, children=made)]) == {"n0.1"}
    assert [one.node.node_id for one in beam.choose()] == ["n0.2"]


def test_without_a_seed_ties_go_to_the_older_and_with_one_they_are_drawn() -> None:
    nodes = children(build_root(""), [0.5] * 8)
    assert sorted(nodes, key=lambda node: rank(node, seed=None)) == nodes
    orders = {tuple(node.node_id for node in sorted(nodes, key=lambda n: rank(n, seed=s))) for s in range(10)}
    assert len(orders) == 10
    best = Node(node_id="n0.9", number=9, payload="", score=0.6)
    assert all(min([*nodes, best], key=lambda node: rank(node, seed=s)) is best for s in range(10))


def test_uct_expands_every_child_before_any_grandchild_the_best_first() -> None:
    uct = UctSelection(build_root(""), SearchPlan(max_depth=3, branching=3))
    assert expand(uct, {"n0": [0.1, 0.9, 0.5]}) == ["n0"]
    order = [expand(uct, {f"n0.{place}": [0.3, 0.3] for place in range(3)}) for _ in range(3)]
    assert order == [["n0.1"], ["n0.2"], ["n0.0"]]


def test_uct_goes_where_the_formula_is_largest() -> None:
    """Q + 2 C_p sqrt(ln N / n), computed by hand: after 3 visits below the root, n = 1 for each child and N = 3."""
    values = {"n0.0": [0.8], "n0.1": [0.2]}
    uct = UctSelection(build_root(""), SearchPlan(max_depth=4, branching=2, exploration=0.1))
    expand(uct, {"n0": [0.5, 0.5]})
    assert [expand(uct, values), expand(uct, values)] == [["n0.0"], ["n0.1"]]
    bonus = 0.2 * math.sqrt(math.log(3))
    assert 0.8 + bonus > 0.2 + bonus
    assert expand(uct, {"n0.0.0": [0.1]}) == ["n0.0.0"]
    # Now Q(n0.0) = (0.45 + 0.8) / 2, n = 2, N = 4; Q(n0.1) = 0.2, n = 1.
    first = (0.45 + 0.8) / 2 + 0.2 * math.sqrt(math.log(4) / 2)
    assert first > 0.2 + 0.2 * math.sqrt(math.log(4))
    assert expand(uct, {}) == ["n0.0.0.0"]


def test_a_virtual_loss_sends_the_second_of_a_wave_elsewhere() -> None:
    plan = SearchPlan(max_depth=5, branching=2, width=2, exploration=0.2)
    uct = UctSelection(build_root(""), plan)
    expand(uct, {"n0": [0.9, 0.8]})
    assert expand(uct, {"n0.0": [0.9, 0.9], "n0.1": [0.8, 0.8]}) == ["n0.0", "n0.1"]
    # Without the virtual loss, both would be below n0.0, whose two children have the best values.
    assert expand(uct, {}) == ["n0.0.0", "n0.1.0"]


def test_what_is_pruned_solved_too_deep_or_failed_is_never_expanded() -> None:
    uct = UctSelection(build_root(""), SearchPlan(max_depth=1, branching=3, min_score=0.1))
    (root,) = uct.choose()
    made = children(root.node, [0.05, 0.9, 0.9], solutions=(1,))
    assert uct.settle([root], [Expansion(node=root.node, children=made)]) == {"n0.0"}
    assert not uct.choose()


def test_a_chosen_node_that_was_not_expanded_leaves_no_trace() -> None:
    uct = UctSelection(build_root(""), SearchPlan(max_depth=3, branching=2, width=2))
    expand(uct, {"n0": [0.5, 0.4]})
    chosen = uct.choose()
    uct.settle(chosen, [Expansion(node=chosen[0].node, children=children(chosen[0].node, [0.3]))])
    assert [one.node.node_id for one in uct.choose()] == ["n0.0.0"]


@pytest.mark.parametrize("is_failed", [True, False])
def test_a_failed_expansion_is_no_evidence_and_an_empty_one_is_worth_nothing(is_failed: bool) -> None:  # noqa: FBT001 - a case
    uct = UctSelection(build_root(""), SearchPlan(max_depth=3, branching=2))
    expand(uct, {"n0": [0.5, 0.4]})
    (chosen,) = uct.choose()
    uct.settle([chosen], [Expansion(node=chosen.node, children=(), is_failed=is_failed)])
    standing = uct._standings[chosen.node.node_id]
    assert (standing.visits, standing.total, standing.virtual, standing.open) == (0 if is_failed else 1, 0.0, 0, 0)


def test_widening_allows_more_children_with_every_visit() -> None:
    widening = Widening(factor=2, exponent=0.5)
    assert [widening.bound_children(visit) for visit in (1, 2, 4, 5, 9)] == [2, 3, 4, 5, 6]
    assert Widening(factor=0.1).bound_children(1) == 1


def test_with_widening_a_node_is_expanded_again_once_it_was_visited_often_enough() -> None:
    plan = SearchPlan(max_depth=3, branching=9, exploration=0.0, widening=Widening(factor=1, exponent=0.5))
    uct = UctSelection(build_root(""), plan)
    counts = []
    for place in range(4):
        (chosen,) = uct.choose()
        counts.append((chosen.node.node_id, chosen.count))
        made = children(chosen.node, [0.5] * place + [0.9])[place:]
        uct.settle([chosen], [Expansion(node=chosen.node, children=made)])
    # The second visit of the root may have ceil(sqrt 2) = 2 children.
    assert counts[:2] == [("n0", 1), ("n0", 1)]
    assert counts[2][0] == "n0.0"


def test_where_nothing_below_is_open_a_node_is_widened_all_the_same() -> None:
    plan = SearchPlan(max_depth=1, branching=3, widening=Widening(factor=2, exponent=0.0))
    uct = UctSelection(build_root(""), plan)
    asked = []
    for place in range(3):
        (chosen,) = uct.choose()
        asked.append(chosen.count)
        made = children(chosen.node, [0.5] * 3)[place : place + 1]
        uct.settle([chosen], [Expansion(node=chosen.node, children=made)])
    assert asked == [2, 1, 1]


@pytest.mark.parametrize("is_failed", [True, False])
def test_an_expansion_that_brings_nothing_new_is_the_last_of_its_node(is_failed: bool) -> None:  # noqa: FBT001 - a case
    uct = UctSelection(build_root(""), SearchPlan(max_depth=1, branching=3, widening=Widening(factor=1)))
    expand(uct, {"n0": [0.5]})
    (chosen,) = uct.choose()
    uct.settle([chosen], [Expansion(node=chosen.node, children=(), is_failed=is_failed)])
    assert not uct.choose()


def test_a_root_that_is_kept_open_is_expanded_again_after_an_expansion_that_brings_nothing_new() -> None:
    plan = SearchPlan(max_depth=1, branching=3, widening=Widening(factor=1), is_root_kept_open=True)
    uct = UctSelection(build_root(""), plan)
    for _ in range(3):
        (chosen,) = uct.choose()
        assert chosen.node.node_id == "n0"
        uct.settle([chosen], [Expansion(node=chosen.node, children=())])


@given(
    widths=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    width=st.integers(1, 4),
    factor=st.floats(0.5, 4),
    exponent=st.floats(0, 1),
)
def test_the_count_of_open_nodes_is_always_right(widths: list[int], width: int, factor: float, exponent: float) -> None:
    plan = SearchPlan(
        max_depth=4, branching=4, width=width, min_score=0.15, widening=Widening(factor=factor, exponent=exponent)
    )
    uct = UctSelection(build_root(""), plan)
    for number, most in enumerate(widths):
        chosen = uct.choose()
        assert len({one.node.node_id for one in chosen}) == len(chosen)
        assert all(1 <= one.count <= 4 for one in chosen)
        expansions = []
        for one in chosen:
            have = len(uct._standings[one.node.node_id].children)
            made = children(one.node, [(number + place) % 7 / 6 for place in range(have + min(most, one.count))])
            expansions.append(Expansion(node=one.node, children=made[have:]))
        uct.settle(chosen, expansions)
        for standing in uct._standings.values():
            assert standing.open == standing.is_open + sum(child.open for child in standing.children)
            assert standing.virtual == 0
        if not uct._root.open:
            break

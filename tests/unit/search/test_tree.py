"""Nodes and keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.search.tree import Node, compute_content_key


def test_a_path_leads_from_below_the_root_to_the_node() -> None:
    root = Node(node_id="n0", number=0, payload="")
    child = Node(node_id="n0.1", number=1, payload="a", parent=root, depth=1)
    leaf = Node(node_id="n0.1.0", number=2, payload="b", parent=child, depth=2)
    assert list(root.path) == []
    assert list(leaf.path) == [child, leaf]


def test_keys_overlook_case_white_space_and_compatibility_forms() -> None:
    assert (
        compute_content_key(" Add  the\nNumbers ")
        == compute_content_key("add the numbers")
        == compute_content_key("\uff21\uff24\uff24 the numbers")
    )
    assert compute_content_key("13 - 9 = 4") != compute_content_key("13 - 4 = 9")


@given(st.lists(st.text(alphabet="ab \0", max_size=4), max_size=3), st.lists(st.text(alphabet="ab ", max_size=4)))
def test_where_a_text_ends_counts(one: list[str], other: list[str]) -> None:
    plain = [" ".join(text.replace("\0", "").split()) for text in one]
    same = plain == [" ".join(text.split()) for text in other]
    assert (compute_content_key(*plain) == compute_content_key(*other)) == (same or _join(plain) == _join(other))


def _join(texts: list[str]) -> str:
    return "\0".join(" ".join(text.split()) for text in texts)


def test_a_lone_surrogate_has_a_key() -> None:
    assert len(compute_content_key("\ud800")) == 64

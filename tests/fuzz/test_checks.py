"""Runs the fuzzers' checks on all earlier findings and on hypothesis' variations of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.checks import CHECKS
from tests.fuzz.running import CORPUS

if TYPE_CHECKING:
    from pathlib import Path

FOUND = sorted(path for path in CORPUS.rglob("*") if path.is_file())
EXAMPLES = 200


def splice(name: str) -> st.SearchStrategy[bytes]:
    """Return inputs that are cut and joined from the corpus of `name`, with noise between the parts."""
    kept = [path.read_bytes() for path in FOUND if path.parent.name == name]
    pieces = st.tuples(st.sampled_from(kept), st.integers(0, 80), st.integers(1, 80)).map(
        lambda cut: cut[0][cut[1] : cut[1] + cut[2]]
    )
    return st.lists(pieces | st.binary(max_size=6), max_size=8).map(b"".join) | st.sampled_from(kept)


def test_there_is_a_corpus_for_every_check() -> None:
    assert {path.parent.name for path in FOUND} == set(CHECKS)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_once_is_no_fault_any_more(path: Path) -> None:
    CHECKS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", CHECKS)
def test_no_bytes_break_a_promise(name: str) -> None:
    @settings(max_examples=EXAMPLES)
    @given(data=splice(name))
    def holds(data: bytes) -> None:
        CHECKS[name](data)

    holds()

"""The broken code that the simulation must find is a change of the code as it is now."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_finds_the_code_that_it_breaks_once(mutation: Mutation) -> None:
    code = (ROOT / "src" / "reasond_server" / mutation.path).read_text(encoding="utf-8")
    assert code.count(mutation.old) == 1

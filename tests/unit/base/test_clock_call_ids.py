from __future__ import annotations

import pytest

from reasond_server.base.clock import call_id_of


@pytest.mark.parametrize(
    "given", ["a", "0", "invoice-7", "00-4bf92f3577b34da6a3ce929d0e0e4736", "A/b:c.d=e+f_g", "x" * 128]
)
def test_an_id_that_is_fit_is_kept(given: str) -> None:
    assert call_id_of([given], new_call_id=lambda: "minted") == given


@pytest.mark.parametrize("given", ["", "-a", "a b", "a\n", "a\r\nset-cookie: x", "é", "x" * 129, "a\x00", "\x1b[2J"])
def test_any_other_is_replaced(given: str) -> None:
    assert call_id_of([given], new_call_id=lambda: "minted") == "minted"


def test_the_first_well_formed_of_several_is_taken_and_none_is_no_harm() -> None:
    assert call_id_of(["not this", "this", "late"], new_call_id=lambda: "minted") == "this"
    assert call_id_of([], new_call_id=lambda: "minted") == "minted"

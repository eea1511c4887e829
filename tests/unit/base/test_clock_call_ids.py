from __future__ import annotations

import pytest

from reasond_server.base.clock import choose_call_id


@pytest.mark.parametrize(
    "given", ["a", "0", "invoice-7", "00-4bf92f3577b34da6a3ce929d0e0e4736", "A/b:c.d=e+f_g", "x" * 128]
)
def test_an_id_that_is_fit_is_kept(given: str) -> None:
    assert choose_call_id([given], new_call_id=lambda: "minted") == given


@pytest.mark.parametrize("given", ["", "-a", "a b", "a\n", "a\r\nset-cookie: x", "é", "x" * 129, "a\x00", "\x1b[2J"])
def test_any_other_is_replaced(given: str) -> None:
    assert choose_call_id([given], new_call_id=lambda: "minted") == "minted"


def test_the_first_well_formed_of_several_is_taken_and_none_is_no_harm() -> None:
    assert choose_call_id(["not this", "this", "late"], new_call_id=lambda: "minted") == "this"
    assert choose_call_id([], new_call_id=lambda: "minted") == "minted"

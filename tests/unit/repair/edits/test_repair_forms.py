"""A right repair is kept in whatever form a model writes it."""

from __future__ import annotations

import pytest

from tests.repair_forms import FORMS, list_programs, read_form


def test_there_are_at_least_fifty_forms() -> None:
    assert len(FORMS) >= 50


@pytest.mark.parametrize("form", FORMS)
def test_a_right_repair_is_kept_in_every_form(form: str) -> None:
    programs = list_programs(4)
    assert len(programs) == 4
    assert [read_form(program, form) for program in programs] == [""] * 4


@pytest.mark.slow
def test_forty_programs_are_kept_in_every_form() -> None:
    programs = list_programs(40)
    assert len(programs) == 40
    lost = {form: why for form in FORMS for program in programs if (why := read_form(program, form))}
    assert lost == {}

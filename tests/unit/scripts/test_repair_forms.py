"""`benchmarks.repair_forms` measures 40 programs; a few of them keep the reader as good as it was measured."""

from __future__ import annotations

import pytest

from benchmarks.repair_forms import FORMS, list_programs, read_form


def test_there_are_at_least_fifty_forms() -> None:
    assert len(FORMS) >= 50


@pytest.mark.parametrize("form", FORMS)
def test_a_right_repair_is_kept_in_every_form(form: str) -> None:
    programs = list_programs(4)
    assert len(programs) == 4
    assert [read_form(program, form) for program in programs] == [""] * 4

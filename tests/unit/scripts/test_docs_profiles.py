from __future__ import annotations

from dataclasses import fields

from reasond_server.llm.profiles import PROFILES, ModelProfile
from scripts.docs import BACKENDS, MEANINGS, make_profile_tables, profile_rows
from scripts.pages import ROOT, fill_tables

PLACES = "# Guide\n\n<!-- table: generic -->\nold\n<!-- end -->\n\nProse.\n\n<!-- table: profiles -->\n<!-- end -->\n"


def test_tables_replace_what_stood_in_their_places_and_nothing_else() -> None:
    guide = fill_tables(PLACES, make_profile_tables())
    assert "old" not in guide
    assert "\nProse.\n" in guide
    assert '`stop_match_fields = ["stop_reason"]`' in guide
    assert fill_tables(guide, make_profile_tables()) == guide


def test_every_capability_has_a_meaning_and_every_fact_a_row() -> None:
    assert set(MEANINGS) == {field.name for field in fields(ModelProfile)} - {"name"}
    assert sum(told.count(" = ") for _, told in profile_rows()) == sum(map(len, PROFILES.values()))


def test_the_guide_names_every_profile() -> None:
    guide = (ROOT / BACKENDS).read_text(encoding="utf-8")
    assert all(f"`{name}`" in guide for name in PROFILES)

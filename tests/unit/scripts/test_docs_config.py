from __future__ import annotations

import pytest

from reasond_server.config.reference import KeyDoc, list_key_docs
from scripts.docs import CONFIGURATION, make_section_tables, size
from scripts.pages import ROOT, fill_tables

TEXT = KeyDoc(
    key="server.name", section="server", type_name="text", default="a|b", range="", description="Name, <host>|x."
)
PLACE = "# Guide\n\n<!-- table: server -->\nold\n<!-- end -->\n\nProse stays.\n"


def test_a_table_replaces_what_stood_in_its_place_and_nothing_else() -> None:
    guide = fill_tables(PLACE, make_section_tables([TEXT]))
    assert "old" not in guide
    assert guide.endswith("Prose stays.\n")
    assert '| `name` | `"a\\|b"` |  | Name, &lt;host>\\|x. |' in guide


def test_filling_twice_changes_nothing() -> None:
    once = fill_tables(PLACE, make_section_tables([TEXT]))
    assert fill_tables(once, make_section_tables([TEXT])) == once


@pytest.mark.parametrize("guide", ["# Guide\n", PLACE + PLACE, PLACE.replace("server", "store")])
def test_a_section_without_exactly_one_place_is_an_error(guide: str) -> None:
    with pytest.raises(ValueError, match="has markers for the tables"):
        fill_tables(guide, make_section_tables([TEXT]))


@pytest.mark.parametrize(
    ("count", "expected"), [(1 << 30, "1 GiB"), (4 << 20, "4 MiB"), (8192, "8 KiB"), (8193, "8193 bytes")]
)
def test_bytes_are_told_in_the_largest_unit_that_divides_them(count: int, expected: str) -> None:
    assert size(count) == expected


def test_limits_in_bytes_can_be_read() -> None:
    guide = (ROOT / CONFIGURATION).read_text(encoding="utf-8")
    assert "| `max_send_bytes` | `4194304` (4 MiB) | 64 KiB-64 MiB |" in guide


def test_every_key_is_described_in_the_guide() -> None:
    guide = (ROOT / CONFIGURATION).read_text(encoding="utf-8")
    for doc in list_key_docs():
        assert doc.description
        table = guide.partition(f"<!-- table: {doc.section} -->")[2].partition("<!-- end -->")[0]
        assert f"\n| `{doc.key.rpartition('.')[2]}` |" in table

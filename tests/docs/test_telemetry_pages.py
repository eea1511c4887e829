"""The pages about logs and traces say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from reasond_server.telemetry.spans import ATTRIBUTES, RESERVED_SPANS

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations"


def rows(page: str) -> dict[str, str]:
    """Return the rows of the tables whose first cell is one name."""
    text = (OPERATIONS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, flags=re.MULTILINE))


def test_the_page_about_tracing_lists_every_attribute_and_no_other() -> None:
    told = rows("tracing.md")
    assert {name: told.get(name) for name in ATTRIBUTES} == dict(ATTRIBUTES)
    assert {name for name in told if "." in name and "/" not in name} == set(ATTRIBUTES)


def test_the_page_about_tracing_names_what_is_reserved() -> None:
    text = (OPERATIONS / "tracing.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in RESERVED_SPANS)

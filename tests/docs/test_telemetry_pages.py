"""The pages about logs and traces agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

from reasond_server.telemetry.spans import ATTRIBUTES, REPAIR_SPANS

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ROOT / "docs" / "operations"
ALERTS_TEST = ROOT / "tests" / "engines" / "alerts_test.yaml"


def rows(page: str) -> dict[str, str]:
    """Return the table rows whose first cell is a single name."""
    text = (OPERATIONS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, flags=re.MULTILINE))


def test_the_page_about_tracing_lists_every_attribute_and_no_other() -> None:
    told = rows("tracing.md")
    assert {name: told.get(name) for name in ATTRIBUTES} == dict(ATTRIBUTES)
    assert {name for name in told if re.search(r"\.|[a-z][A-Z]", name) and "/" not in name} == {
        *ATTRIBUTES,
        *REPAIR_SPANS,
    }


def test_the_page_about_tracing_names_the_spans_of_repairs() -> None:
    text = (OPERATIONS / "tracing.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in REPAIR_SPANS)


def alerts() -> dict[str, str]:
    """Return the severity of each alert."""
    text = (OPERATIONS / "alerts.yaml").read_text(encoding="utf-8")
    return dict(re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", text, flags=re.DOTALL))


def test_the_page_about_alerts_says_what_to_do_for_each_and_no_other() -> None:
    told = {name: row.split(" | ") for name, row in rows("alerts.md").items()}
    assert {name: row[0] for name, row in told.items()} == alerts()
    assert all(len(row) == 3 and all(row) for row in told.values())


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    quiet, broken = ALERTS_TEST.read_text(encoding="utf-8").split("  - name: everything breaks\n")
    assert set(re.findall(r"eval_time: \w+, alertname: (\w+)}", quiet)) == set(alerts())
    assert set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", broken)) == set(alerts())

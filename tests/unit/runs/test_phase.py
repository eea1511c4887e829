"""The phases of a run: one table, which docs/architecture.md shows."""

import ast
import re
from pathlib import Path

import pytest

from reasond_server.runs.phase import CANCELS, LEAVES, STOP_REASONS, TABLE, Phase, Trigger, advance

ROOT = Path(__file__).parents[3]
ENDS = {Phase.ENDED, Phase.LEFT}


def line_of(phase: Phase) -> str:
    """Return the line of the page about a phase."""
    by_target: dict[Phase, list[str]] = {}
    for trigger, target in TABLE[phase].items():
        by_target.setdefault(target, []).append(trigger.value)
    moves = "; ".join(f"{', '.join(triggers)} → {target.value}" for target, triggers in by_target.items())
    return f"| {phase.value} | {moves or 'nothing'} |"


def test_the_page_of_the_architecture_shows_the_table() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert "\n".join(map(line_of, Phase)) in page


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("trigger", Trigger)
def test_what_the_table_does_not_name_changes_nothing(phase: Phase, trigger: Trigger) -> None:
    assert advance(phase, trigger) is TABLE[phase].get(trigger, phase)


def test_every_phase_is_reached_and_every_end_is_final() -> None:
    reached, open_ = {Phase.QUEUED}, [Phase.QUEUED]
    while open_:
        for target in TABLE[open_.pop()].values():
            if target not in reached:
                reached.add(target)
                open_.append(target)
    assert reached == set(Phase)
    assert {phase for phase in Phase if not TABLE[phase]} == ENDS


def test_every_stop_from_outside_has_a_name_and_says_whether_the_log_ends_here() -> None:
    assert set(STOP_REASONS) == {*CANCELS, *LEAVES}
    assert all(TABLE[Phase.WORKING][trigger] is Phase.STOPPING for trigger in STOP_REASONS)


def test_only_one_function_changes_a_phase_and_nothing_below_knows_a_task() -> None:
    for path in sorted((ROOT / "src/reasond_server").glob("[lr]*s/**/*.py")):
        if path.relative_to(ROOT / "src/reasond_server").parts[0] not in {"logs", "runs"}:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
        assert "Task" not in names, f"{path.name} imports a task"
        text = path.read_text(encoding="utf-8")
        assigned = re.findall(r"\.phase = ", text)
        assert len(assigned) == (2 if path.name == "run.py" else 0), f"{path.name} sets a phase"

from __future__ import annotations

import sys
from pathlib import Path

from scripts import docs
from scripts.stages import Stage, stages, version

ROOT = Path(__file__).resolve().parents[3]


def words(chosen: list[Stage]) -> set[str]:
    return {word for stage in chosen for command in stage.commands for word in command}


def test_every_folder_of_tests_is_run_by_the_full_suite() -> None:
    holding = {path for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))}
    assert {f"tests/{path.name}" for path in holding} <= words(stages(ROOT, fast=False))


def test_the_fast_half_leaves_out_integration_snippets_wheels_and_coverage() -> None:
    assert {stage.name for stage in stages(ROOT, fast=True)} < {stage.name for stage in stages(ROOT, fast=False)}
    assert not {"tests/integration", "tests/docs", "tests/packaging", "coverage"} & words(stages(ROOT, fast=True))


def test_every_generated_page_is_checked_in_both() -> None:
    makers = {path.stem for path in (ROOT / "scripts").glob("*_docs.py")}
    assert makers
    assert makers <= vars(docs).keys()
    assert {"scripts.docs", "--check"} <= words(stages(ROOT, fast=True))


def test_tools_are_run_by_this_interpreter() -> None:
    assert all(stage.commands[0][0] == sys.executable for stage in stages(ROOT, fast=False) if stage.is_pytest)


def test_protos_are_compared_with_the_newest_release_only(tmp_path: Path) -> None:
    released = tmp_path / "proto" / "released"
    released.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    for name in ("v0.9.0.binpb", "v0.10.0.binpb", "v0.2.1.binpb"):
        (released / name).touch()
    protos = next(stage for stage in stages(tmp_path, fast=True) if stage.name == "protos")
    against = ("--against", str(released / "v0.10.0.binpb"))
    assert protos.commands[-1] == ("buf", "breaking", "proto/reasond.binpb", "--exclude-path", "google", *against)


def test_before_the_first_release_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    protos = next(stage for stage in stages(tmp_path, fast=True) if stage.name == "protos")
    assert [command[1] for command in protos.commands] == ["lint", "format"]


def test_versions_are_ordered_by_number() -> None:
    assert version("v0.10.0") > version("v0.9.1")

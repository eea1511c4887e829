"""Clients are built and checked again where something of them has changed, and only there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.clients import building
from tests.clients.building import run_if_changed
from tests.clients.drivers import DriverProgram

if TYPE_CHECKING:
    from pathlib import Path

COUNT = (
    sys.executable,
    "-c",
    "open('runs', 'a').write('x'); open('product', 'w').close(); exit(open('source').read().strip() or 0)",
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverProgram:
    """A program with one source and one product, whose build counts its runs."""
    monkeypatch.setattr(building, "ROOT", tmp_path)
    (tmp_path / "source").write_text("", "utf-8")
    return DriverProgram(
        language="none", run=(), build=(COUNT,), sources=("sour*",), products=(tmp_path / "product",), folder=tmp_path
    )


def build(program: DriverProgram) -> int:
    """Build if that is needed; return how often it was by now."""
    run_if_changed(program, program.build, stamps=program.folder / "stamps")
    return len((program.folder / "runs").read_text("utf-8"))


def test_an_unchanged_client_is_built_once(program: DriverProgram) -> None:
    assert [build(program), build(program)] == [1, 1]


def test_a_changed_source_a_new_one_and_a_lost_product_build_again(program: DriverProgram) -> None:
    assert build(program) == 1
    (program.folder / "source").write_text("  ", "utf-8")
    assert build(program) == 2
    (program.folder / "source2").write_text("", "utf-8")
    assert build(program) == 3
    (program.folder / "product").unlink()
    assert build(program) == 4


def test_another_toolchain_builds_again(program: DriverProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(program) == 1
    monkeypatch.setenv("GOTOOLCHAIN", "go1.23.12")
    assert build(program) == 2


def test_a_build_that_failed_is_made_again(program: DriverProgram) -> None:
    (program.folder / "source").write_text("it is wrong", "utf-8")
    for runs in (1, 2):
        with pytest.raises(AssertionError, match="it is wrong"):
            build(program)
        assert len((program.folder / "runs").read_text("utf-8")) == runs

"""The figures of the operating system about this process are plausible."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.telemetry import exposition
from reasond_server.telemetry.exposition import read_process_facts

if TYPE_CHECKING:
    import pytest


def test_a_process_knows_its_memory_its_files_and_its_time() -> None:
    before = read_process_facts(5.0)
    with Path(os.devnull).open("rb"):
        after = read_process_facts(5.0)
    assert after.started_s == 5.0
    assert 0 < before.cpu_s <= after.cpu_s
    if Path("/proc/self").exists():
        assert before.resident_bytes is not None
        assert 1_000_000 < before.resident_bytes < 100_000_000_000
        assert before.open_files is not None
        assert after.open_files == before.open_files + 1


def test_where_there_is_no_proc_the_rest_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exposition, "_OWN_PROCESS", tmp_path / "nothing")
    facts = read_process_facts(1.0)
    assert (facts.resident_bytes, facts.open_files) == (None, None)
    assert facts.cpu_s > 0

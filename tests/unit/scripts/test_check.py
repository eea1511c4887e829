from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from scripts.check import (
    ROOT,
    Counts,
    Outcome,
    conclude,
    environment,
    keep_temporary_files_in_memory,
    notices,
    run,
    run_command,
    run_lanes,
    show_output,
)
from scripts.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def test_a_stage_stops_at_its_first_failing_command() -> None:
    result = await run(
        Stage(name="s", commands=(python("print('one')"), python("raise SystemExit(3)"), python("print('two')")))
    )
    assert not result.is_passed
    assert "one\n" in result.output
    assert "two\n" not in result.output.replace("print('two')", "")


async def test_a_program_that_hangs_is_stopped_at_its_limit() -> None:
    with tempfile.TemporaryFile() as log:
        assert not await run_command(python("import signal; signal.pause()"), log, limit_s=0.1)
        log.seek(0)
        assert b"not done after 0.1 s" in log.read()


async def test_a_program_that_is_stopped_ends_with_its_children(tmp_path: Path) -> None:
    """A grandchild holds the pipe open. The test reads its end only when no process is left to write."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    grandchild = f"import signal; pipe = open({str(pipe)!r}, 'w'); print('up', file=pipe, flush=True); signal.pause()"
    hung = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])")
    with tempfile.TemporaryFile() as log:
        running = asyncio.create_task(run_command(hung, log, limit_s=300.0))
        with await asyncio.to_thread(pipe.open) as written:
            assert await asyncio.to_thread(written.readline) == "up\n"
            running.cancel()
            assert await asyncio.to_thread(written.read) == ""
    await asyncio.wait([running])
    assert running.cancelled()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_check_that_is_sent_a_signal_ends_its_stages_with_their_children(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Two stages run, and a grandchild of each holds the pipe open; it ignores what it can ignore."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    grandchild = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pipe = open({str(pipe)!r}, 'w'); print('up', file=pipe, flush=True); [signal.pause() for _ in range(99)]"
    )
    stage = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])")
    program = (
        "import sys; from scripts.check import check_lanes; from scripts.stages import Stage; "
        f"lanes = [[Stage(name=name, commands=({stage!r},)) for name in ('a', 'b')] for _ in range(2)]; "
        "sys.exit(check_lanes([], [], lanes))"
    )
    with subprocess.Popen(python(program), cwd=ROOT, stdout=subprocess.PIPE, text=True) as check:
        with pipe.open() as written:
            assert [written.readline() for _ in range(2)] == ["up\n", "up\n"]
            check.send_signal(number)
            assert written.read() == ""
        told, _ = check.communicate()
    assert check.returncode == 1
    assert "stopped by a signal; the stages are ended" in told


async def test_lanes_run_side_by_side_and_the_first_before_them(tmp_path: Path) -> None:
    """Each of two stages waits for the other to open the same pipe."""
    pipe = tmp_path / "pipe"
    first = Stage(name="first", commands=(python(f"import os; os.mkfifo({str(pipe)!r})"),))
    one = Stage(name="one", commands=(python(f"open({str(pipe)!r}, 'w').close()"),))
    other = Stage(name="other", commands=(python(f"open({str(pipe)!r}).close()"),))
    results = await run_lanes([], [first], [[one], [other]])
    assert [(result.stage.name, result.is_passed) for result in results] == [
        ("first", True),
        ("one", True),
        ("other", True),
    ]


async def test_what_needs_no_programs_begins_beside_the_preparation(tmp_path: Path) -> None:
    """The two stages wait for each other."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    beside = Stage(name="beside", commands=(python(f"open({str(pipe)!r}).close()"),))
    first = Stage(name="first", commands=(python(f"open({str(pipe)!r}, 'w').close()"),))
    results = await run_lanes([beside], [first], [])
    assert [(result.stage.name, result.is_passed) for result in results] == [("first", True), ("beside", True)]


async def test_a_stage_of_pytest_counts_its_tests() -> None:
    stage = Stage(name="s", commands=(python("print('2 passed, 1 skipped in 0.10s')"),), is_pytest=True)
    assert (await run(stage)).counts == Counts(passed=2, skipped=1)


FLAKY = """
from pathlib import Path

def test_one():
    seen = Path({seen!r})
    seen.write_text(seen.read_text() + "x" if seen.exists() else "x")
    assert len(seen.read_text()) > {failures}

def test_other():
    pass
"""


@pytest.mark.parametrize(("failures", "is_passed"), [(0, True), (1, True), (2, False)])
async def test_a_failed_test_runs_once_more_and_is_named(tmp_path: Path, failures: int, *, is_passed: bool) -> None:
    file = tmp_path / "test_flaky.py"
    file.write_text(FLAKY.format(seen=str(tmp_path / "seen"), failures=failures), "utf-8")
    options = ["-q", "-rfEs", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    alone = python(
        f"import os, sys, pytest; os.chdir({str(tmp_path)!r}); sys.exit(pytest.main([*{options}, *sys.argv[1:]]))"
    )
    result = await run(Stage(name="s", commands=((*alone, file.name),), is_pytest=True, repeat=alone))
    assert result.is_passed == is_passed
    assert result.counts == Counts(passed=2 if is_passed else 1, failed=0 if is_passed else 1)
    assert ["::test_one - AssertionError" in line for line in notices(result.output)] == [True] * (failures == 1)


async def test_many_failed_tests_are_not_repeated() -> None:
    lines = "".join(f"print('FAILED a.py::t{number} - assert 0');" for number in range(6))
    first = python(f"{lines} print('6 failed in 0.10s'); raise SystemExit(1)")
    stage = Stage(name="s", commands=(first,), is_pytest=True, repeat=python("print('1 passed in 0.1s')"))
    assert (await run(stage)).counts == Counts(failed=6)


def test_stages_see_no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("REASOND_CONFIG", "mine.toml")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("CI", "true")
    chosen = environment()
    assert not [name for name in chosen if name.startswith(("OPENAI_", "REASOND", "PYTHONDONTWRITEBYTECODE"))]
    assert chosen["CI"] == "true"


@pytest.mark.parametrize("before", [None, "/var/tmp"])  # noqa: S108 - a name, nothing is made there
def test_temporary_files_of_stages_are_in_a_folder_that_ends_with_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if before:
        monkeypatch.setenv("TMPDIR", before)
    with keep_temporary_files_in_memory(tmp_path, least_free=0):
        (folder,) = tmp_path.iterdir()
        assert environment()["TMPDIR"] == str(folder)
        assert folder.stat().st_mode & 0o7777 == 0o1777
        (folder / "left").mkdir()
    assert not list(tmp_path.iterdir())
    assert os.environ.get("TMPDIR") == before


@pytest.mark.parametrize("name", [".", "missing"])
def test_temporary_files_stay_on_the_disk_where_memory_is_short_or_not_a_folder(tmp_path: Path, name: str) -> None:
    before = os.environ.get("TMPDIR")
    with keep_temporary_files_in_memory(tmp_path / name, least_free=1 << 62):
        assert environment().get("TMPDIR") == before
        assert not list(tmp_path.iterdir())


def outcome(name: str, *, is_passed: bool, counts: Counts, output: str = "") -> Outcome:
    return Outcome(stage=Stage(name=name, commands=()), seconds=1.0, is_passed=is_passed, output=output, counts=counts)


def test_the_last_line_sums_all_tests_and_one_bad_stage_fails_all(capsys: pytest.CaptureFixture[str]) -> None:
    good = outcome("good", is_passed=True, counts=Counts(passed=5))
    bad = outcome("bad", is_passed=False, counts=Counts(passed=1, failed=2))
    assert conclude([good], seconds=1.0) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 0 failed"
    assert conclude([good, bad], seconds=1.0) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["failed: bad", "6 passed, 2 failed"]


def test_a_failing_stage_shows_the_end_of_its_output_and_a_good_one_its_notices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = "\n".join(("FAILED a.py::b", *(f"line {n}" for n in range(200))))
    show_output(outcome("bad", is_passed=False, counts=Counts(), output=output))
    printed = capsys.readouterr().out
    assert printed.splitlines()[1] == "    | FAILED a.py::b"
    assert "line 199" in printed
    assert "line 100\n" not in printed
    show_output(outcome("good", is_passed=True, counts=Counts(), output="noise\nSKIPPED [1] a: no go\n"))
    assert capsys.readouterr().out.splitlines() == ["ok       1.0 s  good", "    SKIPPED [1] a: no go"]

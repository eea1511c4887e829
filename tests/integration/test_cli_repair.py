"""`reasond repair` and `reasond demo --repair` as users run them: a real repository, the sandbox of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from reasond import Client, SandboxLevel
from reasond_server.cli.commands import demo
from reasond_server.cli.commands.demo import read_project
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.testing import FunctionModel, running_server_in_thread
from tests.conftest import IN_CI
from tests.integration.test_cli import COMMAND as REASOND
from tests.integration.test_cli import LIMIT_S, caller, run
from tests.screens import open_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from reasond_server.llm.model import ChatRequest

COMMAND = "python3 -m tests.tap tests.test_rooms"
TEST = f"tap:{COMMAND}"
FLAT = ("--search", "best_of_n", "--set", "max_candidates=20", "--set", "patience=1000")
ENVIRON = {
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__PYTHON__FORMAT": "tap",
    "REASOND__REPAIR__COMMANDS__UNIT": json.dumps(COMMAND.split()),
}
BUNDLED_FAULT = "            merged[-1] = (first, min(last, end))"
BUNDLED_FIX = "            merged[-1] = (first, max(last, end))"
# The demo model finds this one with its first edits.
FAULT = "    return one[0] < other[1] and other[0] <= one[1]"
FIX = "    return one[0] < other[1] and other[0] < one[1]"


@pytest.fixture(scope="module")
def server() -> Iterator[Mapping[str, str]]:
    """What leads the command to a server with the demo model and a sandbox; skipped without one, or failed in CI."""
    with running_server_in_thread(environ=ENVIRON) as listening:
        with Client(listening.grpc, token=listening.token) as client:
            if client.list_environments().level == SandboxLevel.SANDBOX_LEVEL_OFF:
                message = "no sandbox works here: install bubblewrap"
                pytest.fail(message) if IN_CI else pytest.skip(message)
        yield caller({"grpc": listening.grpc, "token": listening.token})


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), "utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The bundled project with another fault as a repository, with a secret and an ignored file."""
    root = tmp_path / "booking"
    files, held_out = read_project()
    others = {
        ".env": "KEY=secret\n",
        "build/out.txt": "built\n",
        ".gitignore": "build/\n",
        "private/held_out.py": held_out,
    }
    for path, text in {**files, **others}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")
    _replace(root / "intervals.py", BUNDLED_FAULT, BUNDLED_FIX)
    _replace(root / "intervals.py", FIX, FAULT)
    subprocess.run(["git", "init", "-q", str(root)], check=True, timeout=60)
    return root


def test_a_repository_is_repaired_and_the_patch_goes_to_stdout(server: Mapping[str, str], project: Path) -> None:
    done = run("repair", str(project), "--test", TEST, *FLAT, environ=server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("diff --git a/intervals.py b/intervals.py\n")
    assert FIX in done.stdout
    assert FAULT in (project / "intervals.py").read_text("utf-8")
    lines = done.stderr.splitlines()
    assert f"test: {COMMAND}" in lines
    assert "left out: .env (it may hold a secret)" in lines
    assert not any("build/out.txt" in line for line in lines)
    assert any("the checks on the original" in line for line in lines)
    assert any(line.startswith("   cand-1 ") for line in lines)
    assert any(" passed, 6 of 6 tests pass, score 100" in line for line in lines)
    assert "accepted: it passes the checks that the search saw; no others were sent" in lines
    assert any("embedded demo model" in line for line in lines)


def test_an_accepted_patch_is_applied_and_held_out_checks_are_told(server: Mapping[str, str], project: Path) -> None:
    held_out = 'exit_code:python3 -c "import sys; from intervals import overlap; sys.exit(not overlap((0, 9), (1, 2)))"'
    done = run(
        "repair", ".", "--test", "unit", "--held-out", held_out, *FLAT, "--apply", environ=server, folder=project
    )
    assert done.returncode == 0, done.stderr
    assert "accepted: it passes checks that the search never saw, too" in done.stderr
    assert "applied to intervals.py" in done.stderr
    assert FIX in (project / "intervals.py").read_text("utf-8")
    again = run("repair", ".", "--test", "unit", *FLAT, environ=server, folder=project)
    assert again.returncode == 2
    assert "error: " in again.stderr


def test_where_nothing_is_accepted_nothing_is_applied(server: Mapping[str, str], project: Path) -> None:
    _replace(project / "intervals.py", FAULT, FIX)
    _replace(project / "intervals.py", BUNDLED_FIX, BUNDLED_FAULT)
    wanted = ("--set", "max_candidates=3", "--apply")
    done = run("repair", str(project), "--test", TEST, *FLAT, *wanted, environ=server)
    assert done.returncode == 8, done.stderr
    assert "NOT accepted: this patch is only the best that was found" in done.stderr
    assert "warning: nothing was applied, because the patch was not accepted" in done.stderr
    assert BUNDLED_FAULT in (project / "intervals.py").read_text("utf-8")


def test_programs_get_one_event_per_line(server: Mapping[str, str], project: Path) -> None:
    done = subprocess.run(
        [*REASOND, "repair", str(project), "--test", TEST, *FLAT, "--json"],
        env={**os.environ, **server},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert "started" in events[0]
    assert events[-1]["completed"]["is_accepted"] is True
    assert FIX in events[-1]["completed"]["patch"]


def test_a_terminal_shows_the_diff_in_colour(server: Mapping[str, str], project: Path) -> None:
    with open_terminal("repair", str(project), "--test", TEST, *FLAT, environ=server) as command:
        assert command.finish() == 0
    shown = command.drawn.output.decode()
    assert f"\x1b[32m+{FIX}" in shown
    assert f"\x1b[31m-{FAULT}" in shown
    accepted = next(place for place, row in enumerate(command.drawn.rows) if row.startswith("accepted: "))
    assert command.drawn.rows[-1].startswith("each step: reasond executions follow ")
    assert not any(row.strip().startswith("cand-") for row in command.drawn.rows)
    assert len(command.drawn.rows) - accepted <= 6, "four lines, of which two are longer than a row"


def test_ctrl_c_cancels_the_repair(server: Mapping[str, str], project: Path) -> None:
    code, shown = interrupt("repair", str(project), "--test", "sleep 600", environ=server)
    assert code == 130, shown
    assert "no patch was found" in shown
    assert "cancelled, 0 rounds" in shown


def test_a_repair_that_is_kept_running_is_followed_again_and_cancelled_there(
    server: Mapping[str, str], project: Path
) -> None:
    code, shown = interrupt("repair", str(project), "--test", "sleep 600", "--keep-running", environ=server)
    assert code == 130, shown
    cursor = shown.partition("the repair goes on: reasond repair --resume ")[2].split()[0]
    assert cursor.endswith(":1")
    code, shown = interrupt("repair", "--resume", cursor.partition(":")[0], environ=server)
    assert code == 130, shown
    assert "cancelled, 0 rounds" in shown


def test_the_patch_of_a_repair_that_has_ended_is_shown_and_applied_later(
    server: Mapping[str, str], project: Path
) -> None:
    done = run("repair", str(project), "--test", TEST, *FLAT, environ=server)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("repair ")]
    execution_id = line.split()[1].rstrip(":,")
    again = run("repair", str(project), "--resume", execution_id, "--apply", environ=server)
    assert again.returncode == 0, again.stderr
    assert FIX in again.stdout
    assert "applied to intervals.py" in again.stderr
    assert FIX in (project / "intervals.py").read_text("utf-8")


def interrupt(*arguments: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Run the command, press Ctrl-C once it has shown that the repair began, and return its code and what it showed."""
    with subprocess.Popen(
        [*REASOND, *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert any(line.startswith("repair ") for line in process.stderr)
            process.send_signal(signal.SIGINT)
            _, shown = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    return process.returncode, shown


def test_a_plan_is_written_and_nothing_is_run(project: Path) -> None:
    plan = "1. Move the intervals into a package of their own: intervals.py. Seen by the tests."

    def reply(request: ChatRequest) -> str:
        return plan if "Attempt" in request.messages[-1].content else "1: 7, 2: 6, 3: 5, 4: 4, 5: 3"

    with running_server_in_thread(model=FunctionModel(reply), environ=ENVIRON) as listening:
        environ = caller({"grpc": listening.grpc, "token": listening.token})
        done = run("repair", str(project), "--plan", "--description", "Split the module.", environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == plan
    assert "held by" not in done.stderr
    assert "the checks on the original" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "There is no check that says when the code is right"),
        (("--plan",), "--plan needs --description"),
        (("--plan", "--description", "x", "--apply"), "--plan runs nothing and changes nothing"),
        (("--test", "pytest 'open"), "cannot be read"),
        (("--test", "true", "--set", "depth=3"), "depth"),
        (("--test", "true", "--search", "widely"), "widely"),
        (("--test", "true", "--environment", "cobol"), "cobol"),
        (("--resume", "x", "--test", "true"), "--resume follows a repair that was started before"),
        (("--resume", "x", "--search", "lats"), "--resume follows a repair that was started before"),
        (("--resume", "x:y"), "is no EXECUTION or EXECUTION:SEQUENCE"),
    ],
)
def test_a_request_that_is_wrong_is_refused(
    server: Mapping[str, str], project: Path, options: tuple[str, ...], message: str
) -> None:
    done = run("repair", str(project), *options, environ=server)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stdout == ""


def test_the_demo_repairs_a_project_and_shows_how(server: Mapping[str, str], tmp_path: Path) -> None:
    assert server
    done = run("demo", "--repair", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    places = [
        next(place for place, line in enumerate(lines) if text in line)
        for text in (
            "no key and no network is needed",
            "A project with a fault:",
            "The embedded model does not understand code",
            "the checks on the original",
            "cand-1 failed",
            "round 1: ",
            "passed, 6 of 6 tests",
            "the patch of",
            "held out, held-out: passed, 5 of 5 tests pass",
            f"+{BUNDLED_FIX}",
            "accepted: it passes checks that the search never saw, too",
            "note: answered by the embedded demo model",
        )
    ]
    assert places == sorted(places)
    assert "held by " in lines[places[1]]


def test_without_a_sandbox_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = demo.list_variables()
    monkeypatch.setattr(demo, "list_variables", lambda: {**settings, "REASOND__REPAIR__SANDBOX__LEVEL": "off"})
    with pytest.raises(CommandError, match="No sandbox works on this machine") as caught:
        demo.run(repair=True)
    assert caught.value.code is ExitCode.FAILURE
    assert "apt-get install bubblewrap" in caught.value.remedy


def test_a_new_repair_needs_a_folder(server: Mapping[str, str]) -> None:
    done = run("repair", "--test", "true", environ=server)
    assert done.returncode == 2
    assert "There is no folder" in done.stderr

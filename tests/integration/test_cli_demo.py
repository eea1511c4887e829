"""`reasond demo` and the calls that it prints, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING

from reasond_server.cli.examples import Endpoints, list_turn_calls
from tests.conftest import BIN
from tests.integration.test_cli import LIMIT_S, caller, run
from tests.screens import open_terminal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REMEDY = "The only Remedy is a most serene and quiet Air"


def test_the_demo_answers_from_the_book_whatever_the_user_has_set(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense = 1\n", "utf-8")
    environ = {"OPENAI_API_KEY": "none", "REASOND__SERVER__HTTP_ADDRESS": "", "REASOND_CONFIG": "/nonexistent"}
    done = run("demo", environ=environ, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert sum(line.startswith("read ") for line in lines) > 20
    assert any(REMEDY in line for line in lines)
    assert any("found word for word in the text" in line for line in lines)
    assert any("11,576.25" in line for line in lines)
    for name in ("grpcurl", "python", "curl"):
        assert any(name in line for line in lines)
    assert not any("#token=" in line for line in lines), "an address that nobody could open in time"
    assert "3. A turn of a conversation, in which the model calls tools:" in lines
    assert "book_title says: THE FIRST BOOK OF OPTICKS" in lines


def test_the_turn_of_the_demo_uses_both_kinds_of_tools_asks_for_an_approval_and_quotes_what_they_returned(
    tmp_path: Path,
) -> None:
    done = run("demo", "--turn", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    places = [
        next(place for place, line in enumerate(lines) if line.startswith(text))
        for text in (
            "c1 calculator: succeeded",
            "c2 execute book_title",
            "-> the demo runs its own function book_title",
            "c3 approve current_time",
            "-> the demo approves current_time",
            "c3 current_time: succeeded",
            "The calculator says 36.",
            "book_title says: THE FIRST BOOK OF OPTICKS",
            'current_time says: {"time": "20',
            "answered: 4 model calls",
            "note: answered by the embedded demo model, which follows fixed rules",
        )
    ]
    assert places == sorted(places)
    assert not any("window" in line for line in lines)


def test_the_turn_of_the_demo_stays_within_the_lines_of_a_terminal() -> None:
    with open_terminal("demo", "--turn", "--no-keep", environ={"NO_COLOR": "1"}, width=60) as command:
        assert command.finish() == 0
    rows = command.drawn.rows
    places = [
        next(place for place, row in enumerate(rows) if row.startswith(text))
        for text in (
            "  2. planning: Step 2 of 3: I call book_title.",
            "     c2 execute book_title {}",
            "   -> the demo runs its own function book_title",
            "     c3 current_time: succeeded",
            "  4. planning: The calculator says 36. book_title says: THE",
            "The calculator says 36.",
            "answered: 4 model calls",
        )
    ]
    assert places == sorted(places)
    assert rows[places[4]].endswith("…")
    assert not any(row.endswith("started") for row in rows)


def test_on_a_terminal_the_demo_shows_how_far_it_has_come_and_ends_on_one_screen() -> None:
    with open_terminal("demo", "--no-keep", environ={}) as command:
        assert command.finish() == 0
    drawn = command.drawn
    assert re.search(rb" read \d+ of 5\d, about \d+ s left", drawn.output)
    assert not any(row.startswith("read ") for row in drawn.rows)
    answer = next(place for place, row in enumerate(drawn.rows) if REMEDY in row)
    following = next(place for place, row in enumerate(drawn.rows) if row.startswith("2. The same service"))
    assert following - answer <= 2 + 1 + 6, (
        "the answer, where it stands, and five lines of which one is longer than a row"
    )
    assert any(row.startswith("4. Now you") for row in drawn.screen), drawn.screen


def test_every_call_of_the_demo_s_turn_can_be_pasted(dev_server: Mapping[str, str], grpcurl: str) -> None:
    assert grpcurl
    place = Endpoints(grpc=dev_server["grpc"], http=f"http://{dev_server['http']}")
    for name, command in list_turn_calls("What is 7 times 6? Read the title.", "title", 'The "Title"', place):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**os.environ, **caller(dev_server)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        expected = 'title says: The "Title"' if name == "Python" else '"etag"'
        assert expected in done.stdout, f"{name}: {done.stdout}"


def test_the_demo_keeps_its_server_for_a_browser_until_it_is_interrupted(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [str(BIN / "reasond"), "demo", "--turn", "--keep"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=tmp_path)
    try:
        assert process.stdout is not None
        lines = [next(line for line in process.stdout if "#token=" in line)]
        lines += [next(line for line in process.stdout if "Now you" in line)]
        link = next(line.strip() for line in process.stdout if "#token=" in line)
        assert link in lines[0]
        with urllib.request.urlopen(link.partition("#")[0], timeout=LIMIT_S) as answer:
            assert b"reasond console" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()

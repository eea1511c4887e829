"""What the model may look up while it writes a candidate."""

from __future__ import annotations

import json

import pytest

from reasond_server.repair.search.look_ups import LOOK_UPS, look_up
from reasond_server.types import ToolCall
from reasond_server.types.repairs import SourceFile

FILES = {
    "a.py": SourceFile(path="a.py", content=b"one\ntwo\nthree\n"),
    "pkg/b.py": SourceFile(path="pkg/b.py", content=b"two of b\n" * 300),
    "bad.bin": SourceFile(path="bad.bin", content=b"\xff\xfe two"),
}


def ask(name: str, **arguments: object) -> str:
    return look_up(FILES, ToolCall(call_id="", name=name, arguments_json=json.dumps(arguments)))


def test_a_file_is_read_from_a_line_on() -> None:
    assert ask("read_file", path="a.py", start=2) == "2: two\n3: three"
    assert len(ask("read_file", path="pkg/b.py").splitlines()) == 200


def test_lines_are_found_with_their_places_and_at_most_fifty() -> None:
    assert ask("grep", text="two", path="a.py") == "a.py:2: two"
    assert len(ask("grep", text="two").splitlines()) == 50
    assert ask("grep", text="nowhere") == "No line contains 'nowhere'"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("read_file", {"path": "b.py"}, "There is no file 'b.py'"),
        ("read_file", {"path": "../a.py"}, "There is no file"),
        ("read_file", {"path": 3}, "There is no file 3"),
        ("read_file", {"path": "a.py", "start": 0}, "at least 1, got 0"),
        ("read_file", {"path": "a.py", "start": 9}, "has 3 lines"),
        ("grep", {"text": ""}, "must be a text"),
        ("write_file", {"path": "a.py"}, "There is no tool 'write_file'"),
    ],
)
def test_a_call_that_cannot_be_answered_says_why(name: str, arguments: dict[str, object], words: str) -> None:
    assert words in ask(name, **arguments)


def test_the_specs_name_what_there_is() -> None:
    assert [spec.name for spec in LOOK_UPS] == ["grep", "read_file"]

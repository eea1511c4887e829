"""Which files a prompt shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.repair.edits.protection import build_protection
from reasond_server.repair.search.prompts import MOST_SHOWN, choose_files, leave_out_held_out
from reasond_server.types.repairs import Check, CheckRole, SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def choose(contents: Mapping[str, bytes | str], *hints: str, room: int = 100_000) -> list[str]:
    files = {
        path: SourceFile(path=path, content=text.encode() if isinstance(text, str) else text)
        for path, text in contents.items()
    }
    shown = choose_files(
        files, hints=hints, is_editable=lambda path: not path.startswith("tests/"), room=room, count=len
    )
    assert all(shown.texts[path] == files[path].content.decode() for path in shown.texts)
    assert not set(shown.texts) & set(shown.others)
    return list(shown.texts)


def test_files_that_the_evidence_names_come_first() -> None:
    contents = {"a.py": "1", "pkg/b.py": "2", "pkg/c.py": "3" * 50}
    assert choose(contents, 'File "/srv/tmp/pkg/c.py", line 3, in f')[0] == "pkg/c.py"


def test_what_a_named_file_imports_comes_next() -> None:
    contents = {
        "tests/test_app.py": "from app.core import run\nimport app.other\n",
        "src/app/core.py": "x" * 90,
        "src/app/other.py": "y" * 95,
        "small.py": "z",
    }
    assert choose(contents, "tests/test_app.py:2: AssertionError") == [
        "tests/test_app.py",
        "src/app/core.py",
        "src/app/other.py",
        "small.py",
    ]


def test_protected_files_come_last_and_small_ones_first() -> None:
    assert choose({"tests/t.py": "1", "b.py": "22", "a.py": "333"}) == ["b.py", "a.py", "tests/t.py"]


def test_a_file_that_does_not_fit_is_left_out_whole() -> None:
    assert choose({"big.py": "x" * 500, "small.py": "y" * 50}, "big.py:1", room=100) == ["small.py"]


def test_binary_files_and_unknown_kinds_are_never_shown() -> None:
    assert choose({"a.png": b"\x89PNG", "b.py": b"\xff\xfe", "c.py": b"a\0b", "d.py": "fine", "LICENSE": "text"}) == [
        "LICENSE",
        "d.py",
    ]


def test_the_number_of_files_is_bounded() -> None:
    assert len(choose({f"f{number}.py": "x" for number in range(200)})) == MOST_SHOWN


def test_a_file_of_the_same_name_elsewhere_is_not_taken_for_the_named_one() -> None:
    assert choose({"x/util.py": "1" * 9, "y/util.py": "2"}, "x/util.py:10: error")[0] == "x/util.py"


def list_shown(
    paths: Sequence[str], *, held_out: Sequence[str], visible: Sequence[str] = ("pytest", "tests")
) -> list[str]:
    files = {path: SourceFile(path=path, content=b"") for path in paths}
    checks = [
        Check(name="tests", role=CheckRole.REPRODUCE, argv=visible),
        Check(name="held-out", role=CheckRole.HELD_OUT, argv=held_out),
    ]
    return list(leave_out_held_out(files, checks, is_protected=build_protection(["tests/open/**"])))


def test_tests_that_held_out_checks_name_are_not_shown() -> None:
    paths = ["a.py", "tests/test_a.py", "hidden/test_b.py", "hidden.py", "checks/test_one.py", "checks/test_two.py"]
    held_out = ["pytest", "-q", "./hidden/", "checks/test_one.py::test_x", "."]
    assert list_shown(paths, held_out=held_out) == ["a.py", "tests/test_a.py", "hidden.py", "checks/test_two.py"]


def test_code_under_repair_is_shown_even_if_a_held_out_check_names_it() -> None:
    paths = ["src/calc.py", "src/test_calc.py", "main.py", "tests/open/test_c.py"]
    held_out = ["pytest", "src", "main.py", "tests/open/test_c.py"]
    assert list_shown(paths, held_out=held_out) == ["src/calc.py", "main.py", "tests/open/test_c.py"]


def test_a_test_that_a_visible_check_names_itself_is_shown() -> None:
    paths = ["tests/test_a.py", "tests/test_b.py"]
    visible = ["pytest", "./tests/test_a.py::test_one"]
    assert list_shown(paths, held_out=["pytest", "tests"], visible=visible) == ["tests/test_a.py"]

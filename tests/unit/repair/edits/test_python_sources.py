from __future__ import annotations

import ast

import pytest

from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python


def test_python_is_known_by_its_name() -> None:
    assert [path for path in ("a/b.py", "a.pyi", "a.pyc", "py", "a.PY") if is_python(path)] == ["a/b.py", "a.pyi"]


def test_a_source_is_parsed_without_warnings() -> None:
    assert isinstance(parse_python(rb"x = '\d' is 'a'"), ast.Module)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (b"x = (\n", "line 1"),
        (b"\xff", "line"),
        (b"x\0", "characters|null"),
        (b"-" * 100_000 + b"1", "deeply"),
        (b"x" + b".a" * 100_000, "deeply"),
        (b"(" * 100_000, "nested"),
        (b"-" * 600 + b"1", "more than 500 levels"),
        (b"if a:\n pass\n" + b"elif a:\n pass\n" * 600, "more than 500 levels"),
        (b"#" * (4 * 1024 * 1024 + 1), "bytes"),
    ],
)
def test_what_cannot_be_parsed_is_told(source: bytes, why: str) -> None:
    with pytest.raises(PythonSourceError, match=why):
        parse_python(source)

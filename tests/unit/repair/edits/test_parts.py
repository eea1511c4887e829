from __future__ import annotations

import pytest

from reasond_server.repair.edits.parts import EditError, find_left_out, merge_fence

PYTHON = '''"""Words."""

import os

LIMIT = 3


# Adds.
def add(a, b):
    return a - b


class Stack:
    size = 0

    @property
    def top(self):
        return 1

    def pop(self):
        return 2


def name():
    return os.name
'''
GO = "package calc\n\nfunc Add(a, b int) int {\n\treturn a - b\n}\n\nfunc Name() string {\n\treturn `calc`\n}\n"
ADD = "def add(a, b):\n    return a + b\n"
MENDED = PYTHON.replace("a - b", "a + b")


def test_a_function_takes_the_place_of_its_old_one_and_nothing_else_is_lost() -> None:
    assert merge_fence("a.py", PYTHON, ADD) == MENDED
    assert merge_fence("a.py", PYTHON, f"import os\n\n\n{ADD}\n\n# ... rest of the file unchanged ...\n") == MENDED
    assert merge_fence("a.py", PYTHON, "    def pop(self):\n        return 3\n") == PYTHON.replace(
        "return 2", "return 3"
    )


def test_a_class_that_lacks_members_gives_its_methods_alone() -> None:
    part = "class Stack:\n    def pop(self):\n        return 3\n"
    assert merge_fence("a.py", PYTHON, part) == PYTHON.replace("return 2", "return 3")
    with pytest.raises(EditError, match="lacks members of the old one"):
        merge_fence("a.py", PYTHON, "class Stack:\n    def push(self):\n        return 3\n")


def test_a_new_helper_and_a_new_import_stand_where_they_work() -> None:
    part = "import math\n\n\ndef _help(a):\n    return math.floor(a)\n\n\ndef add(a, b):\n    return _help(a) + b\n"
    merged = merge_fence("a.py", PYTHON, part)
    assert "import os\nimport math\n" in merged
    assert merged.index("def _help") < merged.index("def add") < merged.index("class Stack")
    assert "return a - b" not in merged


def test_a_whole_file_is_taken_as_it_is() -> None:
    whole = MENDED.replace("LIMIT = 3", "LIMIT = 4")
    assert merge_fence("a.py", PYTHON, whole) == whole
    assert merge_fence("a.py", "x = 1\n", "x = 2\n") == "x = 2\n"
    assert merge_fence("a.py", "", "x = 2\n") == "x = 2\n"
    assert merge_fence("a.txt", "one\ntwo\n", "three\n") == "three\n"


@pytest.mark.parametrize(
    ("path", "old", "new", "why"),
    [
        ("a.py", PYTHON, "LIMIT = 4\n", "lacks 'a docstring', 'import os', 'add'"),
        ("a.py", PYTHON, f"LIMIT = 4\n\n\n{ADD}", "is not the whole file"),
        ("a.py", PYTHON, "def add(a, b):\n    # ... existing code ...\n    return a + b\n", "leaves lines out"),
        ("a.py", PYTHON, "return a + b\n", "whole file|no valid Python"),
        (
            "a.py",
            "def f():\n    x = 1\n\n\nif True:\n    def f():\n        x = 2\n",
            "def g():\n    pass\n",
            "no function of",
        ),
        ("a.py", "def f():\n    1\n\n\ndef f():\n    2\n", "def f():\n    3\n", "2 definitions of 'f'|lacks 'f'"),
        ("a.go", GO, "func Other() int {\n\treturn 1\n}\n", "lacks 'Add', 'Name'"),
        ("a.go", GO, "package calc\n\n// ... rest of the code ...\n", "is not the whole file"),
        ("a.txt", "1\n2\n3\n4\n5\n6\n", "1\nx\n", "is not the whole file: it lacks 'most lines'"),
    ],
)
def test_what_is_neither_the_whole_file_nor_whole_parts_is_refused(path: str, old: str, new: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        merge_fence(path, old, new)


def test_parts_of_other_languages_are_found_by_their_closing_line() -> None:
    part = "func Add(a, b int) int {\n\treturn a + b\n}\n"
    assert merge_fence("a.go", GO, part) == GO.replace("a - b", "a + b")
    script = "function add(a, b) {\n  return a - b;\n}\n\nconst name = () => {\n  return 'x';\n};\n"
    part = "const name = () => {\n  return 'y';\n};\n// ... rest unchanged\n"
    assert merge_fence("a.js", script, part) == script.replace("'x'", "'y'")


@pytest.mark.parametrize(
    "line",
    ["# ...", "    // ... existing code ...", "/* rest of the file */", "# other methods remain the same", "..."],
)
def test_lines_that_stand_for_others_are_found_unless_the_file_has_them(line: str) -> None:
    assert find_left_out(f"x = 1\n{line}\n", "x = 1\n") == line.strip()
    assert find_left_out(f"x = 1\n{line}\n", f"{line}\n") == ""


@pytest.mark.parametrize("line", ["# The rest is added here.", "rest = unchanged", "x = [...]", "# Return the sum."])
def test_other_lines_stand_for_themselves(line: str) -> None:
    assert find_left_out(f"{line}\n", "") == ""

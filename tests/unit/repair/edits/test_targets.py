from __future__ import annotations

import pytest

from reasond_server.repair.edits.edit_application import EditError, apply_edits, read_reply
from tests.repairing import source_files

CALC = "def add(a, b):\n    return a - b\n\n\ndef name():\n    return 'calc'\n"
TOOLS = "def sub(a, b):\n    return a + b\n\n\ndef name():\n    return 'tools'\n"
SHARED = "def twice(a):\n    return a\n"
FILES = {
    "src/calc.py": CALC,
    "src/tools.py": TOOLS,
    "src/one.py": SHARED,
    "src/two.py": SHARED,
    "test_it.py": "x = 1\n",
}
MENDED = {"src/calc.py": CALC.replace("a - b", "a + b").encode()}
BLOCK = "<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n"
SHARED_BLOCK = "<<<<<<< SEARCH\n    return a\n=======\n    return 2 * a\n>>>>>>> REPLACE\n"
FUNCTION = "```python\ndef add(a, b):\n    return a + b\n```\n"


def apply(text: str, files: dict[str, str] = FILES) -> dict[str, bytes | None]:
    edits = read_reply(text).edits
    return dict(apply_edits(source_files(files), edits, protected=lambda path: path.startswith("test")))


@pytest.mark.parametrize(
    "text",
    [
        f"calc.py\n{BLOCK}",
        f"a/src/calc.py\n{BLOCK}",
        f"/srv/project/src/calc.py\n{BLOCK}",
        f"path/to/file.py\n{BLOCK}",
        f"Done\n{BLOCK}",
        f"In `calc.py` I change the sign:\n{BLOCK}",
        BLOCK,
        f"Here is the corrected `add`:\n{FUNCTION}",
        f"```python\n# src/calc.py\n{FUNCTION.partition(chr(10))[2]}",
        f"```python\n# File: calc.py (corrected)\n{FUNCTION.partition(chr(10))[2]}",
        f"The code now:\n```python\n{CALC}```\nIt should be:\n{FUNCTION}",
    ],
)
def test_a_file_is_found_by_what_can_only_be_meant(text: str) -> None:
    assert apply(text) == MENDED


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SHARED_BLOCK, "in more than one place: 'src/one.py', 'src/two.py'"),
        (f"src/one.py\n{SHARED_BLOCK}\n???\n{SHARED_BLOCK}", "in more than one place"),
        (f"src/one.py\n{SHARED_BLOCK}\nAnd the other one:\n{SHARED_BLOCK}", "in more than one place"),
        (f"In one.py and two.py:\n{SHARED_BLOCK}", "does not name one file"),
        (f"Now in missing.py too:\n{BLOCK}", "does not name one file"),
        (f"missing.py\n{BLOCK}", "no file 'missing.py'.*'src/calc.py'"),
        ("<<<<<<< SEARCH\nx = 1\n=======\nx = 2\n>>>>>>> REPLACE\n", "in no file that may be changed"),
        ("```python\ndef name():\n    return 'new'\n```\n", "fits several files: 'src/calc.py', 'src/tools.py'"),
        ("Like this:\n```python\nprint(add(1, 2))\n```\n", "No fence of the reply"),
    ],
)
def test_what_may_mean_two_files_or_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(EditError, match=why):
        apply(text)


def test_a_fence_without_a_path_is_no_edit_beside_a_block() -> None:
    assert apply(f"For example:\n```python\ndef name():\n    return 1\n```\nsrc/calc.py\n{BLOCK}") == MENDED
    assert apply(f"src/calc.py\n```python\n{CALC}```\nsrc/calc.py\n{BLOCK}") == MENDED


def test_a_new_file_is_made_where_its_path_is_alone() -> None:
    text = "```python src/extra.py\nX = 1\n```"
    assert apply(text) == {"src/extra.py": b"X = 1\n"}

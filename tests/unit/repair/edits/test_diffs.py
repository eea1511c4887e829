from __future__ import annotations

import json

import pytest

from reasond_server.repair.edits.diffs import is_diff, read_diff, read_json
from reasond_server.repair.edits.parts import EditError


def read(text: str, path: str = "") -> list[tuple[str, str | None, str | None]]:
    edits, _ = read_diff(text.split("\n"), path=path, mention="", is_fenced=True)
    return [(edit.path, edit.anchor, edit.text) for edit in edits]


def test_every_hunk_of_every_file_is_an_edit() -> None:
    text = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@ def f():\n x\n-y\n+z\n@@ -9 +9 @@\n-p\n+q\n"
    text += "--- b.py\t2024\n+++ b.py\t2024\n@@\n-1\n+2"
    assert read(text) == [("a.py", "x\ny\n", "x\nz\n"), ("a.py", "p\n", "q\n"), ("b.py", "1\n", "2\n")]


def test_files_are_made_and_deleted() -> None:
    assert read("--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1") == [("new.py", None, "x = 1\n")]
    assert read("--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1") == [("old.py", None, None)]
    text = "*** Begin Patch\n*** Add File: a.py\n+x\n*** Delete File: b.py\n*** End Patch"
    assert read(text) == [("a.py", None, "x\n"), ("b.py", None, None)]


def test_a_hunk_without_a_head_belongs_to_the_path_above() -> None:
    assert read("-x\n+y", path="a.py") == [("a.py", "x\n", "y\n")]
    assert read("+y\n-x") == [("", "x\n", "y\n")]


def test_renamed_files_are_refused() -> None:
    with pytest.raises(EditError, match="cannot rename"):
        read("diff --git a/a.py b/b.py\nrename from a.py\nrename to b.py")


def test_a_diff_outside_a_fence_ends_at_prose() -> None:
    lines = ["--- a.py", "+++ a.py", "@@ -1 +1 @@", "-x", "+y", "", "That is all."]
    edits, count = read_diff(lines, path="", mention="", is_fenced=False)
    assert (len(edits), count) == (1, 6)


@pytest.mark.parametrize(
    ("text", "info", "is_one"),
    [
        ("-x\n+y", "diff", True),
        ("x\ny", "diff", False),
        ("@@ -1 +1 @@\n-x\n+y", "python", True),
        ("*** Begin Patch\n*** Update File: a\n-x\n+y", "", True),
        ("x = 1\n-y", "python", False),
        ("@@\n", "", False),
    ],
)
def test_a_diff_is_known_by_its_head_or_by_the_word_of_the_fence(text: str, info: str, *, is_one: bool) -> None:
    assert is_diff(text.split("\n"), info) is is_one


def test_edits_in_json_are_read_by_their_usual_keys() -> None:
    (edit,) = read_json(json.dumps({"changes": [{"filePath": 1, "file": "a.py", "old_str": "x", "new_str": "y"}]}))
    assert (edit.path, edit.anchor, edit.text) == ("a.py", "x\n", "y\n")
    (edit,) = read_json(json.dumps({"a.py": "x = 1"}))
    assert (edit.path, edit.text) == ("a.py", "x = 1\n")
    (edit,) = read_json(json.dumps([{"path": "a.py", "search": ["x", "y"], "replace": ""}]))
    assert (edit.anchor, edit.text) == ("x\ny\n", "")


@pytest.mark.parametrize("text", ["", "x", "{", "[1, 2]", '{"a": 1}', "[" * 100_000, '{"answer": "no"}'])
def test_other_json_has_no_edits(text: str) -> None:
    assert not read_json(text)

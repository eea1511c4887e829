from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.repair.edits.edit_application import Edit, EditError, apply_edits
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def build_files(**contents: bytes) -> dict[str, SourceFile]:
    return {name.replace("_", ".", 1): SourceFile(path=name, content=content) for name, content in contents.items()}


def apply(
    content: bytes, *edits: Edit, path: str = "a.txt", protected: Callable[[str], bool] = lambda _: False
) -> Mapping[str, bytes | None]:
    return apply_edits({path: SourceFile(path=path, content=content)}, edits, protected=protected)


def replace(anchor: str, text: str, path: str = "a.txt") -> Edit:
    return Edit(path=path, anchor=anchor, text=text)


@pytest.mark.parametrize(
    ("before", "anchor", "text", "after"),
    [
        (b"a\nb\nc\n", "b\n", "B\nBB\n", b"a\nB\nBB\nc\n"),
        (b"a\nb\nc\n", "b\n", "", b"a\nc\n"),
        (b"a\r\nb\r\nc\r\n", "b\nc\n", "B\n", b"a\r\nB\r\n"),
        (b"a\r\nb\r\nc", "c\n", "C\nD\n", b"a\r\nb\r\nC\r\nD"),
        (b"a\nb", "b\n", "B\n", b"a\nB"),
        (b"a\nb", "b\n", "", b"a"),
        (b"a\nb", "a\n", "A\n", b"A\nb"),
        (b"a\r\nb\nc\r\n", "b\n", "B\n", b"a\r\nB\nc\r\n"),
        (b"a\r\nb\nc\r\n", "a\n", "A\n", b"A\r\nb\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\n", "a\n", "A\n", b"\xef\xbb\xbfA\nb\n"),
        (b"a \nb\t\n", "a\nb  \n", "B \n", b"B \n"),
        ("ä\n  ö\n".encode(), "  ö\n", "  ü\n", "ä\n  ü\n".encode()),
        (b"x\x0cy\nz\x0b\n", "x\x0cy\n", "q\n", b"q\nz\x0b\n"),
        (b"a\n", "a\n", "", b""),
        (b"", "", "a\n", b"a\n"),
        (b"if x:\n    a\nelse:\n    a\n", "else:\n    a\n", "else:\n    b\n", b"if x:\n    a\nelse:\n    b\n"),
    ],
)
def test_an_anchor_is_replaced_and_the_style_of_the_file_stays(
    before: bytes, anchor: str, text: str, after: bytes
) -> None:
    assert apply(before, replace(anchor, text)) == {"a.txt": after}


@pytest.mark.parametrize(
    ("before", "text", "after"),
    [
        (b"a\r\nb\r\n", "x\ny\n", b"x\r\ny\r\n"),
        (b"a\nb", "x\ny\n", b"x\ny"),
        (b"a\r\nb", "x\ny\n", b"x\r\ny"),
        (b"a", "x\ny\n", b"x\ny"),
        (b"\xef\xbb\xbfa\n", "x\n", b"\xef\xbb\xbfx\n"),
        (b"a\n", "", b""),
    ],
)
def test_a_whole_file_keeps_line_endings_and_the_missing_newline(before: bytes, text: str, after: bytes) -> None:
    assert apply(before, Edit(path="a.txt", text=text)) == {"a.txt": after}


@pytest.mark.parametrize(
    ("content", "anchor", "count"),
    [
        (b"a\nb\n", "c\n", "0 matches"),
        (b"a\nb\n", "a b\n", "0 matches"),
        (b"  a\nb\n", "a\n  b\n", "0 matches"),
        (b"xa\n", "a\n", "0 matches"),
        (b"a\nb\na\n", "a\n", "2 matches"),
        (b"a\na\na\n", "a\na\n", "2 matches"),
        (b"\n" * 50, "\n", "more than 20 matches"),
        (b"y\n", "long " * 100 + "\n", "0 matches"),
    ],
)
def test_an_anchor_that_does_not_occur_exactly_once_is_quoted_back(content: bytes, anchor: str, count: str) -> None:
    with pytest.raises(EditError, match=count) as caught:
        apply(content, replace(anchor, "z\n"))
    assert repr(anchor)[:20] in str(caught.value)
    assert len(str(caught.value)) < 400


def test_edits_apply_in_order() -> None:
    edits = [replace("a\n", "b\n"), replace("b\n", "c\nd\n"), replace("d\n", "e\n")]
    assert apply(b"a\n", *edits) == {"a.txt": b"c\ne\n"}


def test_files_are_made_and_deleted() -> None:
    files = build_files(a_txt=b"a\n", b_txt=b"b\n")
    edits = [Edit(path="new/c.txt", text="c\n"), Edit(path="b.txt"), Edit(path="d.txt", anchor="", text="d\n")]
    changes = apply_edits(files, edits, protected=lambda _: False)
    assert changes == {"new/c.txt": b"c\n", "b.txt": None, "d.txt": b"d\n"}


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ([replace("a\n", "a\n")], "changes nothing"),
        ([replace("a\n", "b\n"), replace("b\n", "a\n")], "together change nothing"),
        ([Edit(path="a.txt", text="a\n")], "changes nothing"),
        ([Edit(path="a.txt"), Edit(path="a.txt", text="a\n")], "together change nothing"),
        ([Edit(path="b.txt", text="b\n"), Edit(path="b.txt")], "together change nothing"),
        ([replace("", "x\n")], "no lines to search for"),
        ([replace("x\n", "y\n", path="b.txt")], "no file 'b.txt'"),
        ([Edit(path="b.txt")], "no file 'b.txt' to delete"),
        ([Edit(path="a.txt/b", text="x\n")], "'a.txt' is a folder of another path: 'a.txt/b'"),
        ([Edit(path="A.TXT", text="x\n")], "'A.TXT' differs only in case or in its normal form: 'a.txt'"),
        ([Edit(path="d/x", text="x\n"), Edit(path="d", text="x\n")], "'d' is a folder of another path: 'd/x'"),
        ([Edit(path="d/\u00e4", text="x\n"), Edit(path="D/a\u0308", text="y\n")], "differs only in case"),
        ([replace("a\n", "\ud800\n")], "lone surrogate"),
        ([replace("a\n", "\0\n")], "NUL"),
        ([Edit(path="a.txt", text="x" * 2**20 + "\n")], "1048577 bytes; the limit is 1048576"),
        ([Edit(path=f"f{number}", text="x\n") for number in range(201)], "more than 200 files"),
    ],
)
def test_what_cannot_be_done_is_said(edits: list[Edit], why: str) -> None:
    with pytest.raises(EditError, match=why):
        apply(b"a\n", *edits)


@pytest.mark.parametrize("content", [b"\xff\n", b"a\0b\n", b"x" * (2**20 + 1)])
@pytest.mark.parametrize("edit", [replace("a\n", "b\n"), Edit(path="a.txt", text="x\n"), Edit(path="a.txt")])
def test_what_is_no_text_or_too_large_cannot_be_edited(content: bytes, edit: Edit) -> None:
    with pytest.raises(EditError, match="cannot be edited"):
        apply(content, edit)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../a", "a/../b", ".git/hooks/x", "a/.GIT/x", ".gitattributes", "a\\b", "a\nb", ""]
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(EditError, match="cannot be changed"):
        apply(b"a\n", Edit(path=path, text="x\n"))


def test_protected_files_are_refused_whatever_the_edit() -> None:
    for edit in (replace("a\n", "b\n"), Edit(path="a.txt", text="b\n"), Edit(path="a.txt")):
        with pytest.raises(EditError, match="protected"):
            apply(b"a\n", edit, protected=lambda path: path == "a.txt")


def test_five_problems_are_told_at_once() -> None:
    edits = [replace(f"{number}\n", "x\n") for number in range(9)]
    with pytest.raises(EditError) as caught:
        apply(b"a\n", *edits)
    assert str(caught.value).count("0 matches") == 5


def test_python_must_parse_afterwards_and_other_languages_need_not() -> None:
    with pytest.raises(EditError, match=r"no valid Python after the edits: line 1: .*'\(' was never closed"):
        apply(b"x = 1\n", Edit(path="a.py", text="x = (\n"), path="a.py")
    with pytest.raises(EditError, match="nested"):
        apply(b"x = 1\n", Edit(path="a.py", text="x = " + "-" * 100_000 + "1\n"), path="a.py")
    assert apply(b"x\n", Edit(path="a.js", text="x = (\n"), path="a.js") == {"a.js": b"x = (\n"}


def test_python_that_this_interpreter_cannot_parse_is_left_to_the_checks() -> None:
    newer = b"type X = t'{y}' if 1 else (\n"
    assert apply(newer, Edit(path="a.py", text="type Y = (\n"), path="a.py") == {"a.py": b"type Y = (\n"}


def test_tags_that_prompts_show_as_entities_are_taken_back() -> None:
    content = b"a = '<answer>'\nb = '[INST]'\nc = 1\n"
    shown = replace("a = '&lt;answer>'\nb = '&#91;INST]'\n", "a = '&lt;think>'\n")
    assert apply(content, shown) == {"a.txt": b"a = '<think>'\nc = 1\n"}
    assert apply(content, replace("a = '<answer>'\n", "a = ''\n")) == {"a.txt": b"a = ''\nb = '[INST]'\nc = 1\n"}
    assert apply(b"a = '&lt;answer>'\n", replace("a = '&lt;answer>'\n", "b = '&lt;answer>'\n")) == {
        "a.txt": b"b = '&lt;answer>'\n"
    }


def test_a_hostile_anchor_takes_linear_time() -> None:
    with pytest.raises(EditError, match="more than 20"):
        apply(b"\n" * 1_000_000, replace("\n" * 500_000, "x\n"))

"""Hostile manifests and inline files are refused with one violation for each problem."""

import re
from collections.abc import Mapping

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.snapshots.manifests import (
    MAX_UPLOAD_BYTES,
    MAX_VIOLATIONS,
    SnapshotLimits,
    check_manifest,
    derive_snapshot_id,
    digest_content,
    find_in_files,
)
from reasond_server.types.repairs import FileEntry, SourceFile

LIMITS = SnapshotLimits(max_bytes=10_000_000, max_files=20)
DIGEST = digest_content(b"")
HOSTILE_PATHS: Mapping[str, str] = {
    "": "must not be empty",
    "/etc/passwd": "relative to the root",
    "//server/share": "relative to the root|empty part",
    "C:/Windows/win.ini": "relative to the root",
    "c:x": "relative to the root",
    "..": r"no part \. or \.\.",
    "../x": r"no part \. or \.\.",
    "a/../../x": r"no part \. or \.\.",
    "a/..": r"no part \. or \.\.",
    ".": r"no part \. or \.\.",
    "./a": r"no part \. or \.\.",
    "a/./b": r"no part \. or \.\.",
    "a//b": "no empty part",
    "a/": "no empty part",
    "a\\b": r"and no \\",
    "..\\x": r"and no \\",
    ".git": r"begins with \.git",
    ".git/config": r"begins with \.git",
    ".git/hooks/pre-commit": r"begins with \.git",
    "a/.git/config": r"begins with \.git",
    ".GIT/config": r"begins with \.git",
    ".gIt": r"begins with \.git",
    ".gitignore": r"begins with \.git",
    "a/.gitattributes": r"begins with \.git",
    ".Gitmodules": r"begins with \.git",
    ".github/workflows/x.yml": r"begins with \.git",
    "git~1/config": r"begins with \.git",
    "GIT~2": r"begins with \.git",
    ".g\u200cit/config": r"begins with \.git",
    ".\uff47\uff49\uff54/config": r"begins with \.git",
    "\ufeff.git/config": r"begins with \.git",
    ".git ": r"begins with \.git|ends with a dot or a space",
    ".git.": r"begins with \.git|ends with a dot or a space",
    "a.": "ends with a dot or a space",
    "a /b": "ends with a dot or a space",
    "...": "ends with a dot or a space",
    "a\x00b": "no control characters",
    "a\nb": "no control characters",
    "a\tb": "no control characters",
    "\x1b[31mred": "no control characters",
    "a\x7f": "no control characters",
    "a\x85b": "no control characters",
    "a\u2028b": "no control characters",
    "a\ud800b": "valid Unicode",
    "x" * 256: "parts of at most 255 bytes, got one of 256",
    "ä" * 128: "parts of at most 255 bytes, got one of 256",
    "a/" * 600 + "b": "at most 1024 bytes, got 1201",
    "x" * 2_000_000: "at most 1024 bytes, got 2000000",
    "a/" * 64 + "b": "at most 64 parts, got 65",
}
EXCLUDING_PATHS: Mapping[tuple[str, ...], str] = {
    ("a", "a"): "is given twice, see manifest\\[0\\]",
    ("README", "readme"): "differs only in case or in its normal form",
    ("src/A.py", "SRC/a.py"): "differs only in case",
    ("\u00e9", "e\u0301"): "normal form",
    ("STRASSE", "straße"): "differs only in case",
    ("\u212b", "\u00e5"): "normal form",
    ("a", "a\u200b"): "normal form",
    ("a", "a/b"): "is a folder of another path",
    ("a/b/c", "a/b"): "is a folder of another path",
    ("A", "a/b"): "is a folder of another path",
}
GOOD_PATHS = [
    "a",
    "src/pkg/__init__.py",
    "a b/c d.txt",
    "-rf",
    "~/x",
    "..a/b",
    "a..b",
    ".env.example",
    ".venv/x",
    "git/config",
    "a.git/config",
    "Ünïcode/日本語.py",
    "x" * 255,
    "deep/" * 63 + "b",
    "file~1",
    "%s;rm -rf $(x)",
    "Src/a",
    "src/b",
    "ab:c",
]


def entry(path: str = "a", digest: str = DIGEST, size_bytes: int = 0) -> FileEntry:
    return FileEntry(path=path, digest=digest, size_bytes=size_bytes)


def refusal_of(*entries: FileEntry, limits: SnapshotLimits = LIMITS) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        check_manifest(entries, limits=limits)
    return caught.value


def list_violations(error: InvalidRequestError) -> list[tuple[str, str]]:
    return [(each.field, each.description) for each in error.violations]


def test_there_are_enough_hostile_manifests() -> None:
    assert len(HOSTILE_PATHS) + len(EXCLUDING_PATHS) >= 40


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=ascii)
def test_a_hostile_path_is_refused_by_its_field_for_each_of_its_problems(path: str) -> None:
    problems = HOSTILE_PATHS[path].split("|")
    error = refusal_of(entry("good"), entry(path))
    assert [field for field, _ in list_violations(error)] == ["manifest[1].path"] * len(problems)
    for (_, description), expected in zip(list_violations(error), problems, strict=True):
        assert re.search(expected, description)
    assert len(error.full_message) < 1000
    found = find_in_files([SourceFile(path=path, content=b"")], limits=LIMITS)
    assert [each.field for each in found] == ["files[0].path"] * len(problems)


@pytest.mark.parametrize("paths", EXCLUDING_PATHS, ids=ascii)
def test_paths_that_exclude_each_other_are_refused(paths: tuple[str, ...]) -> None:
    ((field, description),) = list_violations(refusal_of(*map(entry, paths)))
    assert re.search(EXCLUDING_PATHS[paths], description)
    assert field in {"manifest[0].path", "manifest[1].path"}
    assert find_in_files([SourceFile(path=path, content=b"") for path in paths], limits=LIMITS)


def test_paths_as_people_have_them_are_taken() -> None:
    check_manifest([entry(path) for path in GOOD_PATHS], limits=LIMITS)
    assert not find_in_files([SourceFile(path=path, content=b"x") for path in GOOD_PATHS], limits=LIMITS)


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "g" * 64, DIGEST.upper(), f"{DIGEST}\n", "sha256:" + DIGEST]
)
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    ((field, description),) = list_violations(refusal_of(entry(digest=digest)))
    assert field == "manifest[0].digest"
    assert "64 hexadecimal digits in lower case" in description


@pytest.mark.parametrize("size", [-1, MAX_UPLOAD_BYTES + 1, 2**63])
def test_a_size_out_of_its_bounds_is_refused(size: int) -> None:
    violations = list_violations(refusal_of(entry(size_bytes=size)))
    assert violations[0][0] == "manifest[0].size_bytes"
    assert f"must be 0 to {MAX_UPLOAD_BYTES}, got {size}" in violations[0][1]


def test_one_digest_has_one_size() -> None:
    ((field, description),) = list_violations(refusal_of(entry("a", size_bytes=1), entry("b", size_bytes=2)))
    assert (field, "manifest[0]" in description) == ("manifest[1].size_bytes", True)


def test_limits_of_the_whole_name_value_limit_and_remedy() -> None:
    ((field, description),) = list_violations(refusal_of())
    assert (field, description) == ("manifest", "must have at least one file")
    ((field, description),) = list_violations(refusal_of(*(entry(str(index)) for index in range(21))))
    assert field == "manifest"
    assert "at most 20 files, got 21" in description
    assert "max_snapshot_files" in description
    sizes = [MAX_UPLOAD_BYTES, MAX_UPLOAD_BYTES, MAX_UPLOAD_BYTES, 562_817]
    entries = [entry(str(index), digest_content(str(index).encode()), size) for index, size in enumerate(sizes)]
    ((field, description),) = list_violations(refusal_of(*entries))
    assert field == "manifest"
    assert "at most 10000000 bytes in all, got 10000001" in description
    assert "max_snapshot_bytes" in description


def test_inline_files_have_three_mebibytes_together() -> None:
    half = bytes(MAX_UPLOAD_BYTES // 2)
    files = [SourceFile(path="a", content=half), SourceFile(path="b", content=half)]
    assert not find_in_files(files, limits=LIMITS)
    for refused in ([], [*files, SourceFile(path="c", content=b"x")]):
        (violation,) = find_in_files(refused, limits=LIMITS, field="task.files")
        assert violation.field == "task.files"
    assert "upload a snapshot" in violation.description


def test_all_problems_are_listed_up_to_a_bound_that_is_told() -> None:
    limits = SnapshotLimits(max_files=150)
    error = refusal_of(*(entry("../x", digest="bad") for _ in range(200)), limits=limits)
    assert len(error.violations) == MAX_VIOLATIONS + 1
    assert error.violations[0].description.startswith("must have at most 150 files, got 200, of which the first 150")
    last = error.violations[-1]
    # Of each file the path and the digest, of all but one that the path is given twice, and their number.
    assert (last.field, last.description) == (
        "manifest",
        f"has {150 * 2 + 149 + 1 - 100} more problems; the first 100 are listed",
    )


def test_the_id_follows_from_the_files_in_any_order() -> None:
    first, second = entry("a"), entry("b", size_bytes=1)
    assert derive_snapshot_id([first, second]) == derive_snapshot_id([second, first])
    assert derive_snapshot_id([first]) != derive_snapshot_id([second])
    # Written down, because a stored snapshot is found by it in later releases.
    assert derive_snapshot_id([first]) == "d6f1486b84d53477b9eee45ea889e3b595d4d0b505dd10eaf037561fa47d6a38"

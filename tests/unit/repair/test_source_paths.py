from __future__ import annotations

import pytest

from reasond_server.repair.source_paths import find_path_problem, fold_path


@pytest.mark.parametrize(
    "path", ["a", "a/b.py", "src/ä/日本.py", "a b/c d", ".env", "a/...", "github/x", "x.git", "a-b_c.d"]
)
def test_plain_paths_can_be_used(path: str) -> None:
    assert not find_path_problem(path)


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", "C:/a", "c:", "a\\b", "a\0b", "a\nb", "a\tb",
        "a\u2028b", "a\ud800", ".git", ".git/config", "a/.git/hooks/pre-commit", ".GIT/x", ".Git", ".gitattributes",
        ".gitmodules", ".github/workflows/x.yml", ".g\u200cit/x", ".git./x", ".git /x", "GIT~1/x", "\uff0egit/x", " a",
        "a ", "a" * 256, "a/" * 600 + "a",
    ],
)  # fmt: skip
def test_other_paths_are_refused(path: str) -> None:
    assert find_path_problem(path)


def test_paths_that_a_file_system_may_take_for_one_fold_alike() -> None:
    assert fold_path("Src/Ä.py") == fold_path("src/a\u0308.py") == fold_path("src/ä.py.")

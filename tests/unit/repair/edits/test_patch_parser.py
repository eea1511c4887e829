from __future__ import annotations

import pytest

from reasond_server.repair.edits.patch_parser import check_patch

HEADER = "diff --git a/a.txt b/a.txt\n"
NAMES = "--- a/a.txt\n+++ b/a.txt\n"
CHANGE = f"{HEADER}index 7898192..6178079 100644\n{NAMES}@@ -1 +1 @@\n-a\n+b\n"
NEW = "new file mode 100644\nindex 0000000..7898192\n--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+a\n"
EMPTY = "new file mode 100755\nindex 0000000..e69de29\n"
BINARY = "GIT binary patch\nliteral 2\nJcmZQz000310RR91\n\nliteral 0\nHcmV?d00001\n"


@pytest.mark.parametrize(
    "patch",
    [
        CHANGE,
        CHANGE.replace("index 7898192..6178079 100644\n", ""),
        CHANGE.replace("@@\n", "@@ def f():\n"),
        HEADER + NEW,
        HEADER + EMPTY,
        HEADER + EMPTY.replace("new", "deleted").replace("0000000..e69de29", "e69de29..0000000"),
        CHANGE.replace("-a\n+b\n", "-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"),
        CHANGE.replace("@@ -1 +1 @@\n-a\n+b\n", "@@ -1,3 +1,2 @@\n--- x\n diff --git\n-\n+++ y\n"),
        CHANGE + CHANGE.replace("a.txt", "b.txt"),
        CHANGE.replace("a.txt", "a b.txt").replace("+++ b/a b.txt", "+++ b/a b.txt\t"),
        CHANGE.replace("a/a.txt", '"a/\\303\\244\\"x.txt"').replace("b/a.txt", '"b/\\303\\244\\"x.txt"'),
        CHANGE.replace("a.txt", "ä.txt"),
    ],
)  # fmt: skip
def test_patches_of_texts_are_let_through(patch: str) -> None:
    assert check_patch(patch) == ""


@pytest.mark.parametrize(
    "patch",
    [
        "",
        "\n",
        "words\n",
        f"words\n{CHANGE}",
        f"{CHANGE}words\n",
        f"{CHANGE}\n",
        CHANGE.removesuffix("\n"),
        CHANGE.replace("-a", "-a\0"),
        CHANGE.replace("-a", "-\ud800"),
        CHANGE + CHANGE,
        NAMES + "@@ -1 +1 @@\n-a\n+b\n",
        # Paths.
        CHANGE.replace("a.txt", "../a.txt"),
        CHANGE.replace("a.txt", "d/../../a.txt"),
        CHANGE.replace("a/a.txt", "a//etc/passwd").replace("b/a.txt", "b//etc/passwd"),
        CHANGE.replace("a/a.txt", "/etc/passwd").replace("b/a.txt", "/etc/passwd"),
        CHANGE.replace("a.txt", ".git/hooks/pre-commit"),
        CHANGE.replace("a.txt", ".GIT/config"),
        CHANGE.replace("a.txt", ".gitattributes"),
        CHANGE.replace("a.txt", ".gitmodules"),
        CHANGE.replace("a.txt", "sub/.gitmodules"),
        CHANGE.replace("a/a.txt", '"a/\\056git/config"').replace("b/a.txt", '"b/\\056git/config"'),
        CHANGE.replace("a/a.txt", '"a/\\056\\056/x"').replace("b/a.txt", '"b/\\056\\056/x"'),
        CHANGE.replace("a/a.txt", '"a/\\377"').replace("b/a.txt", '"b/\\377"'),
        CHANGE.replace("a/a.txt", '"a/"x"').replace("b/a.txt", '"b/"x"'),
        CHANGE.replace("a/a.txt", '"').replace("b/a.txt", '"'),
        CHANGE.replace("--- a/a.txt", "--- a/b.txt"),
        CHANGE.replace("+++ b/a.txt", "+++ b/b.txt"),
        CHANGE.replace("+++ b/a.txt", "+++ b/a.txt\t2026-01-01"),
        CHANGE.replace("+++ b/a.txt", "+++ /dev/null"),
        CHANGE.replace("--- a/a.txt", "--- /dev/null"),
        CHANGE.replace(HEADER, "diff --git a/a.txt b/b.txt\n"),
        # Modes and kinds.
        (HEADER + NEW).replace("100644", "120000"),
        (HEADER + NEW).replace("100644", "160000"),
        (HEADER + NEW).replace("100644", "100600"),
        (HEADER + NEW).replace("100644", "040000"),
        (HEADER + NEW).replace("..7898192", "..7898192 120000"),
        CHANGE.replace("6178079 100644", "6178079 120000"),
        f"{HEADER}old mode 100644\nnew mode 120000\n",
        f"{HEADER}old mode 100644\nnew mode 100755\n",
        f"{HEADER}index 7898192..6178079 100644\n{BINARY}",
        f"{HEADER}index 7898192..6178079\nBinary files a/a.txt and b/a.txt differ\n",
        f"{HEADER}similarity index 100%\nrename from a.txt\nrename to b.txt\n",
        f"{HEADER}similarity index 100%\ncopy from a.txt\ncopy to b.txt\n",
        f"{HEADER}dissimilarity index 100%\n{NAMES}@@ -1 +1 @@\n-a\n+b\n",
        f"{HEADER}deleted file mode 100644\n{NEW}",
        f"{HEADER}{NEW.partition(chr(10))[0]}\n{EMPTY}",
        f"{HEADER}index 7898192..6178079 100644\n",
        HEADER,
        # Hunks.
        f"{HEADER}{NAMES}",
        CHANGE.replace("@@ -1 +1 @@", "@@ -1,2 +1 @@"),
        CHANGE.replace("@@ -1 +1 @@", "@@ -1 +1,2 @@"),
        CHANGE.replace("@@ -1 +1 @@", "@@ -1,9999999999 +1 @@"),
        CHANGE.replace("@@ -1 +1 @@", "@@ -1,0 +1 @@"),
        CHANGE.replace("@@ -1 +1 @@", "@@@ -1 -1 +1 @@@"),
        CHANGE.replace("-a\n", "a\n"),
        CHANGE.replace("-a\n", ""),
        f"{CHANGE}+c\n",
        f"{CHANGE}-- \n2.39.5\n",
        # Sizes.
        CHANGE.replace("+b", "+" + "b" * 2**20),
        "".join(CHANGE.replace("a.txt", f"{number}.txt") for number in range(201)),
    ],
)  # fmt: skip
def test_everything_else_is_refused(patch: str) -> None:
    assert check_patch(patch)

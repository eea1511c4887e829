from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.cli.patch_files import apply_patch

CHANGE = "diff --git a/one.py b/one.py\n--- a/one.py\n+++ b/one.py\n@@ -1,2 +1,2 @@\n-a = 1\n+a = 2\n b = 3\n"
NEW = (
    "diff --git a/pkg/new.py b/pkg/new.py\nnew file mode 100755\n--- /dev/null\n+++ b/pkg/new.py\n"
    "@@ -0,0 +1 @@\n+c = 1\n"
)
GONE = "diff --git a/old.py b/old.py\ndeleted file mode 100644\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-d = 1\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    for name, text in {"one.py": "a = 1\nb = 3\n", "old.py": "d = 1\n"}.items():
        (tmp_path / "project" / name).write_text(text)
    return tmp_path / "project"


def _read(root: Path) -> dict[str, str]:
    return {str(each.relative_to(root)): each.read_text() for each in root.rglob("*") if each.is_file()}


def test_changed_new_and_deleted_files_are_written(root: Path) -> None:
    (root / "one.py").chmod(0o640)
    assert apply_patch(CHANGE + NEW + GONE, root) == ["one.py", "pkg/new.py", "old.py"]
    assert _read(root) == {"one.py": "a = 2\nb = 3\n", "pkg/new.py": "c = 1\n"}
    assert (root / "one.py").stat().st_mode & 0o777 == 0o640
    assert (root / "pkg" / "new.py").stat().st_mode & 0o100


def test_a_patch_of_which_one_part_does_not_apply_changes_nothing(root: Path) -> None:
    (root / "old.py").write_text("changed meanwhile\n")
    before = _read(root)
    with pytest.raises(CommandError, match="does not apply") as caught:
        apply_patch(CHANGE + GONE, root)
    assert caught.value.code is ExitCode.NOT_APPLIED
    assert _read(root) == before


def test_a_file_that_cannot_be_written_gives_the_others_their_contents_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _read(root)
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name == "new.py":
            raise OSError(28, "No space left on device", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(CommandError, match="No space left"):
        apply_patch(CHANGE + NEW, root)
    assert _read(root) == before


def test_a_configuration_of_the_user_has_no_say(root: Path) -> None:
    mark = root.parent / "executed"
    (root / ".gitattributes").write_text("*.py filter=trap\n")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    for folder in ("objects", "refs"):
        (root / ".git" / folder).mkdir()
    (root / ".git" / "config").write_text(
        f'[filter "trap"]\n\tclean = touch {mark}; cat\n\tsmudge = touch {mark}; cat\n'
    )
    apply_patch(CHANGE, root)
    assert (root / "one.py").read_text() == "a = 2\nb = 3\n"
    assert not mark.exists()


@pytest.mark.parametrize("name", ["one.py", "pkg"])
def test_nothing_is_written_through_a_symbolic_link(root: Path, name: str) -> None:
    outside = root.parent / "outside"
    if name == "pkg":
        outside.mkdir()
    else:
        shutil.move(root / name, outside)
    (root / name).symlink_to(outside)
    with pytest.raises(CommandError, match="symbolic link"):
        apply_patch(CHANGE if name == "one.py" else NEW, root)
    assert name == "one.py" or not any(outside.iterdir())


@pytest.mark.parametrize(
    "patch",
    [
        CHANGE.replace("one.py", "../one.py"),
        CHANGE.replace("one.py", ".git/config"),
        NEW.replace("100755", "120000"),
        CHANGE.replace("--- a", "old mode 100644\nnew mode 100755\n--- a"),
        "no patch at all\n",
    ],
)
def test_a_hostile_patch_is_refused_before_git_sees_it(root: Path, patch: str) -> None:
    before = _read(root)
    with pytest.raises(CommandError, match="was not applied"):
        apply_patch(patch, root)
    assert _read(root) == before


def test_without_git_nothing_is_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CommandError, match="git is not installed"):
        apply_patch(CHANGE, root)


KILLED = """
import os, signal, sys
from pathlib import Path
from reasond_server.cli import patch_files

# The moment in which the copies lie there and nothing is written yet.
patch_files._compare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
patch_files.apply_patch(sys.argv[1], Path(sys.argv[2]))
"""


def test_what_a_killed_command_left_is_removed_by_the_next(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed = subprocess.run([sys.executable, "-c", KILLED, CHANGE, root], check=False)
    assert killed.returncode == -9
    assert [each.name for each in temporary.rglob("one.py")] == ["one.py"]
    apply_patch(CHANGE, root)
    assert not [each for each in temporary.rglob("*") if each.is_file()]
    assert len(list(temporary.iterdir())) == 1


def test_a_folder_of_somebody_else_is_not_used(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _read(root)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    apply_patch(NEW, root)
    (home,) = tmp_path.glob("reasond-patches-*")
    home.chmod(0o777)
    with pytest.raises(CommandError, match="others may write it; remove it"):
        apply_patch(CHANGE, root)
    assert _read(root) == before | {"pkg/new.py": "c = 1\n"}

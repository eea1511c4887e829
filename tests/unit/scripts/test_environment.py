"""The program that makes .venv runs as a copy in its own folder, with a pip that can reach no index."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environment

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
STAMP = "import sys; sys.path.insert(0, 'scripts'); import environment as e; e.stamps(dev=False)[0].write_text(e.key())"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("scripts/environment.py", "constraints.txt", "pyproject.toml", "clients/python/pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(environment.ROOT / name, tmp_path / name)
    return tmp_path


def run(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/environment.py"],
        cwd=tree,
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def make_stamped(tree: Path) -> None:
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    subprocess.run([sys.executable, "-c", STAMP], cwd=tree, timeout=180, check=True)


def test_an_environment_with_the_stamp_of_its_inputs_is_left_as_it_is(tree: Path) -> None:
    make_stamped(tree)
    done = run(tree)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_input_changes_the_stamp(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PROJECTS", (tree / "clients" / "python", tree))
    monkeypatch.setattr(environment, "CONSTRAINTS", tree / "constraints.txt")
    keys = [environment.key()]
    for change in ("constraints.txt", "pyproject.toml", "clients/python/pyproject.toml"):
        with (tree / change).open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        keys.append(environment.key())
    assert len({*keys}) == len(keys)


@pytest.mark.slow
def test_an_environment_with_another_stamp_is_installed_again(tree: Path) -> None:
    make_stamped(tree)
    moved = tree.rename(tree.with_name("elsewhere"))
    assert "installing the server" in run(moved).stdout


@pytest.mark.slow
def test_an_environment_whose_interpreter_is_gone_is_made_anew_and_without_an_index_the_end_tells_what_to_do(
    tree: Path,
) -> None:
    make_stamped(tree)
    python = tree / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(tree / "gone")
    done = run(tree)
    assert "making .venv" in done.stdout
    assert done.returncode != 0
    assert "PIP_FIND_LINKS" in done.stderr
    assert not list((tree / ".venv").glob("stamp-*"))


def test_what_builds_the_projects_is_pinned_like_everything_else() -> None:
    pinned = {line.partition("==")[0] for line in environment.CONSTRAINTS.read_text(encoding="utf-8").splitlines()}
    assert {*environment.BUILDERS, "trove-classifiers"} <= pinned

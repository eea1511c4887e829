"""Workspaces: cheap, separate from each other, and gone at the end."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.sandbox.scratch import LinkedWorkspaces, Scratch
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = [
    SourceFile(path="a/b/kept.py", content=b"kept"),
    SourceFile(path="a/changed.py", content=b"before"),
    SourceFile(path="a/gone.py", content=b"gone"),
    SourceFile(path="run.sh", content=b"#!/bin/sh", is_executable=True),
]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    one = Scratch(tmp_path, users=None)
    yield one
    one.close()


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_writable", [False, True])
async def test_a_workspace_holds_the_tree_with_its_changes(scratch: Scratch, *, is_writable: bool) -> None:
    tree = await LinkedWorkspaces(scratch).write_tree(FILES)
    changes = {"a/changed.py": b"after", "a/gone.py": None, "new/one.py": b"new"}
    async with tree.open_workspace(changes, is_writable=is_writable) as folder:
        expected = {"a/b/kept.py": b"kept", "a/changed.py": b"after", "new/one.py": b"new", "run.sh": b"#!/bin/sh"}
        assert read(folder) == expected
        assert (folder / "run.sh").stat().st_mode & 0o111
        assert bool((folder / "a/b/kept.py").stat().st_mode & 0o200) is is_writable
        assert (folder / "a/b/kept.py").stat().st_nlink == (1 if is_writable else 2)
        async with tree.open_workspace({}, is_writable=is_writable) as other:
            assert read(other) == {file.path: file.content for file in FILES}
    assert not list((scratch.path / "workspaces").iterdir())
    await tree.remove()
    assert not list((scratch.path / "trees").iterdir())


async def test_a_workspace_of_a_cancelled_caller_is_removed_when_it_was_written(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the caller is cancelled again meanwhile, as by the end of the server."""
    tree = await LinkedWorkspaces(scratch).write_tree(FILES)
    link, may_write = os.link, threading.Event()

    def wait_and_link(*arguments: Any, **options: Any) -> None:
        may_write.wait(timeout=10)
        link(*arguments, **options)

    async def open_one() -> None:
        async with tree.open_workspace({}):
            await asyncio.Event().wait()

    monkeypatch.setattr(os, "link", wait_and_link)
    running = asyncio.create_task(open_one())
    for _ in range(3):
        await asyncio.sleep(0.01)
        running.cancel()
    await asyncio.sleep(0.01)
    assert list((scratch.path / "workspaces").iterdir())
    may_write.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not list((scratch.path / "workspaces").iterdir())


async def test_the_size_of_a_workspace_is_noted_for_the_limit_of_the_disk(scratch: Scratch) -> None:
    tree = await LinkedWorkspaces(scratch).write_tree([SourceFile(path="a/b", content=bytes(5000))])
    async with tree.open_workspace({"c": b"x", "d": None}) as folder:
        # Two blocks of `a/b`, one of `c`, and one each of the two folders.
        assert (folder.parent / "size").read_text(encoding="ascii") == str(5 * 4096)

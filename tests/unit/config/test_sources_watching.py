from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from reasond_server.config.sources import FileWatch

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.config import Settings


class Taken:
    """Records the settings that a watch hands over."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.settings: list[Settings] = []
        self.write(text)
        self.is_handed_over = asyncio.Event()
        self.watch = FileWatch(file=file, environ={}, apply=self.take)

    def take(self, settings: Settings) -> None:
        self.settings.append(settings)
        self.is_handed_over.set()

    def write(self, text: str) -> None:
        """Replace the file, as deployments do, so that a reader never sees half of it."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.file)


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    return Taken(tmp_path / "config.toml", '[auth]\nrevoked_ids = ["1"]\n')


def test_a_file_that_stays_as_it_is_is_not_read_again(taken: Taken) -> None:
    assert not taken.watch.check()
    assert taken.settings == []


def test_a_changed_file_is_handed_over_once(taken: Taken) -> None:
    taken.write('[auth]\nrevoked_ids = ["1", "2"]\n')
    assert taken.watch.check()
    assert not taken.watch.check()
    assert [found.auth.revoked_ids for found in taken.settings] == [("1", "2")]


def test_a_wrong_file_changes_nothing_and_is_logged_without_its_text(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    taken.write('[auth]\nrevoked_id = ["canary"]\n')
    assert not taken.watch.check()
    assert taken.settings == []
    assert "auth.revoked_id" in caplog.text
    assert "canary" not in caplog.text


def test_a_file_that_is_gone_changes_nothing_and_is_read_when_it_is_back(taken: Taken) -> None:
    taken.file.unlink()
    assert not taken.watch.check()
    taken.write('[auth]\ninactive_subjects = ["mallory"]\n')
    assert taken.watch.check()
    assert taken.settings[0].auth.inactive_subjects == ("mallory",)


async def test_it_looks_by_itself(taken: Taken) -> None:
    looking = asyncio.create_task(taken.watch.run(every_s=0.01))
    taken.write("[auth]\n")
    os.utime(taken.file, ns=(1, 1))
    async with asyncio.timeout(120):
        await taken.is_handed_over.wait()
    looking.cancel()
    assert len(taken.settings) == 1

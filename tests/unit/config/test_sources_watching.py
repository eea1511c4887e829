from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from reasond_server.config.sources import FileWatch, load

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.config import LoadedSettings, Settings


class Taken:
    """Records the settings that a watch hands over."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.settings: list[Settings] = []
        self.write(text)
        self.is_handed_over = asyncio.Event()
        self.watch = FileWatch(load(file, {}), environ={}, apply=self.take)

    def take(self, loaded: LoadedSettings) -> None:
        self.settings.append(loaded.settings)
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


def test_the_file_of_the_keys_is_watched_like_the_configuration(tmp_path: Path) -> None:
    taken = Taken(tmp_path / "config.toml", '[auth]\napi_keys_file = "keys.json"\n')
    keys = tmp_path / "keys.json"
    for change in (lambda: keys.write_text("1", encoding="utf-8"), lambda: keys.chmod(0o400), keys.unlink):
        change()
        assert taken.watch.check()
        assert not taken.watch.check()


def test_keys_are_watched_where_there_is_no_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[LoadedSettings] = []
    watch = FileWatch(load(None, {"REASOND__AUTH__API_KEYS_FILE": "keys.json"}), environ={}, apply=told.append)
    (tmp_path / "keys.json").write_text("1", encoding="utf-8")
    (tmp_path / "config.toml").write_text("no configuration of this server", encoding="utf-8")
    assert watch.check()
    assert [one.file for one in told] == [None]


async def test_it_looks_by_itself(taken: Taken) -> None:
    looking = asyncio.create_task(taken.watch.run(every_s=0.01))
    taken.write("[auth]\n")
    os.utime(taken.file, ns=(1, 1))
    async with asyncio.timeout(120):
        await taken.is_handed_over.wait()
    looking.cancel()
    assert len(taken.settings) == 1

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from reasond_server.config.api_key_file import MOST_KEYS, ApiKeyRow, changing, read_api_keys
from reasond_server.errors.base import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def row(number: int = 0, **changes: object) -> ApiKeyRow:
    values = {"id": f"key{number:09d}", "sha256": f"{number:064x}", "subject": "chat", "created": NOW}
    return ApiKeyRow(**{**values, **changes})  # type: ignore[arg-type]  # the fields have several types


def add(path: Path, *rows: ApiKeyRow) -> None:
    with changing(path) as kept:
        kept.extend(rows)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    rows = (row(1, permissions=("admin",), roles=("solver",), tenant="acmé"), row(2, expires=NOW, revoked=NOW))
    add(path, *rows)
    assert read_api_keys(path) == rows
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["keys.json"]


def test_two_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add(path, row(number)), range(40)))
    assert {one.id for one in read_api_keys(path)} == {row(number).id for number in range(40)}


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "keys.json"
    add(real, row(1))
    real.chmod(0o640)
    link.symlink_to(real)
    add(link, row(2))
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert len(read_api_keys(link)) == 2


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path, row(1))
    with suppress(ZeroDivisionError), changing(path) as rows:
        rows.clear()
        raise ZeroDivisionError
    assert read_api_keys(path) == (row(1),)


def encode(content: object) -> bytes:
    return json.dumps(content).encode()


GOOD = json.loads(row(1).model_dump_json())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no list of API keys"),
        (encode({"version": 1, "keys": [GOOD]})[:-1], "no list of API keys"),
        (b"\xff\xfe", "no list of API keys"),
        (encode([]), "no list of API keys"),
        (encode({}), "keys"),
        (encode({"version": 2, "keys": []}), "version"),
        (encode({"version": 1, "keys": [{**GOOD, "sha256": "canary"}]}), r"keys\.0\.sha256"),
        (encode({"version": 1, "keys": [{**GOOD, "canary": 1}]}), "no list of API keys"),
        (encode({"version": 1, "keys": [{**GOOD, "expires": "2026-11-23T00:00:00"}]}), r"keys\.0\.expires"),
        (encode({"version": 1, "keys": [GOOD, GOOD]}), "two keys have one id"),
        (b"[" * 100_000, "no list of API keys"),
        (b" " * (4 * 1024 * 1024 + 1), "more than 4194304 bytes"),
    ],
)
def test_a_damaged_file_is_refused_whole_without_its_text(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as caught:
        read_api_keys(path)
    assert caught.value.message.startswith("auth.api_keys_file names a file ")
    assert caught.value.violations[0].field == "auth.api_keys_file"
    if b'"canary"}' in content:
        assert "canary" not in caught.value.message


def test_a_pipe_is_no_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    os.mkfifo(path)
    with pytest.raises(SettingsError, match="no regular file"):
        read_api_keys(path)


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_api_keys(tmp_path / "keys.json")
    assert "reasond keys create" in caught.value.remedy
    with pytest.raises(SettingsError, match="cannot be opened"):
        add(tmp_path / "missing" / "keys.json", row(1))


def test_more_keys_than_a_server_takes_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(SettingsError, match=f"would hold {MOST_KEYS + 1} keys"):
        add(path, *(row(number) for number in range(MOST_KEYS + 1)))
    assert not path.exists()

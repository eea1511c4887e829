from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.access.api_keys import find_key_id, hash_key
from reasond_server.cli.commands.keys import create, revoke, show
from reasond_server.cli.outcome import CommandError
from reasond_server.config import load
from reasond_server.config.api_key_file import read_api_keys
from reasond_server.errors.base import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

WANTED: dict[str, Any] = {"subject": "chat", "permission": ["reasoning:execute"]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(
        '[auth]\napi_keys_file = "keys.json"\n[auth.roles.solver]\npermissions = ["reasoning:execute"]\n',
        encoding="utf-8",
    )
    return file


def make(config: Path, capsys: pytest.CaptureFixture[str], wanted: dict[str, Any] = WANTED) -> str:
    assert create(**wanted, config=config, environ={}) == 0
    return capsys.readouterr().out.removesuffix("\n")


def test_stdout_gets_the_key_alone_and_the_file_only_its_hash(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = make(config, capsys)
    content = (config.parent / "keys.json").read_text(encoding="utf-8")
    assert key not in content
    assert key.partition(f"{find_key_id(key)}-")[2] not in content
    (row,) = read_api_keys(config.parent / "keys.json")
    assert (row.id, row.sha256, row.expires) == (find_key_id(key), hash_key(key), None)


def test_a_list_tells_whom_keys_stand_for_and_never_a_hash(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make(config, capsys)
    second = make(config, capsys, {"subject": "ci", "role": ["solver"], "tenant": "acme", "lifetime": "90d"})
    assert revoke(find_key_id(first), config=config, environ={}) == 0
    capsys.readouterr()
    assert show(config=config, environ={}, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{find_key_id(first)}  revoked at \S+ \S+ UTC  chat: reasoning:execute", lines[0])
    assert re.fullmatch(rf"{find_key_id(second)}  valid until \S+ \S+ UTC  ci of acme: role solver", lines[1])
    show(config=config, environ={}, as_json=True)
    out = capsys.readouterr().out
    assert [one["state"] for one in json.loads(out)] == ["revoked", "valid"]
    assert hash_key(first) not in out
    assert hash_key(second) not in out


def test_a_key_that_was_found_somewhere_is_revoked_by_its_text(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = make(config, capsys)
    assert revoke(key, config=config, environ={}) == 0
    assert key not in capsys.readouterr().out
    (row,) = read_api_keys(config.parent / "keys.json")
    assert row.revoked is not None
    revoke(key, config=config, environ={})
    assert read_api_keys(config.parent / "keys.json") == (row,)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"subject": "chat"}, "would permit nothing"),
        ({"subject": "", "permission": ["admin"]}, "1-256 characters"),
        ({"subject": "a\nb", "permission": ["admin"]}, "subject"),
        ({"subject": "chat", "permission": ["admin"], "tenant": "sub:other"}, "tenant"),
        ({"subject": "chat", "permission": ["a b"]}, "no spaces"),
        ({"subject": "chat", "permission": ["admin"], "lifetime": "soon"}, "is no time"),
        ({"subject": "chat", "permission": ["admin"], "lifetime": "0s"}, "is not between"),
        ({"subject": "chat", "permission": ["admin"], "lifetime": "99999d"}, "is not between"),
    ],
)
def test_a_key_that_no_server_would_accept_is_not_made(
    config: Path, wanted: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match=words) as caught:
        create(**wanted, config=config, environ={})
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""
    assert not (config.parent / "keys.json").exists()


def test_words_that_open_nothing_are_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(subject="a", permission=["reasoning:exceute"], role=["slover"], config=config, environ={})
    told = capsys.readouterr().err
    assert "'reasoning:exceute'" in told
    assert "there is no role 'slover'; [auth.roles] has solver" in told


def test_an_unknown_key_and_a_configuration_without_keys_are_told(config: Path) -> None:
    with pytest.raises(CommandError, match="There is no key 'nobody'") as caught:
        revoke("nobody", config=config, environ={})
    assert caught.value.code == 4
    config.write_text("", encoding="utf-8")
    with pytest.raises(CommandError, match="names no file") as caught:
        show(config=config, environ={}, as_json=False)
    assert 'api_keys_file = "keys.json"' in caught.value.remedy


def test_a_damaged_file_is_not_written_over(config: Path) -> None:
    path = config.parent / "keys.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(SettingsError, match="no list of API keys"):
        create(**WANTED, config=config, environ={})
    assert path.read_text(encoding="utf-8") == "{"


def test_a_file_that_others_may_change_is_warned_of(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(config, capsys)
    path = config.parent / "keys.json"
    path.chmod(0o666)
    show(config=config, environ={}, as_json=False)
    assert "The file of auth.api_keys_file has mode 0666" in capsys.readouterr().err
    assert len(load(config, {}).find_exposed_files()) == 1

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.app import Listening
from reasond_server.cli.commands.serve import _remove_before_and_after as removing
from reasond_server.cli.commands.serve import format_banner, write_ready_file
from reasond_server.cli.outcome import CommandError

if TYPE_CHECKING:
    from pathlib import Path

LISTENING = Listening(
    grpc="127.0.0.1:1",
    http="http://127.0.0.1:2",
    token="a.b.c",
    model="demo",
    store="SQLite, /var/reasond.db",
    warnings=("fixed rules",),
    console="http://127.0.0.1:2/console",
    console_key="sk-reasond-k",
)


def test_the_ready_file_is_json_for_its_owner_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("old", "utf-8")
    path.chmod(0o644)
    write_ready_file(path, LISTENING)
    assert json.loads(path.read_text("utf-8")) == {
        "grpc": "127.0.0.1:1",
        "http": "127.0.0.1:2",
        "token": "a.b.c",
        "metrics": "",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_ready_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"missing/ready.json' cannot be written: No such file"):
        write_ready_file(tmp_path / "missing" / "ready.json", LISTENING)


def test_the_banner_says_where_what_how_and_what_to_type() -> None:
    text = "\n".join(format_banner(LISTENING, is_dev=True, is_encrypted=False))
    for words in (
        "127.0.0.1:1",
        "http://127.0.0.1:2",
        "open   http://127.0.0.1:2/#token=sk-reasond-k",
        "demo",
        "fixed rules",
        "SQLite, /var/reasond.db",
        "loopback only",
        "REASOND_TOKEN=a.b.c",
        "grpcurl -plaintext",
        "python",
        "curl -s http://127.0.0.1:2/api/v1/jsonrpc",
        "Ctrl-C",
    ):
        assert words in text


def test_without_dev_the_banner_asks_for_a_token_and_http_may_be_off() -> None:
    listening = Listening(grpc="unix:/run/x", http="", token="", model="m", store="in memory", warnings=())
    text = "\n".join(format_banner(listening, is_dev=False, is_encrypted=True))
    assert "REASOND_TOKEN='<token>' REASOND_TLS=1" in text
    assert "HTTP   off" in text
    assert "curl -s" not in text
    assert "/console" not in text
    assert "loopback" not in text


def test_a_device_is_never_replaced_by_a_ready_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CommandError, match="pipe' cannot be replaced: it is no regular file"), removing(pipe):
        pytest.fail("the server would have started")
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_ready_file_without_a_folder_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "ready.json"
    with pytest.raises(CommandError, match="its folder is missing or may not be written to"), removing(path):
        pytest.fail("the server would have started")


def test_a_ready_file_lasts_no_longer_than_its_server(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by a server that was killed", "utf-8")
    with removing(path):
        assert not path.exists()
        path.write_text("{}", "utf-8")
    assert not path.exists()

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.config import list_rows, load
from reasond_server.errors.base import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.config import LoadedSettings


def load_settings(text: str, tmp_path: Path) -> LoadedSettings:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, {})


def test_a_server_is_a_program_or_an_address(tmp_path: Path) -> None:
    text = (
        '[tools.mcp.files]\ncommand = "x"\nargs = ["-v"]\nenv = { KEY = "hunter2" }\n'
        '[tools.mcp.far]\nurl = "https://h/mcp"\nheaders = { Authorization = "hunter2" }\n'
    )
    found = load_settings(text, tmp_path)
    assert found.settings.tools.mcp["files"].args == ("-v",)
    assert found.settings.tools.mcp["far"].timeout_s == 30
    rows = str(list_rows(found.settings, found.origins))
    assert "tools.mcp.files.env.KEY" in rows
    assert "hunter2" not in rows + repr(found.settings)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tools.mcp.a]", "tools.mcp.a.command: must be set, or tools.mcp.a.url; neither is"),
        (
            '[tools.mcp.a]\ncommand = "x"\nurl = "http://h"',
            "tools.mcp.a.command: must be set, or tools.mcp.a.url; both are",
        ),
        ('[tools.mcp.a]\nurl = "http://h"\nargs = ["x"]', "tools.mcp.a.args: is set, but has no effect with url"),
        ('[tools.mcp.a]\ncommand = "x"\nheaders = { A = "b" }', "tools.mcp.a.headers: is set, but has no effect"),
        ('[tools.mcp.A_b]\ncommand = "x"', "tools.mcp.A_b"),
        ('[tools.mcp.a]\nurl = "ftp://h"', "must start with"),
        ('[tools.http_get]\nallow_private_hosts = ["a.test"]', "'a.test', which is not in tools.http_get.allow_hosts"),
        ('[tools.http_get]\nallow_hosts = ["https://a.test"]', "must be a host name"),
        ('[tools.http_get]\nallow_hosts = ["a.test:80"]', "must be a host name"),
        ('[tools.http_get]\nallow_hosts = ["*"]', "must be a host name"),
        ('[tools.http_get]\nallow_hosts = ["a.*.test"]', "must be a host name"),
        ('[tools]\nenabled = ["no spaces"]', "tools.enabled"),
        ("[tools]\ntimeout_s = 0", "at least 0.1"),
    ],
)
def test_what_cannot_work_is_refused(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(text, tmp_path)
    assert told in caught.value.full_message


def test_hosts_are_taken_in_one_form(tmp_path: Path) -> None:
    text = '[tools.http_get]\nallow_hosts = ["API.Example.com.", "*.docs.example.com", "[2001:4860::8888]", "8.8.8.8"]'
    hosts = load_settings(text, tmp_path).settings.tools.http_get.allow_hosts
    assert hosts == ("api.example.com", "*.docs.example.com", "2001:4860::8888", "8.8.8.8")

"""`reasond install` prints what a client needs, in the client's own form, and never a key."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands.install import install
from reasond_server.cli.outcome import CommandError, ExitCode

if TYPE_CHECKING:
    from pathlib import Path

URL = "http://127.0.0.1:8001"
TOKEN = {"REASOND_TOKEN": "sk-secret"}


def read_printed(capsys: pytest.CaptureFixture[str], client: str, *, url: str = URL, model: str = "reasond") -> str:
    assert install(client, url=url, model=model, home=None, environ=TOKEN) is ExitCode.OK
    out = capsys.readouterr().out
    assert "sk-secret" not in out
    return out


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}/v1", f"{URL}/v1/"])
def test_codex_gets_a_provider_that_speaks_responses(capsys: pytest.CaptureFixture[str], url: str) -> None:
    told = tomllib.loads(read_printed(capsys, "codex", url=url).rpartition("\nThen:")[0])
    assert (told["model"], told["model_provider"]) == ("reasond", "reasond")
    assert told["model_providers"]["reasond"] == {
        "name": "reasond",
        "base_url": f"{URL}/v1",
        "env_key": "REASOND_TOKEN",
        "wire_api": "responses",
    }


def test_vs_code_gets_a_custom_endpoint_without_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    (provider,) = json.loads(read_printed(capsys, "vscode", model="reasond/react").rpartition("\nChat: Manage")[0])
    assert (provider["vendor"], provider["apiType"]) == ("customendpoint", "chat-completions")
    assert "apiKey" not in provider
    # What the schema of VS Code's extension requires of a model, of the types that it requires.
    required = {"id": str, "name": str, "url": str, "toolCalling": bool, "vision": bool}
    required |= {"maxInputTokens": int, "maxOutputTokens": int}
    assert {name: type(provider["models"][0][name]) for name in required} == required
    (model,) = provider["models"]
    assert (model["id"], model["url"]) == ("reasond/react", f"{URL}/v1/chat/completions")
    assert model["toolCalling"] is True


def test_open_webui_gets_variables_that_a_shell_reads(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(read_printed(capsys, "openwebui").partition("\nThen:")[0])
    assert words[1::2] == [
        f"OPENAI_API_BASE_URL={URL}/v1",
        "OPENAI_API_KEY=$REASOND_TOKEN",
        "DEFAULT_MODELS=reasond",
        "TASK_MODEL_EXTERNAL=reasond/direct",
    ]


def test_claude_gets_variables_with_the_address_before_v1(capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(read_printed(capsys, "claude", url=f"{URL}/v1", model="careful").partition("\nThen:")[0])
    assert words[1::2][:3] == [
        f"ANTHROPIC_BASE_URL={URL}",
        "ANTHROPIC_AUTH_TOKEN=$REASOND_TOKEN",
        "ANTHROPIC_MODEL=careful",
    ]


def test_cline_gets_a_command_and_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = read_printed(capsys, "cline")
    words = shlex.split(out.partition("\n")[0])
    assert words[:5] == ["cline", "auth", "openai-compatible", "--baseurl", f"{URL}/v1"]
    assert f"Base URL      {URL}/v1" in out
    assert "Model ID      reasond" in out


def test_a_file_is_written_once_and_never_over_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install("codex", url=URL, model="reasond", home=tmp_path, environ={}) is ExitCode.OK
    assert "reasond keys create" in capsys.readouterr().out
    file = tmp_path / ".codex" / "config.toml"
    assert tomllib.loads(file.read_text("utf-8"))["model_provider"] == "reasond"
    file.write_text("mine = 1\n", "utf-8")
    with pytest.raises(CommandError, match="is left as it is"):
        install("codex", url=URL, model="reasond", home=tmp_path, environ={})
    assert file.read_text("utf-8") == "mine = 1\n"
    assert "model_provider" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("client", "url", "model", "named"),
    [
        ("nobody", URL, "m", "codex, claude"),
        ("claude", "http://a;id", "m", "--url"),
        ("codex", "127.0.0.1:8001", "m", "--url"),
        ("codex", "ftp://a", "m", "--url"),
        ("codex", f"{URL}?token=x", "m", "--url"),
        ("codex", URL, 'a"\nb', "--model"),
        ("openwebui", URL, "$(id)", "--model"),
        ("openwebui", "http://a;id", "m", "--url"),
    ],
)
def test_what_cannot_work_is_refused_by_name(client: str, url: str, model: str, named: str) -> None:
    with pytest.raises(CommandError) as refused:
        install(client, url=url, model=model, home=None, environ=TOKEN)
    assert named in f"{refused.value.message} {refused.value.remedy}"
    assert refused.value.code is ExitCode.BAD_REQUEST


def test_hosts_of_tools_get_the_address_of_mcp_and_name_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    cursor = json.loads(read_printed(capsys, "cursor", url=f"{URL}/v1").partition("\n")[2].partition("\n\nA key")[0])
    assert cursor["mcpServers"]["reasond"] == {
        "url": f"{URL}/mcp",
        "headers": {"Authorization": "Bearer ${env:REASOND_TOKEN}"},
    }
    code = json.loads(read_printed(capsys, "vscode-mcp").partition("\nIt belongs")[0])
    assert (code["servers"]["reasond"]["type"], code["servers"]["reasond"]["url"]) == ("http", f"{URL}/mcp")
    assert code["servers"]["reasond"]["headers"]["Authorization"] == f"Bearer ${{input:{code['inputs'][0]['id']}}}"


def test_claude_desktop_gets_whole_paths_and_is_told_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told, _, after = read_printed(capsys, "claude-desktop").partition("\nIt belongs")
    desktop = json.loads(told)["mcpServers"]["reasond"]
    assert desktop["args"] == ["mcp"]
    assert desktop["command"].endswith("/reasond")
    assert "no config.toml here" in after
    assert "reasond-server[mcp]" not in after
    (tmp_path / "config.toml").touch()
    monkeypatch.setitem(sys.modules, "mcp", None)
    told, _, after = read_printed(capsys, "claude-desktop").partition("\nIt belongs")
    assert json.loads(told)["mcpServers"]["reasond"]["args"] == ["mcp", "--config", str(tmp_path / "config.toml")]
    assert "config.toml here" not in after
    assert "pip install 'reasond-server[mcp]'" in after

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands import config as config_commands
from reasond_server.config import ReasoningSettings
from reasond_server.errors.base import SettingsError
from tests.unit.config.seed_000 import CR_1_AND_2

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = {"SIGNING": "kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU", "REASOND__AUTH__KEYS": '[{ id = "one", secret_env = "SIGNING" }]'}
NO_FILE = Path("/dev/null")
ENABLED = ", ".join(ReasoningSettings().enabled_strategies)


def test_a_configuration_that_serves_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    assert config_commands.check(NO_FILE, environ=KEY, is_dev=False) == 0
    assert capsys.readouterr().out == (f"ok: /dev/null and 1 of the environment; strategies: {ENABLED}\n")


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o600, False), (0o640, False), (0o644, True), (0o660, True)])
@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_secret_that_others_may_read_or_change_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, mode: int, is_exposed: bool, is_in_file: bool
) -> None:
    config, secret = tmp_path / "config.toml", tmp_path / "secret"
    secret.write_text(KEY["SIGNING"])
    source = f'secret = "{KEY["SIGNING"]}"' if is_in_file else 'secret_file = "secret"'
    config.write_text(f'[auth]\nkeys = [{{ id = "one", {source} }}]\n')
    (config if is_in_file else secret).chmod(mode)
    assert config_commands.check(config, environ={}, is_dev=False) == 0
    told = capsys.readouterr().err
    assert ("other users may read or change it" in told) is is_exposed
    assert (f"mode {mode:04o}" in told) is is_exposed
    assert KEY["SIGNING"] not in told


def test_without_a_key_only_dev_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match=r"auth\.keys"):
        config_commands.check(NO_FILE, environ={}, is_dev=False)
    assert config_commands.check(NO_FILE, environ={}, is_dev=True) == 0
    assert "environment" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"REASOND__REASONING__ENABLED_STRATEGIES": '["astrology"]'}, "not installed"),
        ({"REASOND__REASONING__STRATEGIES__ASTROLOGY__DEFAULT_X": "1"}, "names no installed strategy"),
        ({"REASOND__REASONING__STRATEGIES__BOUNDED_CONTEXT__DEFAULT_CHUNK_SIZE": "7"}, "must be at least 1024, got 7"),
        ({"REASOND__LLM__PROVIDER": "openai"}, r"llm\.model: is empty"),
        ({"OPENAI_API_KEY": "sk-x"}, r"llm\.model: is empty, and the provider openai was selected"),
        ({"REASOND__SERVER__NOPE": "1"}, "no known key"),
    ],
)
def test_check_refuses_what_serve_would_refuse(environ: Mapping[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        config_commands.check(NO_FILE, environ={**KEY, **environ}, is_dev=False)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('enabled = ["calculater"]', "calculater"),
        ('enabled = ["calculator"]\n[tools.mcp.here]\ncommand = "/nowhere/at/all"', ""),
    ],
)
def test_tools_are_loaded_as_a_server_loads_them_and_no_tool_server_is_started(
    tmp_path: Path, table: str, words: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"[tools]\n{table}\n")
    if not words:
        assert config_commands.check(path, environ={}, is_dev=True) == 0
        return
    with pytest.raises(SettingsError, match=words):
        config_commands.check(path, environ={}, is_dev=True)


def test_check_names_all_that_is_wrong_at_once_with_the_example_of_seed_000(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(CR_1_AND_2.replace("react", "reakt"), "utf-8")
    with pytest.raises(SettingsError) as refused:
        config_commands.check(file, environ={}, is_dev=False)
    head, *problems = refused.value.message.splitlines()
    beginnings = (
        "[reasoning] enabled_strategies names 'reakt', which is not installed",
        "[reasoning.strategies.reakt] names no installed strategy",
        "llm.api_key_env: ",
        "auth.keys: ",
    )
    assert head == "The configuration has 4 problems:"
    assert all(one.strip().startswith(other) for one, other in zip(problems, beginnings, strict=True))
    assert f"Installed are: {ENABLED}." in problems[0]


def test_no_strategy_at_all_is_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {**KEY, "REASOND__REASONING__ENABLED_STRATEGIES": "[]"}
    assert config_commands.check(NO_FILE, environ=environ, is_dev=False) == 0
    assert "strategies: none" in capsys.readouterr().out


def test_show_prints_every_key_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"REASOND__AUTH__KEYS": f'[{{ id = "one", secret = "{KEY["SIGNING"]}" }}]'}
    for has_origin, as_json in ((False, False), (True, False), (False, True), (True, True)):
        config_commands.show(NO_FILE, environ=environ, has_origin=has_origin, as_json=as_json)
    out = capsys.readouterr().out
    assert KEY["SIGNING"] not in out
    assert out.count('"***"') == 4
    assert 'server.grpc_address = "127.0.0.1:50051"\n' in out


def test_origins_say_where_each_value_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[server]\ndrain_delay_s = 1.5\n", "utf-8")
    environ = {"REASOND__SERVER__MAX_JSONRPC_BATCH": "7"}
    config_commands.show(file, environ=environ, has_origin=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["server.drain_delay_s"] == {"value": 1.5, "origin": f"file {file}, line 2"}
    assert found["server.max_jsonrpc_batch"] == {"value": 7, "origin": "environment REASOND__SERVER__MAX_JSONRPC_BATCH"}
    assert found["server.tls"] == {"value": "off", "origin": "default"}
    config_commands.show(file, environ=environ, has_origin=True, as_json=False)
    line = next(one for one in capsys.readouterr().out.splitlines() if one.startswith("server.drain_delay_s"))
    assert line.split("  # ") == [line.split("  # ")[0], f"file {file}, line 2"]

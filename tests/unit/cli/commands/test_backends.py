from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands import backends
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.errors.base import SettingsError
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engines.serving import Engine

ROOT = Path(__file__).resolve().parents[4]


def config(folder: Path, base_url: str, more: str = "", *, name: str = "") -> Path:
    path = folder / "config.toml"
    section = f"[llm.backends.{name}]" if name else '[llm]\nprovider = "openai"'
    path.write_text(f'{section}\nmodel = "m"\nbase_url = "{base_url}"\n{more}', encoding="utf-8")
    return path


def check(path: Path | None, name: str = "", *, as_json: bool = False, limit_s: float = 10.0) -> ExitCode:
    return backends.check(name, config=path, environ={}, limit=limit_s, as_json=as_json)


def test_what_is_printed_can_be_pasted_and_then_fits(
    llama_server: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = llama_server("answer")
    assert check(config(tmp_path, engine.base_url)) is ExitCode.MODEL
    out = capsys.readouterr().out
    assert out.startswith(f"m at {engine.base_url} (")
    table, _, pasted = out.partition("# Other than the profile generic says. ")
    assert "json_schema enforced            yes" in table
    assert pasted.startswith(f"This goes\n# in place of lines 1-4 of {tmp_path / 'config.toml'}:\n[llm]\n")
    assert tomllib.loads(f"# {pasted}") == {
        "llm": {
            "provider": "openai",
            "model": "m",
            "base_url": engine.base_url,
            "profile": "llamacpp",
            "capabilities": {"max_stops": 16, "context_window": engine.window},
        }
    }
    paste(tmp_path / "config.toml", pasted)
    assert check(tmp_path / "config.toml") is ExitCode.OK
    assert "The profile llamacpp says the same; nothing is to be changed." in capsys.readouterr().out


def paste(path: Path, printed: str) -> None:
    """Do to the file what the printed words say."""
    place, _, section = printed.partition(":\n[")
    lines = path.read_text(encoding="utf-8").splitlines()
    found = re.search(rf"in place of lines? (\d+)(?:-(\d+))? of {re.escape(str(path))}$", place)
    assert found is not None, place
    first, last = int(found[1]), int(found[2] or found[1])
    path.write_text("\n".join([*lines[: first - 1], f"[{section}", *lines[last:]]), encoding="utf-8")


GUIDES = ("docs/guides/getting-started.md", "docs/guides/model-backends.md")
BLOCKS = [
    block
    for guide in GUIDES
    for block in re.findall(r"```toml[^\n]*\n(.*?)```", (ROOT / guide).read_text("utf-8"), re.DOTALL)
    if tomllib.loads(block).get("llm", {}).get("base_url")
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.sub(r"\W+", " ", block)[14:50])
def test_what_is_printed_can_be_pasted_into_the_files_of_the_guides(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is the guide's block with the address of a server of the test, between two other tables."""
    assert len(BLOCKS) >= 8
    path = tmp_path / "config.toml"
    with odd_server(Manners(limits=("max_tokens",), usage=True)) as base_url:
        own = re.sub(r"(?m)^base_url = .*$", f'base_url = "{base_url}"', block)
        own = re.sub(r"(?m)^(api_key_env|azure_api_version) = .*\n", "", own)
        path.write_text(f'[server]\nreflection = false\n\n{own}\n\n# mine\n[logs]\nlevel = "info"\n', encoding="utf-8")
        before = tomllib.loads(path.read_text(encoding="utf-8"))
        assert check(path) is ExitCode.MODEL
        paste(path, capsys.readouterr().out.partition("# Other than the profile")[2])
        after = tomllib.loads(path.read_text(encoding="utf-8"))
        assert check(path) is ExitCode.OK
    kept = {name: value for name, value in before["llm"].items() if name not in {"profile", "capabilities"}}
    assert kept.items() <= after["llm"].items()
    assert {name: after[name] for name in after if name != "llm"} == {
        name: before[name] for name in before if name != "llm"
    }


def test_where_there_is_no_file_a_new_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with odd_server(Manners(limits=("max_tokens",), usage=True)) as base_url:
        environ = {"REASOND__LLM__PROVIDER": "openai", "REASOND__LLM__MODEL": "m", "REASOND__LLM__BASE_URL": base_url}
        with contextlib.chdir(tmp_path):
            backends.check("", config=None, environ=environ, limit=10.0, as_json=False)
        out = capsys.readouterr().out
        assert "# into a new file config.toml here, which every command then reads:\n[llm]\n" in out
        path = tmp_path / "config.toml"
        path.write_text(out[out.index("# Other") :], encoding="utf-8")
        assert check(path) is ExitCode.OK


def test_a_server_that_ignores_limits_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with odd_server(Manners(usage=True)) as base_url:
        path = config(tmp_path, base_url, "capabilities = { tools = false }\n", name="spare")
        assert check(path, "spare") is ExitCode.MODEL
    printed = capsys.readouterr()
    assert "max_tokens = 1 kept             no" in printed.out
    assert "warning: The server keeps no limit of tokens; reasond stops reading" in printed.err
    pasted = tomllib.loads(printed.out[printed.out.index("# Other") :])["llm"]["backends"]["spare"]["capabilities"]
    assert pasted == {"tools": False, "max_stops": 0, "forced_tool_choice": False}, "with what stood there already"


def test_a_server_that_lies_about_its_usage_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with odd_server(Manners(limits=("max_tokens", "max_completion_tokens"), usage=True, cut_prompt=1)) as base_url:
        assert check(config(tmp_path, base_url)) is ExitCode.MODEL
    printed = capsys.readouterr()
    assert "usage believable                no       prompt 1 of 7 words, output 10 of 10 words" in printed.out
    assert "warning: The server's usage cannot be true" in printed.err
    pasted = tomllib.loads(printed.out[printed.out.index("# Other") :])["llm"]["capabilities"]
    assert "context_window" not in pasted


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with odd_server(Manners(limits=("max_tokens",), usage=True)) as base_url:
        check(config(tmp_path, base_url), as_json=True)
        plain = json.loads(capsys.readouterr().out)
    assert (plain["backend"], plain["base_url"], plain["profile"], plain["fits"]) == ("llm", base_url, "generic", False)
    assert plain["findings"][0] == {
        "subject": "usage in the stream",
        "holds": "yes",
        "evidence": "include_usage: usage came",
    }
    assert tomllib.loads(plain["toml"])["llm"]["capabilities"] == plain["changes"]
    assert plain["warnings"] == []


@pytest.mark.parametrize(
    ("manners", "code"),
    [
        (Manners(status=401, error="no"), ExitCode.NOT_ALLOWED),
        (Manners(status=500, error="\x1b[31mno"), ExitCode.MODEL),
        (Manners(hangs=True), ExitCode.MODEL),
    ],
)
def test_what_cannot_be_probed_ends_with_a_code_of_its_kind(manners: Manners, code: ExitCode, tmp_path: Path) -> None:
    with odd_server(manners) as base_url, pytest.raises(CommandError) as caught:
        check(config(tmp_path, base_url), limit_s=0.3)
    assert caught.value.code is code


def test_nobody_at_the_address_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        check(config(tmp_path, "http://127.0.0.1:9/v1"))
    assert caught.value.code is ExitCode.UNREACHABLE


def test_the_demo_model_has_no_server_to_examine() -> None:
    with pytest.raises(CommandError, match="no server to examine") as caught:
        check(Path("/dev/null"))
    assert caught.value.code is ExitCode.BAD_REQUEST


def test_an_unknown_backend_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="There is no backend 'nope'"):
        check(config(tmp_path, "http://127.0.0.1:9/v1"), "nope")


def test_the_command_line_reaches_it(tmp_path: Path) -> None:
    reasond = Path(sys.executable).parent / "reasond"
    with odd_server(Manners(limits=("max_tokens",), usage=True)) as base_url:
        command: list[str | Path] = [
            reasond,
            "backends",
            "check",
            "--config",
            config(tmp_path, base_url),
            "--limit",
            "5",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == ExitCode.MODEL, done.stderr
    assert json.loads(done.stdout)["backend"] == "llm"

"""`reasond init` writes a configuration with which a server starts, and nothing over a file that exists."""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.commands.init import ModelServer, init
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.config import load
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

MODELS = {"/v1/models": {"object": "list", "data": [{"id": "small"}, {"id": "large"}]}}


class Person:
    """Chooses the last of all options, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Sequence[str]]] = []

    def choose(self, question: str, options: Sequence[str]) -> int:
        self.asked.append((question, options))
        return len(options) - 1


@contextmanager
def model_server(**documents: object) -> Iterator[tuple[str, Manners]]:
    manners = Manners(documents=documents or MODELS, usage=True)
    with odd_server(manners) as base_url:
        yield base_url, manners


def write_for(
    base_url: str,
    file: Path,
    *,
    models: Sequence[str] = (),
    key_env: str = "",
    environ: Mapping[str, str] | None = None,
    person: Person | None = None,
) -> ExitCode:
    wanted = ModelServer(name="", base_url=base_url, models=models, key_env=key_env)
    choose = None if person is None else person.choose
    return init(wanted, file, environ=environ or {}, limit_s=10, choose=choose)


def test_a_person_is_asked_for_the_model_and_the_file_says_all_of_it_with_comments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, person = tmp_path / "config.toml", Person()
    with model_server() as (base_url, manners):
        assert write_for(base_url, file, person=person) is ExitCode.OK
    assert person.asked == [("Which model?", ["small", "large"])]
    assert all(body["model"] == "large" for body in manners.seen)
    told = tomllib.loads(file.read_text("utf-8"))["llm"]
    assert (told["provider"], told["model"], told["base_url"], told["api_key_env"]) == ("openai", "large", base_url, "")
    settings = load(file, {}).settings
    assert settings.llm.model == "large"
    lines = file.read_text("utf-8").splitlines()
    assert lines[lines.index('model = "large"') - 1].startswith("# ")
    out = capsys.readouterr().out
    assert out.rstrip().endswith(f"reasond serve --dev --config {file}")


def test_a_model_that_is_named_is_not_looked_up(tmp_path: Path) -> None:
    with model_server(nothing={}) as (base_url, _):
        assert write_for(base_url, tmp_path / "a.toml", models=["unlisted"]) is ExitCode.OK
    assert load(tmp_path / "a.toml", {}).settings.llm.model == "unlisted"


def test_where_nobody_can_be_asked_the_options_are_named(tmp_path: Path) -> None:
    with model_server() as (base_url, manners), pytest.raises(CommandError, match="small, large") as refused:
        write_for(base_url, tmp_path / "a.toml")
    assert "--model" in refused.value.remedy
    assert not manners.seen


def test_a_file_that_exists_stays_and_what_would_be_in_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("# mine\n", "utf-8")
    with model_server() as (base_url, _), pytest.raises(CommandError, match="is left as it is"):
        write_for(base_url, file, models=["small"])
    assert file.read_text("utf-8") == "# mine\n"
    assert 'model = "small"' in capsys.readouterr().out


def test_a_key_is_named_and_never_written(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    with model_server() as (base_url, manners):
        assert (
            write_for(base_url, file, models=["small"], key_env="MY_KEY", environ={"MY_KEY": "sk-secret"})
            is ExitCode.OK
        )
        with pytest.raises(CommandError, match="MY_KEY"):
            write_for(base_url, tmp_path / "b.toml", key_env="MY_KEY")
    assert 'api_key_env = "MY_KEY"' in file.read_text("utf-8")
    assert "sk-secret" not in file.read_text("utf-8")
    sent = {name.lower(): told for name, told in manners.headers[0].items()}
    assert sent["authorization"] == "Bearer sk-secret"


def test_a_server_that_is_not_there_and_an_address_that_is_none_are_told(tmp_path: Path) -> None:
    with model_server() as (base_url, _):
        pass
    with pytest.raises(CommandError) as gone:
        write_for(base_url, tmp_path / "a.toml")
    assert gone.value.code is ExitCode.UNREACHABLE
    with pytest.raises(CommandError) as wrong:
        write_for("localhost:11434", tmp_path / "a.toml")
    assert wrong.value.code is ExitCode.BAD_REQUEST
    with model_server(nothing={}) as (base_url, _), pytest.raises(CommandError, match="tells of no model"):
        write_for(base_url, tmp_path / "a.toml")
    assert not list(tmp_path.iterdir())


def test_a_place_that_is_not_there_is_told_before_the_model_server_is_called(tmp_path: Path) -> None:
    with model_server() as (base_url, manners):
        with pytest.raises(CommandError, match="does not exist"):
            write_for(base_url, tmp_path / "none" / "config.toml")
        assert not manners.headers

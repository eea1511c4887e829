from pathlib import Path

import pytest

from reasond_server.cli.commands import tokenizer
from reasond_server.cli.outcome import CommandError, ExitCode
from reasond_server.llm.counting import tokenizers
from reasond_server.llm.counting.tokenizers import Ranks


@pytest.fixture
def empty_ranks(monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace the known encodings, whose files are large, with one whose file is empty; return its name."""
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    known = (Ranks(name="empty", sha256=digest, pattern="."),)
    monkeypatch.setattr(tokenizer, "KNOWN_RANKS", known)
    return "empty"


def test_ranks_are_kept_where_the_server_looks_for_them(
    empty_ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.touch()
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert tokenizer.fetch(empty_ranks, source=str(source), folder=None, environ=environ) is ExitCode.OK
    kept = tmp_path / "cache" / "reasond" / "tiktoken" / "empty.tiktoken"
    assert kept.exists()
    assert capsys.readouterr().out == f"ok: {kept}\n"


def refusal(encoding: str, *, source: str = "", folder: Path | None = None) -> CommandError:
    with pytest.raises(CommandError) as refused:
        tokenizer.fetch(encoding, source=source, folder=folder, environ={})
    return refused.value


def test_what_cannot_be_fetched_has_a_remedy_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "wrong").touch()
    names = ", ".join(ranks.name for ranks in tokenizers.KNOWN_RANKS)
    assert refusal("o999k_base").remedy == f"Known are {names}."
    assert "--folder" in refusal("o200k_base").remedy
    assert refusal("o200k_base", source="/nonexistent", folder=tmp_path).code is ExitCode.UNREACHABLE
    assert refusal("o200k_base", source=str(tmp_path / "wrong"), folder=tmp_path).code is ExitCode.MODEL

"""tiktoken from local files: it fetches and deletes nothing, no text raises, and cuts stay within their limits."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.counting.tokenizers import KNOWN_RANKS, Ranks, TiktokenCounter, find_local_encoding, find_ranks
from reasond_server.llm.model import Message, Role
from tests.unit.llm.counting.ranks import made_up_ranks, ranks_content

if TYPE_CHECKING:
    import tiktoken


def encoding(name: str = "o200k_base") -> tiktoken.Encoding:
    with TemporaryDirectory() as folder:
        made = find_local_encoding(name, [Path(folder)], known=[made_up_ranks(Path(folder), name=name)])
    assert made is not None
    return made


COUNTERS = st.sampled_from([TiktokenCounter(encoding(one.name)) for one in KNOWN_RANKS])
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("the wal12\n\t \u4f60\U0001f600\ud800<|end>"), st.characters(codec=None)),
    max_size=200,
) | st.sampled_from(["<|endoftext|>" * 9, "the wall " * 30, "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 9])


@given(COUNTERS, TEXTS, st.integers(-1, 80))
def test_cuts_keep_to_the_limit_and_to_the_text(counter: TiktokenCounter, text: str, limit: int) -> None:
    head, tail = counter.head(text, limit), counter.tail(text, limit)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert counter.count_text(head) <= max(0, limit)
    assert counter.count_text(tail) <= max(0, limit)
    if counter.count_text(text) <= limit:
        assert head == tail == text


@given(COUNTERS, TEXTS)
def test_no_text_has_more_tokens_than_bytes(counter: TiktokenCounter, text: str) -> None:
    assert counter.count_text(text) <= ByteCounter().count_text(text)


@given(COUNTERS, st.integers(1, 400))
def test_cuts_of_plain_words_lose_less_than_a_word(counter: TiktokenCounter, limit: int) -> None:
    text = "the wall " * 200
    assert counter.count_text(counter.head(text, limit)) >= min(limit, counter.count_text(text)) - 4
    assert counter.count_text(counter.tail(text, limit)) >= min(limit, counter.count_text(text)) - 4


def test_counts_are_those_of_the_encoding() -> None:
    made = encoding()
    counter = TiktokenCounter(made)
    text = "the wall 12, the wall"
    assert counter.count_text(text) == len(made.encode_ordinary(text)) < len(text) / 2


def test_names_of_special_tokens_are_plain_text() -> None:
    counter = TiktokenCounter(encoding())
    assert counter.count_text("<|endoftext|>") > 3
    assert counter.head("<|endoftext|>", 2) != ""


def test_the_template_is_allowed_for_and_then_learnt() -> None:
    counter = TiktokenCounter(encoding())
    messages = [Message(role=Role.SYSTEM, content="the wall"), Message(role=Role.USER, content="the wall")]
    texts = 2 * counter.count_text("the wall")
    assert counter.count_prompt(messages) == texts + 64 + 2 * 16
    counter.learn(messages, texts - 1)
    assert counter.count_prompt(messages) == texts + 64 + 2 * 16
    counter.learn(messages, texts + 9)
    assert counter.count_prompt(messages) == texts + 9
    counter.learn(messages, texts + 3)
    assert counter.count_prompt(messages) == texts + 9
    counter.learn([Message(role=Role.USER, content="x" * 20_001)], 90_000)
    assert counter.count_prompt(messages) == texts + 9
    assert not counter.is_exact


@pytest.mark.parametrize("plain", [True, False])
def test_ranks_are_found_under_either_name_in_any_folder(tmp_path: Path, *, plain: bool) -> None:
    ranks = made_up_ranks(tmp_path, plain=plain)
    assert find_local_encoding("o200k_base", [tmp_path / "none", tmp_path], known=[ranks]) is not None
    assert find_local_encoding("o200k_base", [tmp_path / "none"], known=[ranks]) is None
    assert find_local_encoding("p50k_base", [tmp_path], known=[ranks]) is None


def test_the_names_of_cached_files_are_those_that_tiktoken_uses() -> None:
    assert {one.name: one.file_names for one in KNOWN_RANKS} == {
        "cl100k_base": ("9b5ad71b2ce5302211f9c61530b329a4922fc6a4", "cl100k_base.tiktoken"),
        "o200k_base": ("fb374d419588a4632f3f557e76b4b70aebbca790", "o200k_base.tiktoken"),
    }


def test_a_file_with_another_checksum_is_named_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "o200k_base.tiktoken"
    path.write_bytes(ranks_content())
    with caplog.at_level(logging.WARNING, "reasond.llm.counting"):
        assert find_local_encoding("o200k_base", [tmp_path]) is None
    assert [getattr(record, "path", "") for record in caplog.records] == [str(path)]
    assert path.read_bytes() == ranks_content()


@pytest.mark.parametrize("content", [b"!!! 0\n", b"YQ==\n", b"YQ== x\n", b"YQ== 0 1\n"])
def test_a_file_that_is_no_list_of_ranks_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    ranks = Ranks(name="o200k_base", sha256=hashlib.sha256(content).hexdigest(), pattern=r"\S+|\s+")
    (tmp_path / "o200k_base.tiktoken").write_bytes(content)
    with caplog.at_level(logging.WARNING, "reasond.llm.counting"):
        assert find_local_encoding("o200k_base", [tmp_path], known=[ranks]) is None
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("openai/gpt-4o-mini", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("llama-3", ""),
    ],
)
def test_models_of_openai_have_an_encoding_and_others_none(model: str, name: str) -> None:
    assert find_ranks(model) == name

"""Tokenizer files: counts stay within their limits, nothing is truncated or padded, and errors say what to do."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from reasond_server.errors.base import SettingsError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.counting.tokenizers import TokenizerFileCounter, load_tokenizer_file
from reasond_server.llm.model import Message, Role


def write_tokenizer(path: Path) -> None:
    """Write a byte-level tokenizer with special tokens, and with truncation and padding left over from training."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = ["th", "the", "Ġthe", "Ġt", "wa", "ll", "wall", "Ġwall", "Ġw"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("w", "a"), ("l", "l"), ("wa", "ll"), ("Ġ", "wall")]
    vocabulary = {token: number for number, token in enumerate([*letters, *pieces])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))


def counter() -> TokenizerFileCounter:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        write_tokenizer(path)
        return load_tokenizer_file(path)


COUNTER = counter()
TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("the wall\n\u4f60\U0001f600\ud800<|"), st.characters(codec=None)), max_size=150
)


@given(TEXTS, st.integers(-1, 80))
def test_cuts_keep_to_the_limit_and_to_the_text(text: str, limit: int) -> None:
    head, tail = COUNTER.head(text, limit), COUNTER.tail(text, limit)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert COUNTER.count_text(head) <= max(0, limit)
    assert COUNTER.count_text(tail) <= max(0, limit)
    if COUNTER.count_text(text) <= limit:
        assert head == tail == text


@given(TEXTS)
def test_no_text_has_more_tokens_than_bytes(text: str) -> None:
    assert COUNTER.count_text(text) <= ByteCounter().count_text(text)


def test_neither_the_truncation_nor_the_padding_of_the_file_counts() -> None:
    assert COUNTER.count_text("the") == 1
    assert COUNTER.count_text("the" + " wall the" * 500) == 1001


def test_names_of_special_tokens_are_plain_text() -> None:
    assert COUNTER.count_text("<|im_start|>") == len("<|im_start|>")


def test_cuts_of_a_long_text_are_as_long_as_they_may_be() -> None:
    text = "the wall " * 9000
    assert COUNTER.head(text, 100) == " ".join(["the wall"] * 50)
    assert COUNTER.count_text(COUNTER.tail(text, 100)) == 100


def test_the_template_is_learnt() -> None:
    learning = counter()
    messages = [Message(role=Role.USER, content="the wall")]
    assert learning.count_prompt(messages) == 2 + 64 + 16
    learning.learn(messages, 9)
    assert learning.count_prompt(messages) == 9
    assert not learning.is_exact


def test_a_file_that_is_missing_or_no_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.json"):
        load_tokenizer_file(tmp_path / "none.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"other\.json"):
        load_tokenizer_file(tmp_path / "other.json")


def test_without_the_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(SettingsError, match="'tokenizers'") as caught:
        load_tokenizer_file(tmp_path / "tokenizer.json")
    assert "Install" in caught.value.remedy

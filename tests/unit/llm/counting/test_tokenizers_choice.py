"""Which counter a model gets: the file, the local ranks, the estimate, or bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, choose_counter
from reasond_server.llm.counting.tokenizers import TiktokenCounter
from tests.unit.llm.counting.ranks import made_up_ranks

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_are_bytes_whatever_else_is_there(tmp_path: Path) -> None:
    ranks = made_up_ranks(tmp_path)
    assert isinstance(choose_counter("bytes", "gpt-4o", folders=[tmp_path], known=[ranks]), ByteCounter)


def test_a_tokenizer_file_comes_first_and_must_be_there(tmp_path: Path) -> None:
    ranks = made_up_ranks(tmp_path)
    with pytest.raises(SettingsError):
        choose_counter("auto", "gpt-4o", tokenizer=tmp_path / "none.json", folders=[tmp_path], known=[ranks])


def test_local_ranks_come_before_an_estimate(tmp_path: Path) -> None:
    ranks = made_up_ranks(tmp_path)
    counter = choose_counter("auto", "gpt-4o", folders=[tmp_path], known=[ranks])
    assert isinstance(counter, TiktokenCounter)


@pytest.mark.parametrize("model", ["gpt-4o", "llama-3", ""])
def test_without_ranks_there_is_an_estimate(model: str, tmp_path: Path) -> None:
    assert isinstance(choose_counter("auto", model, folders=[tmp_path]), EstimatingCounter)


def test_a_folder_that_cannot_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    ranks = made_up_ranks(tmp_path)
    # A name that is too long is refused for every user; root could read the folder of another user.
    out_of_reach = tmp_path / ("x" * 300)
    assert isinstance(choose_counter("auto", "gpt-4o", folders=[out_of_reach], known=[ranks]), EstimatingCounter)
    counter = choose_counter("auto", "gpt-4o", folders=[out_of_reach, tmp_path], known=[ranks])
    assert isinstance(counter, TiktokenCounter)

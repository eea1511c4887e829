from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.config import load
from reasond_server.errors.base import SettingsError
from reasond_server.protocols.model_catalogue import ModelBudget, ModelPreset

if TYPE_CHECKING:
    from pathlib import Path


def test_the_table_of_a_model_is_its_preset(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        """
        [openai.models.careful]
        strategy = "self_consistency"
        config = { samples = 9 }
        budget = { max_total_tokens = 5000, max_elapsed_s = 1.5 }
        include_deltas = true
        [openai.models."gpt-4.1:ours"]
        agent = "guide"
        """,
        encoding="utf-8",
    )
    assert load(file, {}).settings.openai.models == {
        "careful": ModelPreset(
            strategy="self_consistency",
            config={"samples": 9},
            budget=ModelBudget(max_total_tokens=5000, max_elapsed_s=1.5),
            include_deltas=True,
        ),
        "gpt-4.1:ours": ModelPreset(agent="guide"),
    }


@pytest.mark.parametrize("name", ["reasond", "reasond/react", "a b", "ä"])
def test_names_that_a_model_cannot_have(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[openai.models."{name}"]\nstrategy = "react"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="is no such name: a letter or digit first"):
        load(file, {})


def test_a_wrong_parameter_of_a_model_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[openai.models.m]\nconfig = { samples = [1] }\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"openai\.models\.m\.config\.samples"):
        load(file, {})

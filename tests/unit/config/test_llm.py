from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from reasond_server.config import list_rows, load
from reasond_server.config.llm import BackendSettings
from reasond_server.errors.base import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """
[llm]
provider = "openai"
model = "m"

[llm.capabilities]
max_stops = 2
reasoning_fields = ["thinking"]

[llm.backends.spare]
model = "s"
capabilities = { sampling = false }
"""


def write_file(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(write_file(folder, text), {})
    return caught.value.message


def test_capabilities_and_named_backends_are_read_with_their_origins(tmp_path: Path) -> None:
    path = write_file(tmp_path, TEXT)
    loaded = load(path, {"REASOND__LLM__BACKENDS__SPARE__MODEL": "123", "REASOND__LLM__CAPABILITIES__TOOLS": "false"})
    llm = loaded.settings.llm
    assert llm.capabilities == {"max_stops": 2, "reasoning_fields": ("thinking",), "tools": False}
    assert llm.backends["spare"].model == "123", "a text key stays text, in named backends too"
    assert llm.backends["spare"].capabilities == {"sampling": False}
    assert loaded.folder == tmp_path
    rows = {key: (value, origin) for key, value, origin in list_rows(loaded.settings, loaded.origins)}
    assert rows["llm.capabilities.reasoning_fields"] == ('["thinking"]', f"file {path}, line 8")
    assert rows["llm.capabilities.tools"] == ("false", "environment REASOND__LLM__CAPABILITIES__TOOLS")
    assert rows["llm.backends.spare.model"] == ('"123"', "environment REASOND__LLM__BACKENDS__SPARE__MODEL")


def test_tables_of_capabilities_and_backends_cannot_be_changed(tmp_path: Path) -> None:
    llm = load(write_file(tmp_path, TEXT), {}).settings.llm
    for table in (llm.capabilities, llm.backends):
        with pytest.raises(TypeError):
            table["x"] = 1  # type: ignore[index]  # the table must refuse it


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[llm]\nmodle = 'm'", "llm.modle: is no known key; did you mean llm.model?"),
        ("[llm.backends.b]\nmodle = 'm'", "llm.backends.b.modle: is no known key; did you mean llm.model?"),
        ("[llm.backends.b]\nprovider = 'openai'", "llm.backends.b.provider: is no known key"),
        ("[llm.backends.Big]\nmodel = 'm'", "is no such name: a lower-case letter first"),
        ("[llm.capabilities]\nMax = 1", "is no such name"),
        ("[llm.capabilities]\nmax_stops = 1.5", "llm.capabilities.max_stops: must be true, false, a whole number"),
        ("[llm.capabilities]\nreasoning_fields = [1]", "a list of strings"),
        ("[llm]\nmax_attempts = 0", "llm.max_attempts"),
        ("[llm]\nprofile = 'V LLM'", "llm.profile"),
        ("[llm]\nazure_api_version = '2024&x=1'", "llm.azure_api_version"),
    ],
)
def test_a_mistake_in_a_backend_is_named_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_an_address_with_a_password_is_never_repeated(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[llm.backends.b]\nbase_url = 'https://u:sesame-open@host/'")
    assert "llm.backends.b.base_url" in message
    assert "sesame" not in message


def test_no_backend_takes_numbers_out_of_range() -> None:
    for keys in ({"max_line_bytes": 1}, {"idle_timeout_s": -1.0}, {"max_concurrency": 0}, {"max_attempts": 11}):
        with pytest.raises(ValidationError):
            BackendSettings.model_validate(keys)

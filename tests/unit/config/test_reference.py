from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reasond_server.config import Settings, list_key_docs, list_rows, load, render_example
from reasond_server.config.reference import format_toml_value

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config.example.toml"
TABLES = {
    "llm.capabilities",
    "llm.backends",
    "reasoning.choices",
    "reasoning.strategies",
    "tools.mcp",
    "turns.modes",
    "repair.environments",
    "openai.models",
    "repair.commands",
    "repair.signs",
    "store.tenant_retention_s",
    "auth.roles",
    "auth.agents",
    "limits.weights",
    "webhooks.endpoints",
}
SECRET = "0f9c1d7ab36e48e5a2d4b8c7f6019e3d"


def test_the_example_is_what_the_code_renders() -> None:
    assert EXAMPLE.read_text(encoding="utf-8") == render_example()


def test_the_example_equals_the_defaults_and_misses_no_key() -> None:
    loaded = load(EXAMPLE, {})
    assert loaded.settings == Settings()
    missing = {key for key, origin in loaded.origins.items() if origin == "default"}
    assert missing == TABLES, "only the tables that operators key themselves have no values"
    assert tomllib.loads(render_example())["reasoning"]["strategies"] == {}


def test_every_key_has_a_comment_above_it() -> None:
    lines = render_example().splitlines()
    keys = [index for index, line in enumerate(lines) if line and line[0] not in "#[ ]"]
    assert len(keys) == len(list_key_docs()) - len(TABLES)
    assert all(lines[index - 1].startswith("# ") for index in keys)
    assert max(map(len, lines)) <= 120


def test_what_the_example_only_shows_loads_too(tmp_path: Path) -> None:
    text = render_example().replace("keys = []\n", "")
    samples = (
        *("# [reasoning.strategies.", "# default_max", "# max_allowed_i", "# keys = "),
        *("# limit_field = ", "# max_stops = ", "# [llm.backends.", "# model = ", "# base_url = "),
        *("# [tools.mcp.", "# command = ", "# args = ", "# allow_tools = "),
    )
    lines = [line.removeprefix("# ") if line.startswith(samples) else line for line in text.splitlines()]
    path = tmp_path / "config.toml"
    path.write_text("\n".join(lines).replace('provider = ""', 'provider = "openai"'), encoding="utf-8")
    loaded = load(path, {"REASOND_SIGNING_KEY": SECRET})
    assert loaded.settings.llm.capabilities == {"limit_field": "max_tokens", "max_stops": 4}
    assert loaded.settings.llm.backends["local"].base_url == "http://127.0.0.1:8080/v1"
    assert loaded.settings.tools.mcp["files"].allow_tools == ("read_file",)
    assert [key.id for key in loaded.auth_keys] == ["main"]
    assert loaded.settings.reasoning.strategies == {
        "bounded_context": {"default_max_iterations": 5, "max_allowed_iterations": 50}
    }


def test_every_key_is_described_and_every_number_has_a_range() -> None:
    for doc in list_key_docs():
        assert doc.description.endswith("."), doc.key
        assert doc.range or doc.type_name not in {"number", "whole number", "choice"}, doc.key
        assert doc.key.startswith(f"{doc.section}.")


def test_rows_tell_every_value_and_where_it_came_from(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f'[[auth.keys]]\nid = "main"\nsecret = "{SECRET}"\n'
        '[[auth.keys]]\nid = "next"\nsecret_env = "NEXT"\n[reasoning.strategies.x]\ndefault_a = 0.5\n',
        encoding="utf-8",
    )
    loaded = load(path, {"REASOND__SERVER__TLS": "terminated-upstream", "NEXT": SECRET})
    rows = {key: (value, origin) for key, value, origin in list_rows(loaded.settings, loaded.origins)}
    assert rows["server.grpc_address"] == ('"127.0.0.1:50051"', "default")
    assert rows["server.tls"] == ('"terminated-upstream"', "environment REASOND__SERVER__TLS")
    assert rows["server.reflection"] == ("true", "default")
    assert rows["reasoning.default_strategy"] == ('"chain_of_thought"', "default")
    assert rows["reasoning.strategies.x.default_a"] == ("0.5", f"file {path}, line 8")
    assert rows["auth.keys[0].id"] == ('"main"', f"file {path}")
    assert rows["auth.keys[0].secret"] == ('"***"', f"file {path}")
    assert rows["auth.keys[1].secret_env"] == ('"NEXT"', f"file {path}")
    assert "auth.keys[1].secret" not in rows
    assert SECRET not in str(rows)


def test_rows_of_the_defaults_name_every_key() -> None:
    loaded = load(EXAMPLE, {})
    rows = list_rows(loaded.settings, loaded.origins)
    assert [key for key, _, _ in rows] == [doc.key for doc in list_key_docs()]
    assert {("reasoning.strategies", "{}", "default"), ("llm.backends", "{}", "default")} <= set(rows)


def test_importing_the_configuration_loads_nothing_heavy() -> None:
    code = "import sys, reasond_server.config; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"grpc", "google", "uvicorn", "jwt", "typer", "rich", "httptools"} & set(ran.stdout.split())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:s3cret@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://ann:s3@cret@db/x", "postgresql://ann:***@db/x"),
        ("postgresql://db/x?user=ann&password=s3cret&sslmode=require", "***&sslmode=require"),
        ("postgresql://db/x?sslpassword=s3cret", "sslpassword=***"),
        ("postgresql://ann@db/x", "postgresql://ann@db/x"),
    ],
)
def test_the_password_of_the_database_is_not_shown(url: str, shown: str) -> None:
    text = format_toml_value(url)
    assert shown in text
    assert "cret" not in text

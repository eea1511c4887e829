from __future__ import annotations

import os
from pathlib import Path

import pytest

from reasond_server.config import LoadedSettings, Settings, load
from reasond_server.errors.base import SettingsError
from tests.unit.config.seed_000 import CR_1_AND_2, FEATURE_4

TABLES = {
    "bounded_context": {
        "default_chunk_size": 8192,
        "default_carryover_size": 4096,
        "default_max_iterations": 5,
        "max_allowed_iterations": 50,
    },
    "chain_of_thought": {"default_max_tokens": 32768},
    "react": {"default_max_tool_calls": 10},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, so that there is no config.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def from_text(text: str, **environ: str) -> LoadedSettings:
    Path("given.toml").write_text(text, encoding="utf-8")
    return load(Path("given.toml"), environ)


def problems(text: str = "", **environ: str) -> dict[str, str]:
    """Return the violations of a configuration, by key."""
    with pytest.raises(SettingsError) as caught:
        from_text(text, **environ)
    assert caught.value.violations
    for violation in caught.value.violations:
        assert f"{violation.field}: {violation.description}" in caught.value.message
    return {violation.field: violation.description for violation in caught.value.violations}


def test_without_file_and_environment_everything_is_default() -> None:
    loaded = load(None, {"PATH": "/bin", "REASOND_TOKEN": "the client's"})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.file is None
    assert loaded.auth_keys == ()


def test_seed_000s_feature_4_loads_verbatim() -> None:
    reasoning = from_text(FEATURE_4).settings.reasoning
    assert reasoning.default_strategy == "chain_of_thought"
    assert reasoning.enabled_strategies == ("chain_of_thought", "bounded_context", "react")
    assert reasoning.strategies == TABLES


def test_seed_000s_configuration_requirements_load_verbatim() -> None:
    settings = from_text(CR_1_AND_2).settings
    assert (settings.llm.provider, settings.llm.model, settings.llm.api_key_env) == (
        "openai",
        "gpt-4.1",
        "OPENAI_API_KEY",
    )
    assert settings.reasoning.strategies == TABLES
    assert settings.reasoning.performance == Settings().reasoning.performance


def test_the_file_is_the_one_that_is_named_then_the_variables_then_the_folders() -> None:
    for name, issuer in (("config.toml", "folder"), ("variable.toml", "variable"), ("option.toml", "option")):
        Path(name).write_text(f'[auth]\nissuer = "{issuer}"', encoding="utf-8")
    assert load(Path("option.toml"), {"REASOND_CONFIG": "variable.toml"}).settings.auth.issuer == "option"
    assert load(None, {"REASOND_CONFIG": "variable.toml"}).settings.auth.issuer == "variable"
    assert load(None, {"REASOND_CONFIG": ""}).settings.auth.issuer == "folder"


def test_the_environment_overrides_the_file_and_origins_tell() -> None:
    loaded = from_text(
        '[server]\ngrpc_address = "127.0.0.1:1"\nhttp_address = "127.0.0.1:2"\n'
        "[reasoning.strategies.bounded_context]\ndefault_chunk_size = 2048\n",
        REASOND__SERVER__GRPC_ADDRESS="127.0.0.1:3",
        REASOND__REASONING__STRATEGIES__BOUNDED_CONTEXT__MAX_ALLOWED_ITERATIONS="7",
    )
    assert loaded.settings.server.grpc_address == "127.0.0.1:3"
    assert loaded.settings.server.http_address == "127.0.0.1:2"
    assert loaded.settings.reasoning.strategies["bounded_context"] == {
        "default_chunk_size": 2048,
        "max_allowed_iterations": 7,
    }
    prefix = "reasoning.strategies.bounded_context"
    assert loaded.origins["server.grpc_address"] == "environment REASOND__SERVER__GRPC_ADDRESS"
    assert loaded.origins["server.http_address"] == "file given.toml, line 3"
    assert loaded.origins["server.tls"] == "default"
    assert loaded.origins[f"{prefix}.default_chunk_size"] == "file given.toml, line 5"
    assert loaded.origins[f"{prefix}.max_allowed_iterations"].startswith("environment REASOND__REASONING__")


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("SERVER__DRAIN_DELAY_S", "3", "server.drain_delay_s", 3.0),
        ("SERVER__DRAIN_DELAY_S", "0.5", "server.drain_delay_s", 0.5),
        ("SERVER__MAX_JSONRPC_BATCH", "7", "server.max_jsonrpc_batch", 7),
        ("SERVER__REFLECTION", "false", "server.reflection", False),
        ("SERVER__REFLECTION", "False", "server.reflection", False),
        ("SERVER__SO_REUSEPORT", "TRUE", "server.so_reuseport", True),
        ("server__tls_client_ca", "", "server.tls_client_ca", ""),
        ("AUTH__ISSUER", "plain text", "auth.issuer", "plain text"),
        ("AUTH__ISSUER", '"quoted"', "auth.issuer", "quoted"),
        ("AUTH__ISSUER", "1.10", "auth.issuer", "1.10"),
        ("AUTH__ISSUER", "true", "auth.issuer", "true"),
        ("AUTH__ISSUER", "2026-11-21", "auth.issuer", "2026-11-21"),
        ("AUTH__ISSUER", "5\n[llm]\nmodel = 'x'", "auth.issuer", "5\n[llm]\nmodel = 'x'"),
        ("AUTH__ISSUER", "'x'\n[llm]\nmodel = 'y'", "auth.issuer", "'x'\n[llm]\nmodel = 'y'"),
        ("AUTH__ISSUER", "[" * 5000, "auth.issuer", None),
        ("REASONING__ENABLED_STRATEGIES", '["a", "b"]', "reasoning.enabled_strategies", ("a", "b")),
        ("REASONING__ENABLED_STRATEGIES", "[]", "reasoning.enabled_strategies", ()),
    ],
)
def test_values_of_the_environment_are_toml_or_plain_text(variable: str, text: str, path: str, value: object) -> None:
    environ = {f"REASOND__{variable}": text}
    if value is None:
        with pytest.raises(SettingsError, match="must have at most 256 characters"):
            load(None, environ)
        return
    found: object = load(None, environ).settings
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_an_unknown_key_names_itself_the_nearest_and_where_it_was_read() -> None:
    assert problems('[server]\ngrcp_address = "x"') == {
        "server.grcp_address": "is no known key; did you mean server.grpc_address? (file given.toml, line 2)"
    }
    assert problems(REASOND__SERVER__TLS_CERT="x") == {
        "server.tls_cert": "is no known key; did you mean server.tls_certificate? "
        "(environment REASOND__SERVER__TLS_CERT)"
    }


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("[sever]\ntls = 'off'", "sever", "did you mean server?"),
        ("[server]\nissuer = 'x'", "server.issuer", "did you mean auth.issuer?"),
        ("[reasoning.performence]\nx = 1", "reasoning.performence", "did you mean reasoning.performance?"),
        (
            "[agents]\nzzz = 1",
            "agents.zzz",
            "known are agents.max_agents, agents.max_agents_per_tenant, agents.max_card_bytes",
        ),
        (
            "zzz = 1",
            "zzz",
            "known are a2a, agents, auth, engine, limits, llm, logs, mcp, metrics, openai, reasoning, repair, ",
        ),
        ("'a.\\nb' = 1", "'a.\\\\nb'", "known sections are"),
    ],
)
def test_every_unknown_key_gets_a_hint(text: str, key: str, hint: str) -> None:
    found = problems(text)
    assert list(found) == [key]
    assert hint in found[key]


def test_a_table_that_is_nowhere_known_is_answered_with_the_sections() -> None:
    found = problems("[[auth.keys]]\nid = 'a'\nqqqqqq = 1")
    assert "known sections are" in found["auth.keys[0].qqqqqq"]


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        "zzz = 1\n[server]\ndrain_delay_s = -1\nreflection = 'yes'\n[store]\nmax_bytes = 0\n",
        REASOND__AGENTS__MAX_AGENTS="many",
    )
    assert set(found) == {
        "zzz",
        "server.drain_delay_s",
        "server.reflection",
        "store.max_bytes",
        "agents.max_agents",
    }
    assert found["server.drain_delay_s"] == "must be at least 0, not -1 (file given.toml, line 3)"
    assert found["agents.max_agents"] == (
        "must be a whole number, not 'many' (environment REASOND__AGENTS__MAX_AGENTS)"
    )


@pytest.mark.parametrize(
    ("text", "key", "description"),
    [
        ("[server]\ndrain_delay_s = 301", "server.drain_delay_s", "must be at most 300, not 301"),
        ("[server]\ndrain_delay_s = nan", "server.drain_delay_s", "must be a finite number, not nan"),
        ("[server]\ndrain_delay_s = true", "server.drain_delay_s", "must be a number, not True"),
        ("[server]\nmax_send_bytes = 1e6", "server.max_send_bytes", "must be a whole number, not 1000000.0"),
        ("[server]\nreflection = 1", "server.reflection", "must be true or false, not 1"),
        ("[server]\ntls = 'on'", "server.tls", "must be one of 'off', 'files' or 'terminated-upstream', not 'on'"),
        ("[server]\ntls_certificate = 5", "server.tls_certificate", "must be a string, not 5"),
        ("server = 5", "server", "is a table; set the keys in it, not 5"),
        ("[auth]\nissuer = ''", "auth.issuer", "must not be empty, not ''"),
        ("[reasoning]\nenabled_strategies = 'x'", "reasoning.enabled_strategies", "must be a list, not 'x'"),
        ("[reasoning]\nenabled_strategies = ['a', 'a']", "reasoning.enabled_strategies", "not name a strategy twice"),
        ("[reasoning]\nenabled_strategies = ['A']", "reasoning.enabled_strategies[0]", "must match ^[a-z_][a-z0-9_]*$"),
        ("[reasoning]\ndefault_strategy = 'A b'", "reasoning.default_strategy", "must match"),
        ("[reasoning]\nstrategies = 5", "reasoning.strategies", "must be a table, not 5"),
        ("[reasoning.strategies]\nx = 5", "reasoning.strategies.x", "must be a table, not 5"),
        ("[reasoning.strategies.X]\n", "reasoning.strategies.X", "is no name of a strategy"),
        (
            "[reasoning.strategies.x]\nchunk_size = 5",
            "reasoning.strategies.x.chunk_size",
            "is no known key; did you mean default_chunk_size?",
        ),
        (
            "[reasoning.strategies.x]\ndefault_a = [1]",
            "reasoning.strategies.x.default_a",
            "must be a string, a finite number, true or false",
        ),
        (
            "[reasoning.strategies.x]\ndefault_a = inf",
            "reasoning.strategies.x.default_a",
            "must be a string, a finite number, true or false",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(text: str, key: str, description: str) -> None:
    found = problems(text)
    assert list(found) == [key]
    assert description in found[key]
    place = "" if "=" not in text else f", line {1 + text[: text.index('=')].count(chr(10))}"
    assert found[key].endswith(f"(file given.toml{place})") or "[0]" in key or text.endswith("]\n")


@pytest.mark.parametrize(
    ("text", "key", "hint", "line"),
    [
        ("[server]\n\ngrpc_listen = 'x'", "server.grpc_listen", "did you mean server.grpc_address?", 3),
        ("[server]\nhttp_bind = 'x'", "server.http_bind", "did you mean server.http_address?", 2),
        ("grpc_listen = 'x'", "grpc_listen", "did you mean server.grpc_address?", 1),
        ("[lmm]\nmodel = 'x'", "lmm", "did you mean llm?", 2),
        ("[sever]\n'tls' = 'off'", "sever", "did you mean server?", 2),
        ("[llm]\nprovider = 'ollama'", "llm.provider", "are 'openai', with their base_url", 2),
        (
            "[reasoning]\ndefault_strategy = 'chain-of-thought'",
            "reasoning.default_strategy",
            "did you mean 'chain_of_thought'?",
            2,
        ),
        (
            "[reasoning]\n# all\nenabled_strategies = ['TreeOfThought']",
            "reasoning.enabled_strategies[0]",
            "did you mean 'tree_of_thought'?",
            3,
        ),
        (
            "[reasoning.strategies.Self-Refine]\ndefault_rounds = 1",
            "reasoning.strategies.Self-Refine",
            "did you mean 'self_refine'?",
            2,
        ),
        (
            "[reasoning]\nprogram_environment = 'x = 1'\n[reasoning.strategies.react]\nx = 1",
            "reasoning.strategies.react.x",
            "did you mean default_x?",
            4,
        ),
    ],
)
def test_what_people_mistake_a_key_or_a_name_for_is_told_with_its_line(
    text: str, key: str, hint: str, line: int
) -> None:
    found = problems(text)
    assert hint in found[key]
    assert found[key].endswith(f"(file given.toml, line {line})")


def test_several_wrong_keys_of_one_strategy_are_all_named() -> None:
    found = problems("[reasoning.strategies.x]\na = 1\nb = 2\n")
    assert set(found) == {"reasoning.strategies.x.a", "reasoning.strategies.x.b"}


def test_a_section_is_no_value_for_the_environment() -> None:
    assert "is a table" in problems(REASOND__SERVER="{tls = 'off'}")["server"]
    assert "is no known key" in problems(REASOND____TLS="x")["''"]


def test_a_part_of_a_value_is_refused() -> None:
    keys = "[[auth.keys]]\nid = 'a'\nsecret_env = 'S'\n"
    found = problems(keys, S="0f9c1d7ab36e48e5a2d4b8c7f6019e3d", REASOND__AUTH__KEYS__0__SECRET="hidden-value")
    assert found == {
        "auth.keys.0.secret": "is within a value that is no table; set that value as a whole "
        "(environment REASOND__AUTH__KEYS__0__SECRET)"
    }
    assert "must be a list" in problems(REASOND__AUTH__KEYS__0__SECRET="hidden-value")["auth.keys"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[server]\ntls = \n", "in line 2, column 7: this is not valid TOML"),
        (b"[server]\ntls =", "in line 2, at its end: this is not valid TOML"),
        (b"[server]\n[server]\n", "in line 2, column 8: a key or table is defined twice"),
        (b"a = 1\na = 2\n", "in line 2, column 6: a key or table is defined twice"),
        (b"[auth]\n\n# \xff\n", "is not UTF-8 text in line 3"),
        (b"#" * (1024 * 1024 + 1), "has more than 1048576 bytes"),
        (b"a = " + b"[" * 100_000, "this is not valid TOML"),
        (b"a" + b".a" * 100 + b" = 1", "nests tables more than 16 deep"),
        (b"a = " + b"9" * 4301, "a whole number has more than 4300 digits"),
    ],
)
def test_a_file_that_is_no_toml_names_itself_and_the_line(content: bytes, message: str) -> None:
    Path("bad.toml").write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        load(Path("bad.toml"), {})
    assert "'bad.toml'" in caught.value.message
    assert message in caught.value.message
    assert caught.value.remedy


def test_a_byte_order_mark_and_foreign_line_ends_are_taken() -> None:
    Path("windows.toml").write_bytes(b"\xef\xbb\xbf[auth]\r\nissuer = 'x'\r\n")
    assert load(Path("windows.toml"), {}).settings.auth.issuer == "x"


def test_a_file_that_is_not_there_is_no_reason_to_go_on_without() -> None:
    with pytest.raises(SettingsError, match=r"'gone\.toml' does not exist"):
        load(Path("gone.toml"), {})
    with pytest.raises(SettingsError, match=r"'gone\.toml' does not exist"):
        load(None, {"REASOND_CONFIG": "gone.toml"})


def test_a_folder_is_no_file(folder: Path) -> None:
    with pytest.raises(SettingsError, match="is a directory"):
        load(folder, {})
    Path("plain").write_text("", encoding="utf-8")
    with pytest.raises(SettingsError, match="cannot be read"):
        load(Path("plain/config.toml"), {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_says_so() -> None:
    Path("mine.toml").touch(mode=0o000)
    with pytest.raises(SettingsError, match="may not be read"):
        load(Path("mine.toml"), {})


@pytest.mark.parametrize(
    "text",
    [
        "[[auth.keys]]\nid = 'a'\nsecret = 'sesame-open'",
        "[[auth.keys]]\nid = 'a'\nsecret = ['sesame-open']",
        "[[auth.keys]]\nid = 'a'\nsecret_env = 'sesame-open'",
        "[[auth.keys]]\nid = 'a'\nalgorithm = 'sesame-open'",
        "[auth]\nkeys = 'sesame-open'",
        "[auth]\nsecret = 'sesame-open'",
        "[llm]\nprovider = 'demo'\napi_key_env = 'sesame-open'",
        "[llm]\nprovider = 'demo'\nbase_url = 'https://user:sesame-open@host/'",
        "[auth]\nkeys = [{ id = 'a', secret = 'sesame-open\n",
    ],
)
def test_secrets_never_stand_in_errors(text: str) -> None:
    Path("secret.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load(Path("secret.toml"), {})
    assert "sesame" not in f"{caught.value.full_message} {caught.value.violations!r} {caught.value.metadata}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    variable = {"REASOND__AUTH__KEYS": "[{ id = 'a', secret = 'sesame-open' }]"}
    with pytest.raises(SettingsError) as caught:
        load(None, variable)
    assert "sesame" not in caught.value.full_message


def test_secrets_never_stand_in_what_was_loaded() -> None:
    secret = "0f9c1d7ab36e48e5a2d4b8c7f6019e3d"
    loaded = from_text(f"[[auth.keys]]\nid = 'a'\nsecret = '{secret}'")
    assert loaded.auth_keys[0].secret.get_secret_value() == secret
    assert secret not in repr(loaded)
    assert secret not in repr(loaded.settings)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.app import Server
from reasond_server.cli.commands import config as config_commands
from reasond_server.config import load
from reasond_server.errors.base import SettingsError
from tests.unit.base.test_plugins import install

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

KEY = "keys = [{ id = 'one', secret = 'kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU' }]"
PORTS = "[server]\ngrpc_address = '127.0.0.1:0'\nhttp_address = '127.0.0.1:0'\n"
MODEL = "[llm]\nprovider = 'openai'\nmodel = 'gpt-4o'\nbase_url = 'http://127.0.0.1:9/v1'\n"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a configuration file, next to an invalid PEM file and an open folder."""
    (tmp_path / "nonsense.pem").write_text("nonsense", encoding="utf-8")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text.replace("HERE", str(tmp_path)), encoding="utf-8")
        return path

    return write


REFUSED = {
    "windows that no carryover fits into": (
        (
            f"[auth]\n{KEY}\n{PORTS}\n[reasoning.strategies.bounded_context]\ndefault_chunk_size = 2048\n"
            "default_carryover_size = 4096"
        ),
        r"bounded_context\.default_chunk_size must leave room beside carryover_size 4096",
    ),
    "tiktoken without its ranks": (f"[auth]\n{KEY}\n{PORTS}{MODEL}count = 'tiktoken'", "no ranks of 'gpt-4o'"),
    "a tokenizer that is none": (
        f"[auth]\n{KEY}\n{PORTS}{MODEL}count = 'tokenizer'\ntokenizer_file = 'nonsense.pem'",
        "is no tokenizer file",
    ),
    "a server that does not count": (f"[auth]\n{KEY}\n{PORTS}{MODEL}count = 'server'", "knows no place where it"),
    "a mode whose backend cannot count": (
        (
            f"[auth]\n{KEY}\n{PORTS}{MODEL}\n[llm.backends.writer]\nmodel = 'w'\nbase_url = 'http://127.0.0.1:9/v1'\n"
            "count = 'server'\napi_key_env = ''\n[turns.modes.write]\nbackend = 'writer'"
        ),
        "knows no place where it",
    ),
    "a webhook to an address that is refused": (
        (
            f"[auth]\n{KEY}\n{PORTS}\n[webhooks.endpoints.desk]\nurl = 'http://desk.example.com/'\n"
            "secrets = ['whsec_YW4tZXhhbXBsZS1yZXBsYWNlLWl0LW5vdyE=']"
        ),
        r"webhooks\.endpoints\.desk\.url is refused: the URL must begin with https",
    ),
    "webhooks from memory": (
        (
            f"[auth]\n{KEY}\n{PORTS}\n[webhooks.endpoints.desk]\nurl = 'https://desk.example.com/'\n"
            "secrets = ['whsec_YW4tZXhhbXBsZS1yZXBsYWNlLWl0LW5vdyE=']"
        ),
        "webhooks.endpoints: needs a store that outlives the process",
    ),
    "a context provider that is not installed": (
        f"[auth]\n{KEY}\n{PORTS}\n[turns]\ncontext_providers = ['weather']",
        r"\[turns\] context_providers names 'weather', which is not installed",
    ),
    "a critic that is not installed": (
        f"[auth]\n{KEY}\n{PORTS}\n[repair]\nenabled = true\ncritics = ['style']",
        r"\[repair\] critics names 'style', which is not installed",
    ),
    "a public key that is none": (
        f"[auth]\nkeys = [{{ id = 'one', algorithm = 'RS256', public_key_file = 'nonsense.pem' }}]\n{PORTS}",
        r"auth\.keys\[0\]\.public_key_file",
    ),
    "a role that grants what is not": (
        f"[auth]\n{KEY}\n{PORTS}\n[auth.roles.solver]\npermissions = ['reasoning:exekute']",
        r"auth\.roles\.solver\.permissions",
    ),
    "a hash that is none": (
        f"[auth]\n{KEY}\n{PORTS}\n[auth.agents.crawler]\nsecret_hash = 'sesame'",
        r"auth\.agents\.crawler\.secret_hash",
    ),
    "agents without a key that signs": (
        f"[auth]\njwks_url = 'https://issuer.example/jwks'\n{PORTS}\n[auth.agents.crawler]\nsecret_hash = 'x'",
        "no HS256 key to sign",
    ),
    "an address of Redis that is none": (
        f"[auth]\n{KEY}\n{PORTS}\n[limits]\nstorage = 'redis'\nredis_url = 'nowhere'",
        r"limits\.redis_url",
    ),
    "TLS files that are none": (
        f"[auth]\n{KEY}\n{PORTS}tls = 'files'\ntls_certificate = 'HERE/nonsense.pem'\ntls_private_key = 'HERE/it.pem'",
        "TLS files",
    ),
    "a socket in a folder of everybody": (
        f"[auth]\n{KEY}\n{PORTS}grpc_unix_socket = 'HERE/open/r.sock'",
        "Everybody on this machine can enter",
    ),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=list(REFUSED))
async def test_config_check_refuses_what_serve_refuses(written: Callable[[str], Path], text: str, words: str) -> None:
    path = written(f"{text}\n[store]\nurl = 'memory:'\n")
    environ: Mapping[str, str] = {}
    with pytest.raises(SettingsError) as served:
        await Server(load(path, environ), environ=environ).start()
    with pytest.raises(SettingsError, match=words):
        config_commands.check(path, environ=environ, is_dev=False)
    assert served.value.message


PLUGINS = {
    "a strategy beside a built-in one": (
        "reasond.strategies",
        ("react",),
        "[reasoning]\nenabled_strategies = ['react', 'chain_of_thought']",
        r"\[reasoning\] enabled_strategies names 'react'.* by .*first 1 \(first:Made\)",
    ),
    "two strategies": (
        "reasond.strategies",
        ("mine", "mine"),
        "[reasoning]\nenabled_strategies = ['mine', 'chain_of_thought']",
        r"enabled_strategies names 'mine', .*: by (?=.*first 1 \(first:Made\))(?=.*second 1 \(second:Made\))",
    ),
    "a tool beside a built-in one": (
        "reasond.tools",
        ("calculator",),
        "[tools]\nenabled = ['calculator']",
        r"\[tools\] enabled names 'calculator'.*: by (?=.*first 1 \(first:Made\))(?=.*reasond-server .*Calculator\))",
    ),
    "a tool that is named as one that settings make": (
        "reasond.tools",
        ("http_get",),
        "[tools]\nenabled = ['http_get']",
        r"\[tools\] enabled names 'http_get', which is built in; it is offered by first 1 \(first:Made\) too",
    ),
    "a tool beside the reader of results": (
        "reasond.tools",
        ("read_tool_result",),
        "[tools]\nenabled = ['read_tool_result']",
        r"'read_tool_result', which is built in; it is offered by first 1",
    ),
    "two context providers": (
        "reasond.context_providers",
        ("weather", "weather"),
        "[turns]\ncontext_providers = ['weather']",
        r"\[turns\] context_providers names 'weather', .* by (?=.*first 1 )(?=.*second 1 )",
    ),
    "a context provider beside a built-in one": (
        "reasond.context_providers",
        ("bootstrap",),
        "[turns]\ncontext_providers = ['bootstrap']",
        r"'bootstrap', which is built in; it is offered by first 1 \(first:Made\) too",
    ),
    "two critics": (
        "reasond.critics",
        ("style", "style"),
        "[repair]\nenabled = true\ncritics = ['style']",
        r"\[repair\] critics names 'style', .* by (?=.*first 1 )(?=.*second 1 )",
    ),
    "a critic beside a built-in one": (
        "reasond.critics",
        ("lint",),
        "[repair]\nenabled = true\ncritics = ['lint']",
        r"'lint', which is built in; it is offered by first 1 \(first:Made\) too",
    ),
}


@pytest.mark.parametrize(("group", "names", "text", "words"), PLUGINS.values(), ids=list(PLUGINS))
async def test_an_installed_package_replaces_nothing_silently(
    written: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    names: tuple[str, ...],
    text: str,
    words: str,
) -> None:
    for package, name in zip(("first", "second"), names, strict=False):
        install(tmp_path / "packages", package, f"{name} = {package}:Made", group=group)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    path = written(f"[auth]\n{KEY}\n{PORTS}{text}\n[store]\nurl = 'memory:'\n")
    with pytest.raises(SettingsError, match=words):
        await Server(load(path, {}), environ={}).start()
    with pytest.raises(SettingsError, match=words):
        config_commands.check(path, environ={}, is_dev=False)


def test_mistakes_of_every_kind_are_named_at_once(written: Callable[[str], Path]) -> None:
    path = written(
        "[server]\ngrpc_address = '0.0.0.0:50051'\ndrain_delay_s = 'soon'\n"
        "[auth]\nkeys = [{ id = 'one', secret_env = 'NOT_SET' }]\n"
        "[auth.roles.solver]\npermissions = ['reasoning:exekute']\n"
        f"{MODEL}count = 'tiktoken'\n"
        "[limits]\nstorge = 'memory'\n"
        "[reasoning]\nenabled_strategies = ['astrology', 'chain_of_thought']\n"
        "[reasoning.strategies.chain_of_thought]\ndefault_max_tokens = 700\n"
        "max_allowed_temprature = 1\ndefault_tempreture = 1\n"
        "[tools]\nenabled = ['calculater', 'clock']\n"
    )
    with pytest.raises(SettingsError) as refused:
        config_commands.check(path, environ={}, is_dev=False)
    head, *lines = refused.value.message.splitlines()
    assert head == "The configuration has 11 problems:"
    for words in (
        f"server.drain_delay_s: must be a number, not 'soon' (file {path}, line 3)",
        "server.grpc_address: '0.0.0.0:50051' can be reached from other machines",
        "auth.keys[0].secret_env: names the environment variable NOT_SET",
        "auth.roles.solver.permissions: grants 'reasoning:exekute'",
        "there are no ranks of 'gpt-4o' on this machine",
        "limits.storge: is no known key; did you mean limits.storage?",
        "[reasoning] enabled_strategies names 'astrology'",
        "reasoning.strategies.chain_of_thought.max_allowed_temprature: is not known",
        "reasoning.strategies.chain_of_thought.default_tempreture: is not known",
        "'calculater'",
        "'clock'",
    ):
        assert sum(words in line for line in lines) == 1, words


def test_a_strategy_that_is_named_twice_or_wrongly_hides_nothing_else(written: Callable[[str], Path]) -> None:
    path = written(
        f"[auth]\n{KEY}\n[reasoning]\ndefault_strategy = 'reakt'\n"
        "enabled_strategies = ['react', 'react', 'best_of_n', 'Tree', 'bounded_context']\n"
        "[reasoning.strategies.react]\ndefault_max_iteration = 3\nmax_allowed_iterations = 5000\nmax_tokens = 5\n"
        "[reasoning.strategies.bounded_context]\ndefault_chunk_size = 2048\ndefault_carryover_size = 4096\n"
        "[reasoning.strategies.best_of_n]\ndefault_samples = 41\nmax_allowed_temperature = 'x'\n"
    )
    with pytest.raises(SettingsError) as refused:
        config_commands.check(path, environ={}, is_dev=False)
    fields = [one.field.removeprefix("reasoning.") for one in refused.value.violations]
    assert sorted(fields) == [
        "enabled_strategies",
        "enabled_strategies[3]",
        "strategies.best_of_n.default_samples",
        "strategies.best_of_n.max_allowed_temperature",
        "strategies.bounded_context.default_chunk_size",
        "strategies.react.default_max_iteration",
        "strategies.react.max_allowed_iterations",
        "strategies.react.max_tokens",
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (f"[auth]\n{KEY}\n[server]\ntls = 'fils'\ngrpc_address = '0.0.0.0:1'\ntls_certificate = 'a'", "server.tls"),
        ("[llm]\nprovider = 'opnai'\nmodel = 'x'", "llm.provider"),
        ("[llm]\nprovder = 'openai'\nmodel = 'x'", "llm.provder"),
        ("[auth]\nkyes = []", "auth.kyes"),
        ("[limits]\nstorage = 'reddis'\nredis_url = 'redis://h'", "limits.storage"),
        ("[reasoning]\nenabled_strategies = 5\ndefault_strategy = 'mine'", "reasoning.enabled_strategies"),
        ("server = 5", "server"),
        ("[turns.modes.write]\nbackend = 'writer'", "turns.modes.write.backend"),
        (f"[auth]\n{KEY}\n[auth.agents.x]\nsecret = 'a'", "auth.agents.x.secret"),
    ],
)
def test_a_mistake_is_not_told_again_as_what_would_follow_from_it(
    written: Callable[[str], Path], text: str, field: str
) -> None:
    path = written(text)
    with pytest.raises(SettingsError) as refused:
        config_commands.check(path, environ={}, is_dev="[auth]" not in text)
    assert {line.strip().partition(":")[0] for line in refused.value.message.splitlines()[1:]} <= {
        field,
        "auth.agents.x.secret_hash",
    }

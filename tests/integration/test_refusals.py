"""`reasond serve` refuses a forbidden configuration before it prints a word and before it listens."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.forking import run_forked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


GOOD_KEY = "a-key-of-this-test-that-nobody-guesses-71f0"
PASSWORD = "hunter2-and-some-more"
KEYS = 'keys = [{ id = "main", secret_env = "THE_KEY" }]'
HASH = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$" + "a" * 43
AGENT = f'[auth.agents.crawler]\nsecret_hash = "{HASH}"\n'


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A configuration by its sections, and the parts of its refusal: the key, the value, the remedy."""

    says: tuple[str, ...]
    server: str = ""
    auth: str = KEYS
    store: str = 'url = "memory:"'
    more: str = ""


REFUSED = {
    "no key": Refused(auth="", says=("auth.keys: is empty", "REASOND_SIGNING_KEY", "--dev")),
    # Tokens are always checked: without a key nothing is served, not even reflection.
    "reflection and no key": Refused(
        server="reflection = true", auth="", says=("auth.keys: is empty", "REASOND_SIGNING_KEY", "--dev")
    ),
    "a provider whose key is not set": Refused(
        more='[llm]\nprovider = "openai"\nmodel = "heron"', says=("OPENAI_API_KEY", "not set")
    ),
    "a variable of a provider that is not set": Refused(
        more='[llm]\nprovider = "openai"\nmodel = "heron"\napi_key_env = "NOT_SET"',
        says=("llm.api_key_env", "NOT_SET", "not set"),
    ),
    "a Unix socket in a folder that is not there": Refused(
        server='grpc_unix_socket = "/nowhere/reasond.sock"', says=("'/nowhere'", "does not exist", "0700")
    ),
    "a Unix socket in a folder that others enter": Refused(
        server='grpc_unix_socket = "/usr/reasond.sock"', says=("'/usr'", "Everybody on this machine", "0700")
    ),
    "a Unix socket by a relative path": Refused(
        server='grpc_unix_socket = "reasond.sock"', says=("'reasond.sock'", "absolute path", "grpc_unix_socket")
    ),
    "a default key": Refused(
        auth='keys = [{ id = "main", secret = "changeme" }]', says=("auth.keys[0].secret", "8 bytes", "make one with")
    ),
    "a repetitive key": Refused(
        auth=f'keys = [{{ id = "main", secret = "{"ab" * 20}" }}]',
        says=("auth.keys[0].secret", "repetitive", "make one"),
    ),
    "a variable that is not set": Refused(
        auth='keys = [{ id = "main", secret_env = "NOT_SET" }]', says=("auth.keys[0].secret_env", "NOT_SET", "not set")
    ),
    "a secret that cannot be read": Refused(
        auth='keys = [{ id = "main", secret_file = "nowhere.key" }]',
        says=("auth.keys[0].secret_file", "must exist and be readable"),
    ),
    "a public key that cannot be read": Refused(
        auth='keys = [{ id = "main", algorithm = "RS256", public_key_file = "nowhere.pem" }]',
        says=("auth.keys[0].public_key_file", "must exist and be readable"),
    ),
    "a public key that is none": Refused(
        auth='keys = [{ id = "main", algorithm = "RS256", public_key_file = "bad.pem" }]',
        says=("auth.keys[0].public_key_file", "Name a PEM file of a public key for RS256"),
    ),
    "two keys of one name": Refused(
        auth='keys = [{ id = "main", secret_env = "THE_KEY" }, { id = "main", secret_env = "THE_KEY" }]',
        says=("auth.keys[1].id", "'main'", "another key"),
    ),
    "an unknown key": Refused(
        server='grpc_adress = "x"', says=("server.grpc_adress", "did you mean server.grpc_address")
    ),
    "an unknown section": Refused(more="[sever]\nx = 1", says=("sever: is no known key", "did you mean server?")),
    "a wrong type": Refused(
        server='max_receive_bytes = "many"', says=("server.max_receive_bytes", "'many'", "must be a whole number")
    ),
    "a value out of range": Refused(
        server="max_receive_bytes = 1", says=("server.max_receive_bytes", "at least 65536", "1")
    ),
    "an address for everybody without TLS": Refused(
        server='admin_address = ""\npublic_grpc_url = ""',
        more="",
        auth=KEYS,
        says=("server.grpc_address", "0.0.0.0", "tls"),
    ),
    "TLS without files": Refused(
        server='tls = "files"', says=("server.tls_certificate", "server.tls_private_key", "needs it")
    ),
    "a certificate that cannot be read": Refused(
        server='tls = "files"\ntls_certificate = "nowhere.pem"\ntls_private_key = "nowhere.key"',
        says=("tls_certificate", "'nowhere.pem'", "No such file"),
    ),
    "a store of another kind": Refused(
        store=f'url = "mysql://ann:{PASSWORD}@host/db"', says=("store.url", "'mysql://***@host/db'", "postgresql://")
    ),
    "a database that is not there": Refused(
        store=f'url = "postgresql://ann:{PASSWORD}@127.0.0.1:1/db"',
        says=("[store] url", "127.0.0.1", "Check that it runs"),
    ),
    "a folder that cannot be made": Refused(
        store='data_dir = "/proc/nowhere"', says=("data_dir", "/proc/nowhere", "Let the server's user write there")
    ),
    "an address of Redis that is none": Refused(
        more=f'[limits]\nrequests_per_minute = 1\nstorage = "redis"\nredis_url = "http://ann:{PASSWORD}@x"',
        says=("limits.redis_url", "redis://127.0.0.1:6379/0"),
    ),
    "no address of Redis": Refused(more='[limits]\nstorage = "redis"', says=("limits.redis_url", "is empty", "redis")),
    "a key set in plain text": Refused(
        auth=f'jwks_url = "http://ann:{PASSWORD}@login.example.org/k"',
        says=("auth.jwks_url", "http://***@login.example.org/k", 'must start with "https://"'),
    ),
    "a hash that is none": Refused(
        auth=f'{KEYS}\nagents = {{ crawler = {{ secret_hash = "$argon2id$nonsense" }} }}',
        says=("auth.agents.crawler.secret_hash", "reasond secret-hash"),
    ),
    "agents without a key that signs": Refused(
        auth='jwks_url = "https://login.example.org/k"', more=AGENT, says=("auth.agents", "auth.keys", "HS256")
    ),
    "one agent twice": Refused(more=AGENT + AGENT, says=("defined twice", "config.toml", "line")),
    "an unknown permission": Refused(
        more='[auth.roles.solver]\npermissions = ["reasoning:exceute"]',
        says=("auth.roles.solver.permissions", "'reasoning:exceute'", "did you mean 'reasoning:execute'"),
    ),
    "an unknown strategy of a role": Refused(
        more='[auth.roles.solver]\npermissions = ["reasoning:execute"]\nstrategies = ["chain_of_thougt"]',
        says=("auth.roles.solver.strategies", "'chain_of_thougt'", "did you mean 'chain_of_thought'"),
    ),
    "an unknown role of an agent": Refused(
        more=f'{AGENT}roles = ["slover"]', says=("auth.agents.crawler.roles", "'slover'", "not known here")
    ),
    "a tenant that is a subject's own": Refused(
        more=f'{AGENT}tenant = "sub:ann"', says=("auth.agents.crawler.tenant", "'sub:ann'", "'sub:'")
    ),
    "no TOML": Refused(more="[llm", says=("config.toml", "line", "https://toml.io")),
}


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Occupied ports: a server that opened one before its refusal would report the port instead."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield taken[0].getsockname()[1], taken[1].getsockname()[1]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_must_not_be_served_is_refused_with_its_key_its_value_and_the_way_out(
    name: str, tmp_path: Path, ports: tuple[int, int]
) -> None:
    case = REFUSED[name]
    host = "0.0.0.0" if "everybody" in name else "127.0.0.1"
    addresses = f'grpc_address = "{host}:{ports[0]}"\nhttp_address = "127.0.0.1:{ports[1]}"'
    text = f"[server]\n{addresses}\n{case.server}\n[auth]\n{case.auth}\n[store]\n{case.store}\n{case.more}\n"
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    (tmp_path / "bad.pem").write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", encoding="ascii")

    environ = {"PATH": os.environ["PATH"], "THE_KEY": GOOD_KEY}
    command = ("serve", "--config", "config.toml", "--ready-file", "ready.json")
    done = run_forked(*command, environ=environ, folder=tmp_path)
    told = done.stderr
    assert (done.returncode, done.stdout) == (2, "")
    assert told.startswith("error: ")
    assert [part for part in case.says if part not in told] == []
    assert "Cannot listen" not in told
    for word in ("Traceback", "reasond is ready", PASSWORD, GOOD_KEY, "abab"):
        assert word not in told
    assert not (tmp_path / "ready.json").exists()

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import jwt
import pytest

from reasond_server.access.agent_secrets import hash_secret
from reasond_server.access.api_keys import create_key, hash_key
from reasond_server.assembly.verifiers import build_agent_tokens, build_minter, build_verification
from reasond_server.config import load
from reasond_server.config.api_key_file import ApiKeyRow, changing
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.base import SettingsError
from tests.unit.access.parts import MAIN, NOW, claims, sign
from tests.unit.access.test_token_keys import PRIVATE, jwk_of, pem_of
from tests.unit.access.test_token_keys_jwks import document
from tests.unit.access.test_token_keys_jwks_http import answering, ok

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.config import LoadedSettings


HASH = hash_secret("the secret of the crawler")
SECRET = "9fJ2kPq7Xw4LmZt8Rb3NcYv6Hs1Gd5Ue"


def now() -> datetime:
    return NOW


def load_text(tmp_path: Path, text: str) -> LoadedSettings:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, {})


async def test_a_public_key_from_a_file_verifies_and_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "issuer.pem").write_bytes(pem_of(PRIVATE["ES256"]))
    text = '[auth]\nkeys = [{ id = "one", algorithm = "ES256", public_key_file = "issuer.pem" }]\n'
    verification = build_verification(load_text(tmp_path, text), dev=False, now=now)
    assert verification.signing is None
    token = jwt.encode(claims(), PRIVATE["ES256"], algorithm="ES256", headers={"kid": "one"})
    assert (await verification.verifier.verify(token)).subject == "alice"
    await verification.aclose()


def test_a_public_key_that_does_not_fit_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "issuer.pem").write_bytes(pem_of(PRIVATE["ES256"]))
    text = '[auth]\nkeys = [{ id = "one", algorithm = "RS256", public_key_file = "issuer.pem" }]\n'
    with pytest.raises(SettingsError, match=r"auth.keys\[0\].public_key_file names is no RSA key"):
        build_verification(load_text(tmp_path, text), dev=False, now=now)


@pytest.mark.parametrize(
    ("key", "field", "reason"),
    [
        ('algorithm = "RS256"', "auth.keys[0].public_key_file", "is empty, but RS256 needs it"),
        ('algorithm = "RS256", secret_env = "S"', "auth.keys[0].secret_env", "has no effect with RS256"),
        ('secret_env = "S", public_key_file = "x"', "auth.keys[0].public_key_file", "has no effect with HS256"),
        ('algorithm = "RS256", public_key_file = "gone"', "auth.keys[0].public_key_file", "cannot be read"),
        ('algorithm = "none"', "auth.keys[0].algorithm", '"HS256"'),
    ],
)
def test_a_key_without_what_it_needs_names_its_setting(tmp_path: Path, key: str, field: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_text(tmp_path, f'[auth]\nkeys = [{{ id = "one", {key} }}]\n')
    assert field in caught.value.message
    assert reason.strip('"') in caught.value.message


@pytest.mark.parametrize("url", ["http://issuer.example/keys", "https://user:pass@issuer.example/", "ftp://x/", "x"])
def test_keys_come_over_tls_or_from_this_machine(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match=r"auth\.jwks_url"):
        load_text(tmp_path, f'[auth]\njwks_url = "{url}"\n')


async def test_a_key_set_serves_beside_the_keys_of_the_configuration(tmp_path: Path) -> None:
    async with answering(ok(document(jwk_of("RS256", kid="theirs")))) as (url, _):
        text = f'[auth]\njwks_url = "{url}"\nkeys = [{{ id = "main", secret = "{SECRET}" }}]\n'
        verification = build_verification(load_text(tmp_path, text), dev=False, now=now)
        theirs = jwt.encode(claims(), PRIVATE["RS256"], algorithm="RS256", headers={"kid": "theirs"})
        assert (await verification.verifier.verify(theirs)).subject == "alice"
        assert verification.signing is not None
        ours = sign(claims(), verification.signing, headers={"kid": "main"})
        assert (await verification.verifier.verify(ours)).subject == "alice"
        # A secret is never looked up in the key set, and a key of the set is never looked up among the secrets.
        with pytest.raises(TokenInvalidError, match="algorithm that is not accepted"):
            await verification.verifier.verify(sign(claims(), MAIN, headers={"kid": "theirs"}))
        await verification.aclose()


async def test_who_is_revoked_is_taken_over_from_new_settings(tmp_path: Path) -> None:
    verification = build_verification(load_text(tmp_path, "[auth]\n"), dev=True, now=lambda: datetime.now(UTC))
    assert verification.signing is not None
    current = {"iat": int(datetime.now(UTC).timestamp()), "exp": int(datetime.now(UTC).timestamp()) + 60}
    token = sign(claims(**current), verification.signing, headers={"kid": "ephemeral"})
    await verification.verifier.verify(token)
    verification.reload(load_text(tmp_path, '[auth]\ninactive_subjects = ["alice"]\n'))
    with pytest.raises(TokenInvalidError, match="no longer active"):
        await verification.verifier.verify(token)


async def test_only_a_list_that_a_file_states_lets_anybody_in_again(tmp_path: Path) -> None:
    """An editor or a deployment may leave the file empty or truncated, for a moment or permanently."""
    peer = "spiffe://example.org/a"
    text = (
        '[server]\ntls = "files"\ntls_certificate = "c"\ntls_private_key = "k"\ntls_client_ca = "ca"\n'
        '[auth]\ntrust_domain = "example.org"\npeers = [{ path = "/a" }]\n'
        f'inactive_subjects = ["Alice Smith", "{peer}"]\nrevoked_ids = ["t 1"]\n'
    )
    verification = build_verification(load_text(tmp_path, text), dev=True, now=lambda: datetime.now(UTC))
    assert verification.signing is not None
    current = {"iat": int(datetime.now(UTC).timestamp()), "exp": int(datetime.now(UTC).timestamp()) + 60}
    by_subject = sign(claims(sub="Alice Smith", **current), verification.signing, headers={"kid": "ephemeral"})
    by_id = sign(claims(jti="t 1", **current), verification.signing, headers={"kid": "ephemeral"})
    for left in (text, "", "[auth]\n", "[server]\nreflection = true\n"):
        verification.reload(load_text(tmp_path, left))
        with pytest.raises(TokenInvalidError, match="no longer active"):
            await verification.verifier.verify(by_subject)
        with pytest.raises(TokenInvalidError, match="has been revoked"):
            await verification.verifier.verify(by_id)
        assert verification.peers.recognise([peer]) is None
    verification.reload(load_text(tmp_path, "[auth]\nrevoked_ids = []\ninactive_subjects = []\n"))
    await verification.verifier.verify(by_subject)
    await verification.verifier.verify(by_id)
    assert verification.peers.recognise([peer]) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[auth.roles.solver]\npermissions = ["reasoning:exectue"]',
            "auth.roles.solver.permissions grants 'reasoning:exectue', which is not known here",
        ),
        ('[auth.roles.solver]\nstrategies = ["chain_of_thougt"]', "did you mean 'chain_of_thought'?"),
        (f'[auth.agents.crawler]\nsecret_hash = "{HASH}"\nroles = ["solvr"]\n[auth.roles.solver]', "'solver'"),
        (f'[auth.agents.crawler]\nsecret_hash = "{HASH}"\npermissions = ["root"]', "auth.agents.crawler.permissions"),
    ],
)
def test_grants_of_what_does_not_exist_are_refused_at_start(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build_verification(load_text(tmp_path, text), dev=True, now=now)
    assert said in caught.value.message


def test_agents_need_a_key_that_signs_and_a_hash_that_is_one(tmp_path: Path) -> None:
    auth = load_text(tmp_path, f'[auth.agents.crawler]\nsecret_hash = "{HASH}"\n').settings.auth
    with pytest.raises(SettingsError, match="no HS256 key"):
        build_agent_tokens(auth, signing=None, now=now)
    plain = load_text(tmp_path, '[auth.agents.crawler]\nsecret_hash = "my secret"\n').settings.auth
    with pytest.raises(SettingsError, match=r"auth\.agents\.crawler\.secret_hash is no argon2id hash") as caught:
        build_agent_tokens(plain, signing=MAIN, now=now)
    assert "my secret" not in caught.value.full_message
    assert build_agent_tokens(load_text(tmp_path, "").settings.auth, signing=MAIN, now=now) is None


async def test_minted_tokens_name_their_claims_as_the_server_reads_them(tmp_path: Path) -> None:
    text = '[auth]\npermissions_claim = "scope"\ntenant_claim = "org"\nrequired_type = "at+jwt"\n'
    found = load_text(tmp_path, text)
    verification = build_verification(found, dev=True, now=now)
    assert verification.signing is not None
    token = build_minter(found.settings.auth, verification.signing).mint(
        subject="alice", permissions=["admin"], tenant="acme", lifetime_s=60, now=NOW
    )
    principal = await verification.verifier.verify(token)
    assert (principal.tenant, principal.permissions) == ("acme", frozenset({"admin"}))


def test_hashing_is_not_loaded_before_there_are_agents_with_secrets() -> None:
    code = "import sys, reasond_server.assembly.verifiers; sys.exit('argon2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0


KEYED = '[auth]\napi_keys_file = "keys.json"\n[auth.roles.solver]\npermissions = ["reasoning:execute"]\n'


def make_key(tmp_path: Path, **changes: object) -> str:
    made = create_key()
    values: dict[str, object] = {"id": made.id, "sha256": hash_key(made.text), "subject": "chat", "created": NOW}
    with changing(tmp_path / "keys.json") as rows:
        rows.append(ApiKeyRow(**{**values, **changes}))  # type: ignore[arg-type]  # the fields have several types
    return made.text


async def test_a_key_has_its_roles_and_a_tenant_as_a_token_has(tmp_path: Path) -> None:
    own = make_key(tmp_path, roles=("solver", "unknown"), permissions=("executions:read",))
    of_acme = make_key(tmp_path, tenant="acme")
    verification = build_verification(load_text(tmp_path, KEYED), dev=False, now=now)
    principal = await verification.verifier.verify(own)
    assert principal.permissions == {"reasoning:execute", "executions:read"}
    assert (principal.subject, principal.tenant) == ("chat", "sub:chat")
    assert (await verification.verifier.verify(of_acme)).tenant == "acme"


async def test_keys_are_taken_over_from_a_changed_file(tmp_path: Path) -> None:
    first = make_key(tmp_path)
    verification = build_verification(load_text(tmp_path, KEYED), dev=False, now=now)
    second = make_key(tmp_path)
    with changing(tmp_path / "keys.json") as rows:
        rows[0] = rows[0].model_copy(update={"revoked": NOW})
    verification.reload(load_text(tmp_path, KEYED))
    await verification.verifier.verify(second)
    with pytest.raises(TokenInvalidError, match="API key has been revoked"):
        await verification.verifier.verify(first)


@pytest.mark.parametrize("damage", ["", "{", None])
async def test_a_file_of_keys_that_cannot_be_used_lets_nobody_in_and_nobody_out(
    tmp_path: Path, damage: str | None
) -> None:
    """The revocations of the configuration hold nevertheless, so that a damaged file cannot delay them."""
    good, revoked = make_key(tmp_path), make_key(tmp_path, revoked=NOW)
    named = make_key(tmp_path, subject="mallory")
    verification = build_verification(load_text(tmp_path, KEYED), dev=False, now=now)
    if damage is None:
        (tmp_path / "keys.json").unlink()
    else:
        (tmp_path / "keys.json").write_text(damage, encoding="utf-8")
    with pytest.raises(SettingsError, match="api_keys_file"):
        verification.reload(load_text(tmp_path, KEYED.replace("[auth]", '[auth]\ninactive_subjects = ["mallory"]', 1)))
    assert (await verification.verifier.verify(good)).subject == "chat"
    with pytest.raises(TokenInvalidError, match="API key has been revoked"):
        await verification.verifier.verify(revoked)
    with pytest.raises(TokenInvalidError, match="no longer active"):
        await verification.verifier.verify(named)


@pytest.mark.parametrize(
    ("text", "is_accepted"), [("", True), ("[auth]\n", True), ('[auth]\napi_keys_file = ""\n', False)]
)
async def test_keys_stay_unless_the_configuration_states_that_there_are_none(
    tmp_path: Path, text: str, *, is_accepted: bool
) -> None:
    key = make_key(tmp_path)
    verification = build_verification(load_text(tmp_path, KEYED), dev=False, now=now)
    verification.reload(load_text(tmp_path, text))
    if is_accepted:
        await verification.verifier.verify(key)
        return
    with pytest.raises(TokenInvalidError, match="not known here"):
        await verification.verifier.verify(key)


def test_a_server_does_not_start_with_keys_that_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="api_keys_file names a file that cannot be read"):
        build_verification(load_text(tmp_path, KEYED), dev=False, now=now)
    make_key(tmp_path, tenant="sub:other")
    with pytest.raises(SettingsError, match=r"The API key \w+ cannot be used: Token tenant must"):
        build_verification(load_text(tmp_path, KEYED), dev=False, now=now)

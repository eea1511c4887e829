from __future__ import annotations

import base64
import gc
import json
import sys
from datetime import timedelta

import jwt
import pytest

from reasond_server.access.permissions import AccessRole, Roles
from reasond_server.access.token_keys import SigningKey, StaticKeys
from reasond_server.access.token_verifier import (
    MAX_TOKEN_BYTES,
    TokenRules,
    TokenVerifier,
    VerifiedToken,
    VerifiedTokenCache,
)
from reasond_server.access.tokens import ClaimNames, Revocations
from reasond_server.errors.access import TokenExpiredError, TokenInvalidError
from reasond_server.types import Principal
from tests.unit.access.parts import MAIN, NOW, OTHER, RULES, Clock, claims, sign, verifier_of


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def token_of_header(header: bytes) -> str:
    """Return a token with `header`, an empty payload and a dummy signature."""
    return f"{part(header)}.e30.AA"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> TokenVerifier:
    return verifier_of(MAIN, OTHER, now=clock)


async def test_a_good_token_gives_its_principal(verifier: TokenVerifier) -> None:
    token = sign(claims(tenant="acme", permissions=["admin", "agents:write"]))
    expected = Principal(subject="alice", tenant="acme", permissions=frozenset({"admin", "agents:write"}))
    assert await verifier.verify(token) == expected


async def test_a_token_without_tenant_has_one_that_no_claim_can_name(verifier: TokenVerifier) -> None:
    own = (await verifier.verify(sign(claims()))).tenant
    assert own == "sub:alice"
    with pytest.raises(TokenInvalidError, match="not begin with 'sub:'"):
        await verifier.verify(sign(claims(tenant=own)))
    assert (await verifier.verify(sign(claims(tenant="alice")))).tenant == "alice"


async def test_a_token_without_permissions_grants_none(verifier: TokenVerifier) -> None:
    assert (await verifier.verify(sign(claims(permissions=None)))).permissions == frozenset()


@pytest.mark.parametrize("key", [MAIN, OTHER])
async def test_every_key_verifies_with_and_without_its_name(verifier: TokenVerifier, key: SigningKey) -> None:
    assert (await verifier.verify(sign(claims(), key))).subject == "alice"
    assert (await verifier.verify(sign(claims(), key, headers={"kid": key.id}))).subject == "alice"


async def test_the_named_key_alone_may_verify(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        await verifier.verify(sign(claims(), OTHER, headers={"kid": "main"}))


async def test_a_server_without_keys_accepts_nothing(clock: Clock) -> None:
    verifier = verifier_of(now=clock)
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        await verifier.verify(sign(claims()))


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "not a JSON Web Token"),
        ("abc", "not a JSON Web Token"),
        ("a.b.c.d", "not a JSON Web Token"),
        ("a.b.c\n", "not a JSON Web Token"),
        ("a.b.\ud800", "not a JSON Web Token"),
        ("a.b.\u0661", "not a JSON Web Token"),
        ("a" * (MAX_TOKEN_BYTES + 1), "longer than 8192 bytes"),
        ("a.b.c", "header is malformed"),
        (token_of_header(b"[" * 5900), "header is malformed"),
        (token_of_header(b"[]"), "header is malformed"),
        (token_of_header(b'{"kid": 5, "alg": "HS256"}'), "header is malformed"),
        (token_of_header(b'{"alg": "none"}'), "algorithm that is not accepted"),
        (token_of_header(b'{"alg": "HS256", "crit": ["x"], "x": 1}'), "malformed"),
        (token_of_header(b'{"alg": "HS256"}'), "signature does not match"),
        (sign(claims(), headers={"kid": "gone"}), "key that is not known here"),
        (sign(claims(), SigningKey(id="forged", secret=b"f" * 32)), "signature does not match"),
        (sign(claims(), algorithm="HS512", key=SigningKey(id="main", secret=b"m" * 64)), "not accepted"),
        (jwt.encode(claims(), "", algorithm="none"), "not a JSON Web Token"),
        (sign(claims(iss="evil")), "comes from another issuer"),
        (sign(claims(aud="evil")), "not meant for this audience"),
        (sign(claims(aud=["reasond", "evil"])), "not meant for this audience"),
        (sign(claims(iss=None)), "lacks the claim iss"),
        (sign(claims(aud=None)), "lacks the claim aud"),
        (sign(claims(sub=None)), "lacks the claim sub"),
        (sign(claims(iat=None)), "lacks the claim iat"),
        (sign(claims(exp=None)), "lacks the claim exp"),
        (sign(claims(sub="")), "subject must have 1-256 printable characters"),
        (sign(claims(sub="x" * 257)), "subject must have 1-256 printable characters"),
        (sign(claims(sub="a\x00b")), "subject must have 1-256 printable characters"),
        (sign(claims(tenant="")), "tenant must have 1-128 printable characters"),
        (sign(claims(tenant="x" * 129)), "tenant must have 1-128 printable characters"),
        (sign(claims(tenant=7)), "tenant must have 1-128 printable characters"),
        (sign(claims(permissions="admin")), "permissions must be a list of strings"),
        (sign(claims(permissions=[1])), "permissions must be a list of strings"),
        (sign(claims(iat=True)), "claim iat must be a number of seconds"),
        (sign(claims(iat=int(NOW.timestamp()) + 31)), "issued in the future"),
        (sign(claims(nbf=int(NOW.timestamp()) + 31)), "not valid yet"),
        (sign(claims(exp=int(NOW.timestamp()) + 86_401)), "must live at most 86400 s"),
        (sign(claims(exp=int(NOW.timestamp()))), "ends before it begins: exp must be later than iat"),
        (sign(claims(iat=-(2**60))), "claim iat must be a number of seconds"),
    ],
)
async def test_a_bad_token_is_refused_in_our_words(verifier: TokenVerifier, token: str, reason: str) -> None:
    with pytest.raises(TokenInvalidError) as caught:
        await verifier.verify(token)
    assert caught.value.message.startswith("Authentication failed: Token ")
    assert reason in caught.value.message
    assert not token or token not in caught.value.full_message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def raw_token(payload: str) -> str:
    """Sign the text `payload` unchanged, because the JWT library does not write such claims."""
    return jwt.PyJWS().encode(payload.encode(), MAIN.secret, algorithm="HS256")


@pytest.mark.parametrize(
    ("claim", "value"),
    [("exp", '"9999999999"'), ("exp", "1e400"), ("exp", "NaN"), ("exp", "1" + "0" * 400), ("nbf", "[]"), ("iat", "{}")],
)
async def test_times_that_are_no_times_are_refused(verifier: TokenVerifier, claim: str, value: str) -> None:
    payload = json.dumps(claims(**{claim: "@"})).replace('"@"', value)
    with pytest.raises(TokenInvalidError, match="Authentication failed"):
        await verifier.verify(raw_token(payload))


@pytest.mark.parametrize("payload", ["[]", "nonsense", "[" * 3000, '{"sub": 5}', '{"exp": ' + "9" * 5000 + "}"])
async def test_signed_nonsense_is_refused(verifier: TokenVerifier, payload: str) -> None:
    with pytest.raises(TokenInvalidError, match="Authentication failed: Token"):
        await verifier.verify(raw_token(payload))


async def test_a_subject_that_is_no_string_is_refused(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenInvalidError, match="subject must be a string"):
        await verifier.verify(raw_token(json.dumps(claims(sub=5))))


async def test_a_token_expires_when_its_time_and_the_leeway_are_over(verifier: TokenVerifier, clock: Clock) -> None:
    token = sign(claims())
    clock.time = NOW + timedelta(seconds=3629)
    assert (await verifier.verify(token)).subject == "alice"
    clock.time = NOW + timedelta(seconds=3630)
    with pytest.raises(TokenExpiredError) as caught:
        await verifier.verify(token)
    assert caught.value.message == "Authentication failed: Token has expired"
    assert caught.value.remedy


async def test_a_forged_token_that_is_also_expired_is_called_forged(verifier: TokenVerifier) -> None:
    token = sign(claims(exp=1, iat=0), SigningKey(id="forged", secret=b"f" * 32))
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        await verifier.verify(token)


async def test_a_type_that_is_required_must_be_carried(clock: Clock) -> None:
    verifier = verifier_of(MAIN, now=clock, required_type="at+jwt")
    for good in ("at+jwt", "AT+JWT", "application/at+jwt"):
        assert (await verifier.verify(sign(claims(), headers={"typ": good}))).subject == "alice"
    for bad in ({"typ": "JWT"}, {"typ": None}, {}):
        with pytest.raises(TokenInvalidError, match=r"Token type is not at\+jwt"):
            await verifier.verify(sign(claims(), headers=bad))


async def test_an_id_that_is_no_text_is_refused(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenInvalidError, match="Token id must be a string"):
        await verifier.verify(sign(claims(jti=7)))


ROLES = Roles(
    {
        "reader": AccessRole(permissions=["executions:read"]),
        "solver": AccessRole(permissions=["reasoning:execute", "reasoning:tools"], strategies=["react"]),
    }
)


def verifier_with_roles(**names: str) -> TokenVerifier:
    rules = TokenRules(**RULES, names=ClaimNames(**names))
    return TokenVerifier(keys=StaticKeys([MAIN.verifying_key]), rules=rules, now=Clock(), roles=ROLES)


async def test_roles_grant_their_permissions_beside_those_of_the_token() -> None:
    principal = await verifier_with_roles().verify(
        sign(claims(roles=["reader", "solver"], permissions=["agents:write"]))
    )
    assert principal.permissions == {"agents:write", "executions:read", "reasoning:execute:react", "reasoning:tools"}


async def test_a_role_that_is_not_known_here_grants_nothing() -> None:
    principal = await verifier_with_roles().verify(sign(claims(roles=["root"], permissions=None)))
    assert principal.permissions == frozenset()


async def test_claims_may_have_the_names_that_the_issuer_gives_them() -> None:
    reader = verifier_with_roles(permissions="scope", roles="groups", tenant="org")
    token = sign(claims(permissions=["admin"], scope="reasoning:execute openid", groups=["reader"], org="acme"))
    principal = await reader.verify(token)
    assert principal.tenant == "acme"
    assert principal.permissions == {"reasoning:execute", "openid", "executions:read"}


@pytest.mark.parametrize("value", [7, {"a": 1}, [1], None])
async def test_roles_that_are_no_list_of_words_are_refused(value: object) -> None:
    token = sign(claims() | {"roles": value})
    with pytest.raises(TokenInvalidError, match="Token roles must be a list of strings"):
        await verifier_with_roles().verify(token)


def test_a_role_without_strategies_is_good_for_all() -> None:
    assert AccessRole(permissions=["reasoning:execute"]).grants == {"reasoning:execute"}


async def test_what_is_revoked_is_refused_at_once_though_it_was_verified_a_moment_ago() -> None:
    revocations = Revocations()
    verifier = TokenVerifier(
        keys=StaticKeys([MAIN.verifying_key]), rules=TokenRules(**RULES), now=Clock(), revocations=revocations
    )
    token = sign(claims(jti="7"))
    assert (await verifier.verify(token)).subject == "alice"
    revocations.replace(token_ids=["7"], subjects=[])
    with pytest.raises(TokenInvalidError, match="Authentication failed: Token has been revoked"):
        await verifier.verify(token)
    revocations.replace(token_ids=[], subjects=["alice"])
    with pytest.raises(TokenInvalidError, match="Subject is no longer active"):
        await verifier.verify(token)
    revocations.replace(token_ids=[], subjects=[])
    assert (await verifier.verify(token)).subject == "alice"


def test_a_token_without_an_id_is_not_revoked_by_an_empty_one() -> None:
    assert Revocations(token_ids=[""]).find_reason(token_id="", subject="alice") == ""


PRINCIPAL = Principal(subject="alice", tenant="acme", permissions=frozenset())


def build_verified(ends: float = 10_000.0) -> VerifiedToken:
    return VerifiedToken(principal=PRINCIPAL, token_id="", ends=ends)


def test_a_token_is_known_for_its_time_and_no_longer() -> None:
    tokens = VerifiedTokenCache(kept_s=60)
    tokens.put("token", build_verified(), 1000.0)
    assert tokens.get("token", 1059.9) == build_verified()
    assert tokens.get("token", 1060.0) is None
    assert tokens.get("token", 1000.0) is None


def test_a_token_is_never_known_past_its_end() -> None:
    tokens = VerifiedTokenCache(kept_s=60)
    tokens.put("token", build_verified(ends=1010.0), 1000.0)
    assert tokens.get("token", 1009.9) is not None
    assert tokens.get("token", 1010.0) is None
    tokens.put("token", build_verified(ends=1000.0), 1000.0)
    assert tokens.get("token", 999.0) is None


def test_a_clock_that_is_set_back_prolongs_nothing() -> None:
    tokens = VerifiedTokenCache(kept_s=60)
    tokens.put("token", build_verified(), 1000.0)
    assert tokens.get("token", 900.0) is None


def test_nothing_is_kept_where_nothing_may_be() -> None:
    tokens = VerifiedTokenCache(kept_s=0)
    tokens.put("token", build_verified(), 1000.0)
    assert tokens.get("token", 1000.0) is None


def test_the_number_is_bounded_and_the_oldest_goes_first() -> None:
    tokens = VerifiedTokenCache(most=2)
    for name in ("one", "two", "three"):
        tokens.put(name, build_verified(), 1000.0)
    assert [tokens.get(name, 1000.0) is not None for name in ("one", "two", "three")] == [False, True, True]


def test_the_token_itself_is_not_kept() -> None:
    tokens = VerifiedTokenCache()
    token = str(object())
    before = sys.getrefcount(token)
    tokens.put(token, build_verified(), 1000.0)
    gc.collect()
    assert sys.getrefcount(token) == before
    assert token not in repr(vars(tokens))

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest

from reasond_server.access.tokens import MAX_TOKEN_BYTES, SigningKey, TokenMinter, TokenVerifier, ephemeral_key, missing
from reasond_server.errors import InvalidRequestError, TokenExpiredError, TokenInvalidError
from reasond_server.types import Principal

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MAIN = SigningKey(id="main", secret=b"m" * 32)
OTHER = SigningKey(id="other", secret=b"o" * 32)


def part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def headed(header: bytes) -> str:
    """Return a token with `header` and nothing else of worth."""
    return f"{part(header)}.e30.AA"


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verifier(clock: Clock) -> TokenVerifier:
    return TokenVerifier(
        keys=[MAIN, OTHER], issuer="reasond", audience="reasond", leeway_s=30, max_lifetime_s=86_400, now=clock
    )


def claims(**changes: object) -> dict[str, Any]:
    """Return good claims with `changes`; None leaves a claim out."""
    good = {
        "iss": "reasond",
        "aud": "reasond",
        "sub": "alice",
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 3600,
        "permissions": ["reasoning:execute"],
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(
    payload: dict[str, Any], key: SigningKey = MAIN, headers: dict[str, Any] | None = None, algorithm: str = "HS256"
) -> str:
    return jwt.encode(payload, key.secret, algorithm=algorithm, headers=headers)


def test_a_good_token_gives_its_principal(verifier: TokenVerifier) -> None:
    token = signed(claims(tenant="acme", permissions=["admin", "agents:write"]))
    expected = Principal(subject="alice", tenant="acme", permissions=frozenset({"admin", "agents:write"}))
    assert verifier.verify(token) == expected


def test_a_token_without_tenant_is_its_subjects_own(verifier: TokenVerifier) -> None:
    assert verifier.verify(signed(claims())).tenant == "alice"


def test_a_token_without_permissions_grants_none(verifier: TokenVerifier) -> None:
    assert verifier.verify(signed(claims(permissions=None))).permissions == frozenset()


@pytest.mark.parametrize("key", [MAIN, OTHER])
def test_every_key_verifies_with_and_without_its_name(verifier: TokenVerifier, key: SigningKey) -> None:
    assert verifier.verify(signed(claims(), key)).subject == "alice"
    assert verifier.verify(signed(claims(), key, headers={"kid": key.id})).subject == "alice"


def test_the_named_key_alone_may_verify(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        verifier.verify(signed(claims(), OTHER, headers={"kid": "main"}))


def test_a_server_without_keys_accepts_nothing(clock: Clock) -> None:
    verifier = TokenVerifier(keys=[], issuer="i", audience="a", leeway_s=0, max_lifetime_s=60, now=clock)
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        verifier.verify(signed(claims()))


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
        (headed(b"[" * 5900), "header is malformed"),
        (headed(b"[]"), "header is malformed"),
        (headed(b'{"kid": 5, "alg": "HS256"}'), "header is malformed"),
        (headed(b'{"alg": "none"}'), "algorithm that is not accepted"),
        (headed(b'{"alg": "HS256", "crit": ["x"], "x": 1}'), "malformed"),
        (headed(b'{"alg": "HS256"}'), "signature does not match"),
        (signed(claims(), headers={"kid": "gone"}), "key that is not known here"),
        (signed(claims(), SigningKey(id="forged", secret=b"f" * 32)), "signature does not match"),
        (signed(claims(), algorithm="HS512", key=SigningKey(id="main", secret=b"m" * 64)), "not accepted"),
        (jwt.encode(claims(), "", algorithm="none"), "not a JSON Web Token"),
        (signed(claims(iss="evil")), "comes from another issuer"),
        (signed(claims(aud="evil")), "not meant for this audience"),
        (signed(claims(aud=["reasond", "evil"])), "not meant for this audience"),
        (signed(claims(iss=None)), "lacks the claim iss"),
        (signed(claims(aud=None)), "lacks the claim aud"),
        (signed(claims(sub=None)), "lacks the claim sub"),
        (signed(claims(iat=None)), "lacks the claim iat"),
        (signed(claims(exp=None)), "lacks the claim exp"),
        (signed(claims(sub="")), "subject must have 1-256 printable characters"),
        (signed(claims(sub="x" * 257)), "subject must have 1-256 printable characters"),
        (signed(claims(sub="a\x00b")), "subject must have 1-256 printable characters"),
        (signed(claims(tenant="")), "tenant must have 1-128 printable characters"),
        (signed(claims(tenant="x" * 129)), "tenant must have 1-128 printable characters"),
        (signed(claims(tenant=7)), "tenant must have 1-128 printable characters"),
        (signed(claims(permissions="admin")), "permissions must be a list of strings"),
        (signed(claims(permissions=[1])), "permissions must be a list of strings"),
        (signed(claims(iat=True)), "claim iat must be a number of seconds"),
        (signed(claims(iat=int(NOW.timestamp()) + 31)), "issued in the future"),
        (signed(claims(nbf=int(NOW.timestamp()) + 31)), "not valid yet"),
        (signed(claims(exp=int(NOW.timestamp()) + 86_401)), "must live at most 86400 s"),
        (signed(claims(exp=int(NOW.timestamp()))), "must live at most 86400 s"),
        (signed(claims(iat=-(2**60))), "claim iat must be a number of seconds"),
    ],
)
def test_a_bad_token_is_refused_in_our_words(verifier: TokenVerifier, token: str, reason: str) -> None:
    with pytest.raises(TokenInvalidError) as caught:
        verifier.verify(token)
    assert caught.value.message.startswith("Authentication failed: Token ")
    assert reason in caught.value.message
    assert not token or token not in caught.value.full_message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def raw_token(payload: str) -> str:
    """Sign `payload` as it stands: the JWT library would not write such claims."""
    return jwt.PyJWS().encode(payload.encode(), MAIN.secret, algorithm="HS256")


@pytest.mark.parametrize(
    ("claim", "value"),
    [("exp", '"9999999999"'), ("exp", "1e400"), ("exp", "NaN"), ("exp", "1" + "0" * 400), ("nbf", "[]"), ("iat", "{}")],
)
def test_times_that_are_no_times_are_refused(verifier: TokenVerifier, claim: str, value: str) -> None:
    payload = json.dumps(claims(**{claim: "@"})).replace('"@"', value)
    with pytest.raises(TokenInvalidError, match="Authentication failed"):
        verifier.verify(raw_token(payload))


@pytest.mark.parametrize("payload", ["[]", "nonsense", "[" * 3000, '{"sub": 5}', '{"exp": ' + "9" * 5000 + "}"])
def test_signed_nonsense_is_refused(verifier: TokenVerifier, payload: str) -> None:
    with pytest.raises(TokenInvalidError, match="Authentication failed: Token"):
        verifier.verify(raw_token(payload))


def test_a_subject_that_is_no_string_is_refused(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenInvalidError, match="subject must be a string"):
        verifier.verify(raw_token(json.dumps(claims(sub=5))))


def test_a_token_expires_when_its_time_and_the_leeway_are_over(verifier: TokenVerifier, clock: Clock) -> None:
    token = signed(claims())
    clock.time = NOW + timedelta(seconds=3629)
    assert verifier.verify(token).subject == "alice"
    clock.time = NOW + timedelta(seconds=3630)
    with pytest.raises(TokenExpiredError) as caught:
        verifier.verify(token)
    assert caught.value.message == "Authentication failed: Token has expired"
    assert caught.value.remedy


def test_a_forged_token_that_is_also_expired_is_called_forged(verifier: TokenVerifier) -> None:
    token = signed(claims(exp=1, iat=0), SigningKey(id="forged", secret=b"f" * 32))
    with pytest.raises(TokenInvalidError, match="signature does not match"):
        verifier.verify(token)


def test_a_missing_token_is_reported_as_seed_001_says() -> None:
    assert missing().full_message == ("Authentication required: Missing JWT token. Provide 'auth_token' in params")
    assert missing("Send 'authorization: Bearer <token>'").message.endswith("Send 'authorization: Bearer <token>'")


def test_minted_tokens_verify(clock: Clock) -> None:
    key = ephemeral_key()
    minter = TokenMinter(key=key, issuer="i", audience="a", max_lifetime_s=60)
    verifier = TokenVerifier(keys=[key], issuer="i", audience="a", leeway_s=0, max_lifetime_s=60, now=clock)
    token = minter.mint(subject="bob", permissions=["admin"], tenant="acme", lifetime_s=60, now=NOW)
    assert verifier.verify(token) == Principal(subject="bob", tenant="acme", permissions=frozenset({"admin"}))
    assert jwt.get_unverified_header(token)["kid"] == key.id
    assert verifier.verify(minter.mint(subject="bob", permissions=[], lifetime_s=1, now=NOW)).tenant == "bob"


@pytest.mark.parametrize("lifetime_s", [0, -1, 61, float("nan")])
def test_a_lifetime_that_no_verifier_accepts_is_not_minted(lifetime_s: float) -> None:
    minter = TokenMinter(key=MAIN, issuer="i", audience="a", max_lifetime_s=60)
    with pytest.raises(InvalidRequestError, match="between 1 and 60 seconds"):
        minter.mint(subject="bob", permissions=[], lifetime_s=lifetime_s, now=NOW)


def test_a_subject_that_no_verifier_accepts_is_not_minted() -> None:
    minter = TokenMinter(key=MAIN, issuer="i", audience="a", max_lifetime_s=60)
    with pytest.raises(InvalidRequestError, match="No token can be made: Token subject"):
        minter.mint(subject="", permissions=[], lifetime_s=60, now=NOW)


def test_ephemeral_keys_differ_and_do_not_show() -> None:
    one, other = ephemeral_key(), ephemeral_key()
    assert one.secret != other.secret
    assert len(one.secret) >= 32
    assert repr(one.secret) not in repr(one)

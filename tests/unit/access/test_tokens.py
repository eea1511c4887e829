from __future__ import annotations

import jwt
import pytest

from reasond_server.access.token_keys import create_ephemeral_key
from reasond_server.access.tokens import TokenMinter, build_missing_token_error
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types import Principal
from tests.unit.access.parts import MAIN, NOW, Clock, verifier_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_missing_token_is_reported_as_seed_001_says() -> None:
    assert build_missing_token_error().full_message == (
        "Authentication required: Missing JWT token. Provide 'auth_token' in params"
    )
    assert build_missing_token_error("Send 'authorization: Bearer <token>'").message.endswith(
        "Send 'authorization: Bearer <token>'"
    )


async def test_a_minted_token_verifies_as_whom_it_was_minted_for(clock: Clock) -> None:
    key = create_ephemeral_key()
    minter = TokenMinter(key=key, issuer="i", audience="a", max_lifetime_s=60)
    verifier = verifier_of(key, now=clock, issuer="i", audience="a", leeway_s=0, max_lifetime_s=60)
    token = minter.mint(subject="bob", permissions=["admin"], tenant="acme", lifetime_s=60, now=NOW)
    assert await verifier.verify(token) == Principal(subject="bob", tenant="acme", permissions=frozenset({"admin"}))
    assert jwt.get_unverified_header(token)["kid"] == key.id
    assert (
        await verifier.verify(minter.mint(subject="bob", permissions=[], lifetime_s=1, now=NOW))
    ).tenant == "sub:bob"


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
    one, other = create_ephemeral_key(), create_ephemeral_key()
    assert one.secret != other.secret
    assert len(one.secret) >= 32
    assert repr(one.secret) not in repr(one)

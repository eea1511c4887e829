from __future__ import annotations

import pytest

from reasond_server.access.keys import StaticKeys
from reasond_server.access.revocation import Revocations
from reasond_server.access.verifying import TokenRules, TokenVerifier
from reasond_server.errors import TokenInvalidError
from tests.unit.access.parts import MAIN, RULES, Clock, claims, signed


async def test_what_is_revoked_is_refused_at_once_though_it_was_verified_a_moment_ago() -> None:
    revocations = Revocations()
    verifier = TokenVerifier(
        keys=StaticKeys([MAIN.verifying]), rules=TokenRules(**RULES), now=Clock(), revocations=revocations
    )
    token = signed(claims(jti="7"))
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
    assert Revocations(token_ids=[""]).reason(token_id="", subject="alice") == ""

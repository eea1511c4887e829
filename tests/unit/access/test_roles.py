from __future__ import annotations

import pytest

from reasond_server.access.claims import ClaimNames
from reasond_server.access.keys import StaticKeys
from reasond_server.access.roles import Role, Roles
from reasond_server.access.verifying import TokenRules, TokenVerifier
from reasond_server.errors import TokenInvalidError
from tests.unit.access.parts import MAIN, RULES, Clock, claims, signed

ROLES = Roles(
    {
        "reader": Role(permissions=["executions:read"]),
        "solver": Role(permissions=["reasoning:execute", "reasoning:tools"], strategies=["react"]),
    }
)


def verifier(**names: str) -> TokenVerifier:
    rules = TokenRules(**RULES, names=ClaimNames(**names))
    return TokenVerifier(keys=StaticKeys([MAIN.verifying]), rules=rules, now=Clock(), roles=ROLES)


async def test_roles_grant_their_permissions_beside_those_of_the_token() -> None:
    principal = await verifier().verify(signed(claims(roles=["reader", "solver"], permissions=["agents:write"])))
    assert principal.permissions == {"agents:write", "executions:read", "reasoning:execute:react", "reasoning:tools"}


async def test_a_role_that_is_not_known_here_grants_nothing() -> None:
    principal = await verifier().verify(signed(claims(roles=["root"], permissions=None)))
    assert principal.permissions == frozenset()


async def test_claims_may_have_the_names_that_the_issuer_gives_them() -> None:
    reader = verifier(permissions="scope", roles="groups", tenant="org")
    token = signed(claims(permissions=["admin"], scope="reasoning:execute openid", groups=["reader"], org="acme"))
    principal = await reader.verify(token)
    assert principal.tenant == "acme"
    assert principal.permissions == {"reasoning:execute", "openid", "executions:read"}


@pytest.mark.parametrize("value", [7, {"a": 1}, [1], None])
async def test_roles_that_are_no_list_of_words_are_refused(value: object) -> None:
    token = signed(claims() | {"roles": value})
    with pytest.raises(TokenInvalidError, match="Token roles must be a list of strings"):
        await verifier().verify(token)


def test_a_role_without_strategies_is_good_for_all() -> None:
    assert Role(permissions=["reasoning:execute"]).granted == {"reasoning:execute"}

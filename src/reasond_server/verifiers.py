"""Settings become a verifier of tokens: keys, key set, rules, roles and revocations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.access.claims import ClaimNames
from reasond_server.access.jwks import JwksKeys
from reasond_server.access.jwks_http import HttpJwksFetcher
from reasond_server.access.keys import (
    JoinedKeys,
    KeySource,
    SigningKey,
    StaticKeys,
    UnfitKeyError,
    VerifyingKey,
    ephemeral_key,
    public_key,
)
from reasond_server.access.revocation import Revocations
from reasond_server.access.roles import Role, Roles
from reasond_server.access.verified import VerifiedTokens
from reasond_server.access.verifying import TokenRules, TokenVerifier
from reasond_server.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.config import AuthKey, AuthSettings, LoadedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What verifies tokens; `signing` is the key of tokens that this server makes, None where it makes none."""

    verifier: TokenVerifier
    revocations: Revocations
    signing: SigningKey | None
    key_set: JwksKeys | None

    def reload(self, auth: AuthSettings) -> None:
        """Take over what may change while the server runs: who is revoked."""
        self.revocations.replace(token_ids=auth.revoked_ids, subjects=auth.inactive_subjects)

    async def aclose(self) -> None:
        """Give back connections to the issuer."""
        if self.key_set is not None:
            await self.key_set.aclose()


def verification_of(loaded: LoadedSettings, *, dev: bool, now: Callable[[], datetime]) -> Verification:
    """Return what verifies tokens as `loaded` says; under `dev` a key that dies with the process comes first.

    Raises:
        SettingsError: a public key cannot be used.
    """
    auth = loaded.settings.auth
    signing = [ephemeral_key()] if dev else []
    signing += [signing_key_of(key) for key in loaded.auth_keys if key.algorithm == "HS256"]
    public = [_public(key, place) for place, key in enumerate(loaded.auth_keys) if key.algorithm != "HS256"]
    static = StaticKeys([*(key.verifying for key in signing), *public])
    key_set = JwksKeys(fetcher=HttpJwksFetcher(url=auth.jwks_url), monotonic=time.monotonic) if auth.jwks_url else None
    keys: KeySource = static if key_set is None else JoinedKeys([static, key_set])
    revocations = Revocations(token_ids=auth.revoked_ids, subjects=auth.inactive_subjects)
    verifier = TokenVerifier(
        keys=keys,
        rules=_rules(auth),
        now=now,
        roles=Roles(
            {name: Role(permissions=role.permissions, strategies=role.strategies) for name, role in auth.roles.items()}
        ),
        revocations=revocations,
        verified=VerifiedTokens(kept_s=auth.verified_kept_s),
    )
    return Verification(
        verifier=verifier, revocations=revocations, signing=signing[0] if signing else None, key_set=key_set
    )


def signing_key_of(key: AuthKey) -> SigningKey:
    """Return a key of the configuration that signs."""
    return SigningKey(id=key.id, secret=key.secret.get_secret_value().encode())


def _public(key: AuthKey, place: int) -> VerifyingKey:
    try:
        return public_key(key_id=key.id, algorithm=key.algorithm, pem=key.public_key)
    except UnfitKeyError as error:
        raise SettingsError(
            f"The file that auth.keys[{place}].public_key_file names {error}",
            remedy=f"Name a PEM file of a public key for {key.algorithm}, or change auth.keys[{place}].algorithm.",
        ) from None


def _rules(auth: AuthSettings) -> TokenRules:
    return TokenRules(
        issuer=auth.issuer,
        audience=auth.audience,
        leeway_s=auth.leeway_s,
        max_lifetime_s=auth.max_lifetime_s,
        required_type=auth.required_type,
        names=ClaimNames(tenant=auth.tenant_claim, permissions=auth.permissions_claim, roles=auth.roles_claim),
    )

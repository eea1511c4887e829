"""Builds the verification of tokens from the settings: keys, key set, rules, roles and revocations."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.access.agent_secrets import AgentAccount, AgentSecrets, AgentTokens, Throttle, is_secret_hash
from reasond_server.access.api_keys import ApiKey, ApiKeys
from reasond_server.access.peers import PeerRule, Peers
from reasond_server.access.permissions import KNOWN, AccessRole, Roles, find_unknown_permissions
from reasond_server.access.token_keys import (
    HttpJwksFetcher,
    JoinedKeys,
    JwksKeys,
    KeySource,
    SigningKey,
    StaticKeys,
    UnfitKeyError,
    VerifyingKey,
    create_ephemeral_key,
    parse_public_key,
)
from reasond_server.access.token_verifier import TokenRules, TokenVerifier, VerifiedTokenCache
from reasond_server.access.tokens import (
    OWN_TENANT,
    ClaimNames,
    Revocations,
    TokenMinter,
    build_principal,
    is_free_tenant,
)
from reasond_server.base.violations import suggest_nearest
from reasond_server.config.api_key_file import ApiKeyRow, read_api_keys
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.config import AuthKey, AuthSettings, LoadedSettings, Settings
    from reasond_server.config.auth import AgentAccountSettings, PeerSettings

# Failures per minute. One agent makes few honest mistakes, but many agents may share one address.
_FAILURES_OF_AN_AGENT = 5
_FAILURES_OF_AN_ADDRESS = 50


@value
class TokenVerification:
    """The verifiers of tokens; `signing` is the key of tokens that this server mints, None if it mints none."""

    verifier: TokenVerifier
    peers: Peers
    revocations: Revocations
    api_keys: ApiKeys
    roles: Roles
    signing: SigningKey | None
    key_set: JwksKeys | None

    def reload(self, loaded: LoadedSettings) -> None:
        """Apply the settings that may change while the server runs: the revocations, and the API keys.

        If the file has no list of revocations, the present list stays: an empty or truncated file must not readmit
        anybody. Likewise the API keys stay as they are if the settings name no file of them, or one that cannot be
        used.

        Raises:
            SettingsError: the file of the API keys cannot be used; the revocations are applied nevertheless.
        """
        auth = loaded.settings.auth
        stated = auth.model_fields_set
        self.revocations.replace(
            token_ids=auth.revoked_ids if "revoked_ids" in stated else None,
            subjects=auth.inactive_subjects if "inactive_subjects" in stated else None,
        )
        if "api_keys_file" in stated:
            self.api_keys.replace(_read_keys(loaded, self.roles))

    async def aclose(self) -> None:
        """Close connections to the issuer."""
        if self.key_set is not None:
            await self.key_set.aclose()


def build_verification(
    loaded: LoadedSettings, *, dev: bool, now: Callable[[], datetime], observer: Observer = UNOBSERVED
) -> TokenVerification:
    """Return the verifiers of tokens that `loaded` describes; with `dev` a temporary key of this process comes first.

    Raises:
        SettingsError: a public key or the file of the API keys cannot be used.
    """
    auth = loaded.settings.auth
    require_known_grants(loaded.settings)
    signing = [create_ephemeral_key()] if dev else []
    signing += [read_signing_key(key) for key in loaded.auth_keys if key.algorithm == "HS256"]
    public = [_load_public_key(key, place) for place, key in enumerate(loaded.auth_keys) if key.algorithm != "HS256"]
    static = StaticKeys([*(key.verifying_key for key in signing), *public])
    key_set = JwksKeys(fetcher=HttpJwksFetcher(url=auth.jwks_url), monotonic=time.monotonic) if auth.jwks_url else None
    keys: KeySource = static if key_set is None else JoinedKeys([static, key_set])
    roles = Roles(
        {
            name: AccessRole(permissions=role.permissions, strategies=role.strategies)
            for name, role in auth.roles.items()
        }
    )
    revocations = Revocations(token_ids=auth.revoked_ids, subjects=auth.inactive_subjects)
    api_keys = ApiKeys(now=now, revocations=revocations, keys=_read_keys(loaded, roles), observer=observer)
    verifier = TokenVerifier(
        keys=keys,
        rules=_read_rules(auth),
        now=now,
        roles=roles,
        revocations=revocations,
        cache=VerifiedTokenCache(kept_s=auth.verified_kept_s),
        api_keys=api_keys,
    )
    return TokenVerification(
        verifier=verifier,
        peers=_build_peers(auth, roles, revocations),
        revocations=revocations,
        api_keys=api_keys,
        roles=roles,
        signing=signing[0] if signing else None,
        key_set=key_set,
    )


def require_known_grants(settings: Settings) -> None:
    """Refuse roles and agents with unknown permissions, strategies or roles: a typing error would lock its owner out.

    Raises:
        SettingsError: it names each unknown word with the nearest known one.
    """
    auth, enabled = settings.auth, settings.reasoning.enabled_strategies
    found: list[Violation] = []
    holders: list[tuple[str, AgentAccountSettings | PeerSettings]]
    holders = [(f"agents.{name}", agent) for name, agent in auth.agents.items()]
    holders += [(f"peers[{place}]", peer) for place, peer in enumerate(auth.peers)]
    grants = [(f"roles.{name}", role.permissions) for name, role in auth.roles.items()]
    for owner, permissions in [*grants, *((owner, holder.permissions) for owner, holder in holders)]:
        found += _find_unknown(f"auth.{owner}.permissions", find_unknown_permissions(permissions), KNOWN)
    for name, role in auth.roles.items():
        unknown = [strategy for strategy in role.strategies if strategy not in enabled]
        found += _find_unknown(f"auth.roles.{name}.strategies", unknown, enabled)
    for owner, holder in holders:
        if not is_free_tenant(holder.tenant):
            text = f"is {show(holder.tenant)}; {OWN_TENANT!r} begins the tenants of subjects without one"
            found.append(Violation(field=f"auth.{owner}.tenant", description=text))
        found += _find_unknown(
            f"auth.{owner}.roles", [one for one in holder.roles if one not in auth.roles], auth.roles
        )
    if found:
        raise SettingsError(
            "; ".join(f"{one.field} {one.description}" for one in found),
            remedy="Correct the words, or enable the strategies in [reasoning] enabled_strategies.",
            violations=found,
        )


def _find_unknown(field: str, words: Sequence[str], known: Iterable[str]) -> Iterator[Violation]:
    for word in words:
        yield Violation(
            field=field, description=f"grants {show(word)}, which is not known here{suggest_nearest(word, known)}"
        )


def build_minter(auth: AuthSettings, key: SigningKey) -> TokenMinter:
    """Return a minter that signs with `key`; a server with the same settings accepts its tokens."""
    rules = _read_rules(auth)
    return TokenMinter(
        key=key,
        issuer=rules.issuer,
        audience=rules.audience,
        max_lifetime_s=rules.max_lifetime_s,
        names=rules.names,
        token_type=rules.required_type or "JWT",
    )


def build_agent_tokens(
    auth: AuthSettings, *, signing: SigningKey | None, now: Callable[[], datetime]
) -> AgentTokens | None:
    """Return the issuer of tokens for the agents of the configuration; None if there are none.

    Raises:
        SettingsError: there is no key to sign their tokens, or a secret hash cannot be used.
    """
    if not auth.agents:
        return None
    if signing is None:
        raise SettingsError(
            "auth.agents are given tokens, but auth.keys has no HS256 key to sign them with",
            remedy='Add a key such as { id = "main", secret_env = "REASOND_SIGNING_KEY" }, or remove auth.agents.',
        )
    for name, agent in auth.agents.items():
        if not is_secret_hash(agent.secret_hash.get_secret_value()):
            raise SettingsError(
                f"auth.agents.{name}.secret_hash is no argon2id hash", remedy="Make one with: reasond secret-hash"
            )
    secrets = AgentSecrets(
        accounts={name: _build_account(name, agent) for name, agent in auth.agents.items()},
        by_agent=Throttle(most=_FAILURES_OF_AN_AGENT, window_s=60.0, monotonic=time.monotonic),
        by_address=Throttle(most=_FAILURES_OF_AN_ADDRESS, window_s=60.0, monotonic=time.monotonic),
    )
    minter = build_minter(auth, signing)
    return AgentTokens(secrets=secrets, minter=minter, lifetime_s=auth.agent_token_lifetime_s, now=now)


def _build_account(name: str, agent: AgentAccountSettings) -> AgentAccount:
    return AgentAccount(
        agent_id=name,
        secret_hash=agent.secret_hash.get_secret_value(),
        permissions=agent.permissions,
        roles=agent.roles,
        tenant=agent.tenant,
    )


def read_signing_key(key: AuthKey) -> SigningKey:
    """Return the signing key that the configuration describes."""
    return SigningKey(id=key.id, secret=key.secret.get_secret_value().encode())


def _read_keys(loaded: LoadedSettings, roles: Roles) -> list[ApiKey]:
    """Return the API keys of the file that the settings name; none if they name none."""
    file = loaded.api_keys_file
    return [] if file is None else [build_api_key(row, roles) for row in read_api_keys(file)]


def build_api_key(row: ApiKeyRow, roles: Roles) -> ApiKey:
    """Return the key of a row with its principal; unknown roles and permissions grant nothing, as those of tokens.

    Raises:
        SettingsError: no token could name such a subject or tenant.
    """
    claims = {"sub": row.subject, "permissions": list(row.permissions), "roles": list(row.roles)}
    try:
        principal = build_principal(claims | ({"tenant": row.tenant} if row.tenant else {}), roles=roles)
    except TokenInvalidError as error:
        reason = error.message.rpartition(": ")[2]
        raise SettingsError(f"The API key {row.id} cannot be used: {reason}", remedy="Make another one.") from None
    return ApiKey(
        id=row.id,
        key_hash=row.sha256,
        principal=replace(principal, key_id=row.id),
        expires=row.expires,
        is_revoked=row.revoked is not None,
    )


def _build_peers(auth: AuthSettings, roles: Roles, revocations: Revocations) -> Peers:
    """Return the peers that client certificates identify."""
    rules = [
        PeerRule(
            path=peer.path, permissions=roles.collect_grants(peer.roles) | set(peer.permissions), tenant=peer.tenant
        )
        for peer in auth.peers
    ]
    return Peers(trust_domain=auth.trust_domain, rules=rules, revocations=revocations)


def _load_public_key(key: AuthKey, place: int) -> VerifyingKey:
    try:
        return parse_public_key(key_id=key.id, algorithm=key.algorithm, pem=key.public_key)
    except UnfitKeyError as error:
        raise SettingsError(
            f"The file that auth.keys[{place}].public_key_file names {error}",
            remedy=f"Name a PEM file of a public key for {key.algorithm}, or change auth.keys[{place}].algorithm.",
        ) from None


def _read_rules(auth: AuthSettings) -> TokenRules:
    return TokenRules(
        issuer=auth.issuer,
        audience=auth.audience,
        leeway_s=auth.leeway_s,
        max_lifetime_s=auth.max_lifetime_s,
        required_type=auth.required_type,
        names=ClaimNames(tenant=auth.tenant_claim, permissions=auth.permissions_claim, roles=auth.roles_claim),
    )

"""Verifies JSON Web Tokens (RFC 7519) as RFC 8725 advises, and returns their principals.

No error contains a token or text of the JWT library.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import field
from typing import TYPE_CHECKING, Any

import jwt
from jwt.exceptions import InvalidJTIError, InvalidSubjectError

from reasond_server.access.api_keys import KEY_PREFIX, ApiKeys
from reasond_server.access.permissions import Roles
from reasond_server.access.tokens import (
    REQUIRED,
    ClaimNames,
    Revocations,
    TokenTimes,
    build_principal,
    build_token_error,
    read_token_id,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.access.token_keys import KeySource, VerifyingKey
    from reasond_server.types import Principal

MAX_TOKEN_BYTES = 8 * 1024

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@value
class TokenRules:
    """The requirements for a token.

    Clocks may differ by `leeway_s` seconds. A token may live at most `max_lifetime_s` seconds from `iat` to `exp`. If
    `required_type` is set, the header must have that `typ`, such as "at+jwt" (RFC 9068).
    """

    issuer: str
    audience: str
    leeway_s: float
    max_lifetime_s: float
    required_type: str = ""
    names: ClaimNames = field(default_factory=ClaimNames)


@value
class VerifiedToken:
    """The principal of a token, its id, and its expiry in seconds since 1970."""

    principal: Principal
    token_id: str
    ends: float


class VerifiedTokenCache:
    """Keeps up to `most` verified tokens for `kept_s` seconds, never past their expiry; 0 keeps none.

    So a signature is checked only once per `kept_s` for a caller of many calls. The cache stores the SHA-256 digest of
    a token, never the token. It does not know revocations, so the verifier checks them each time.
    """

    def __init__(self, *, most: int = 4096, kept_s: float = 60.0) -> None:
        self._most = most
        self._kept_s = kept_s
        self._entries: OrderedDict[bytes, tuple[VerifiedToken, float]] = OrderedDict()

    def get(self, token: str, now: float) -> VerifiedToken | None:
        """Return the cached result for `token` at `now`, if any."""
        digest = _digest(token)
        entry = self._entries.get(digest)
        if entry is None:
            return None
        verified, until = entry
        # A clock that was set back must not prolong an entry.
        if not until - self._kept_s <= now < until:
            del self._entries[digest]
            return None
        return verified

    def put(self, token: str, verified: VerifiedToken, now: float) -> None:
        """Store `verified`; if the cache is full, it replaces the oldest entry."""
        until = min(now + self._kept_s, verified.ends)
        if self._kept_s <= 0 or until <= now:
            return
        self._entries[_digest(token)] = (verified, until)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)


class TokenVerifier:
    """Verifies tokens and API keys; `now` returns the time in UTC. `cache` keeps verified tokens for a short time."""

    def __init__(
        self,
        *,
        keys: KeySource,
        rules: TokenRules,
        now: Callable[[], datetime],
        roles: Roles | None = None,
        revocations: Revocations | None = None,
        cache: VerifiedTokenCache | None = None,
        api_keys: ApiKeys | None = None,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._now = now
        self._roles = roles or Roles({})
        self._revocations = revocations or Revocations()
        self._cache = cache or VerifiedTokenCache()
        self._api_keys = api_keys

    async def verify(self, token: str) -> Principal:
        """Return the principal of `token`, which may also be an API key.

        Raises:
            TokenExpiredError: the token has expired.
            TokenInvalidError: the token is malformed, forged, revoked, not for this server, or has too long a lifetime.
        """
        if self._api_keys is not None and token.startswith(KEY_PREFIX):
            return self._api_keys.verify(token)
        if len(token) > MAX_TOKEN_BYTES:
            raise build_token_error(f"Token is longer than {MAX_TOKEN_BYTES} bytes")
        now = self._now().timestamp()
        known = self._cache.get(token, now)
        if known is None:
            known = await self._verify_anew(token, now)
            self._cache.put(token, known, now)
        self._refuse_revoked(known)
        return known.principal

    async def _verify_anew(self, token: str, now: float) -> VerifiedToken:
        """Verify a token that is not in the cache."""
        if not _COMPACT.fullmatch(token):
            raise build_token_error("Token is not a JSON Web Token")
        claims = self._read_signed_claims(token, await self._find_keys(token))
        times = TokenTimes.of(claims)
        times.require_valid_at(now, leeway_s=self._rules.leeway_s, max_lifetime_s=self._rules.max_lifetime_s)
        principal = build_principal(claims, names=self._rules.names, roles=self._roles)
        return VerifiedToken(
            principal=principal, token_id=read_token_id(claims), ends=times.expires + self._rules.leeway_s
        )

    def _refuse_revoked(self, known: VerifiedToken) -> None:
        """Refuse a revoked token or subject, even if the token was verified before."""
        reason = self._revocations.find_reason(token_id=known.token_id, subject=known.principal.subject)
        if reason:
            raise build_token_error(reason)

    async def _find_keys(self, token: str) -> Sequence[VerifyingKey]:
        """Return the keys that may have signed `token`: all keys, unless its header names one."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise build_token_error("Token header is malformed") from None
        required = self._rules.required_type
        if required and str(header.get("typ", "")).lower().removeprefix("application/") != required.lower():
            raise build_token_error(f"Token type is not {required}")
        # A token that names an unknown key is not tried with the other keys.
        key_id = header.get("kid")
        found = await self._keys.find(key_id)
        if key_id is not None and not found:
            raise build_token_error("Token is signed with a key that is not known here")
        return found

    def _read_signed_claims(self, token: str, keys: Sequence[VerifyingKey]) -> Mapping[str, Any]:
        """Return the claims of `token` if one of `keys` signed it for this server."""
        refused: jwt.PyJWTError | None = None
        for key in keys:
            try:
                return self._decode(token, key)
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError) as error:
                refused = error
        if isinstance(refused, jwt.InvalidAlgorithmError):
            raise build_token_error(_describe_refusal(refused))
        raise build_token_error("Token signature does not match")

    def _decode(self, token: str, key: VerifyingKey) -> Mapping[str, Any]:
        """Return the claims of `token`; signature, issuer and audience are checked, but not the times."""
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.material,
                algorithms=[key.algorithm],
                audience=self._rules.audience,
                issuer=self._rules.issuer,
                options={
                    "require": list(REQUIRED),
                    "strict_aud": True,
                    "enforce_minimum_key_length": True,
                    # The library reads the clock of the machine; `TokenTimes` uses the injected one.
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
            raise
        except jwt.PyJWTError as error:
            raise build_token_error(_describe_refusal(error)) from None
        return claims


def _describe_refusal(error: jwt.PyJWTError) -> str:
    """Return the reason why the JWT library refused a token, without the library's text."""
    if isinstance(error, jwt.MissingRequiredClaimError):
        # The claim is one of those that the library was asked to require, so its name is safe.
        return f"Token lacks the claim {error.claim}"
    reasons: Mapping[type[jwt.PyJWTError], str] = {
        jwt.InvalidAlgorithmError: "Token is signed with an algorithm that is not accepted",
        jwt.InvalidAudienceError: "Token is not meant for this audience",
        jwt.InvalidIssuerError: "Token comes from another issuer",
        InvalidSubjectError: "Token subject must be a string",
        InvalidJTIError: "Token id must be a string",
    }
    return reasons.get(type(error), "Token is malformed")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

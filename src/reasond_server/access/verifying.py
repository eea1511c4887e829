"""Turns tokens into principals: JSON Web Tokens (RFC 7519), checked as RFC 8725 advises.

Neither a token nor the words of the JWT library ever stand in an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jwt
from jwt.exceptions import InvalidJTIError, InvalidSubjectError

from reasond_server.access.claims import REQUIRED, ClaimNames, Times, invalid, principal_of, token_id_of
from reasond_server.access.revocation import Revocations
from reasond_server.access.roles import Roles
from reasond_server.access.verified import Verified, VerifiedTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.access.keys import KeySource, VerifyingKey
    from reasond_server.types import Principal

MAX_TOKEN_BYTES = 8 * 1024

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a token must be.

    Clocks may differ by `leeway_s`; a token may live `max_lifetime_s` from `iat` to `exp`; with `required_type` its
    header must carry that `typ`, such as "at+jwt" (RFC 9068).
    """

    issuer: str
    audience: str
    leeway_s: float
    max_lifetime_s: float
    required_type: str = ""
    names: ClaimNames = field(default_factory=ClaimNames)


class TokenVerifier:
    """Verifies tokens; `now` returns the time in UTC. What was verified is kept for a minute at most."""

    def __init__(
        self,
        *,
        keys: KeySource,
        rules: TokenRules,
        now: Callable[[], datetime],
        roles: Roles | None = None,
        revocations: Revocations | None = None,
        verified: VerifiedTokens | None = None,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._now = now
        self._roles = roles or Roles({})
        self._revocations = revocations or Revocations()
        self._verified = verified or VerifiedTokens()

    async def verify(self, token: str) -> Principal:
        """Return who `token` speaks for.

        Raises:
            TokenExpiredError: it was good once.
            TokenInvalidError: it is malformed, forged, revoked, not meant for this server or lives too long.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise invalid(f"Token is longer than {MAX_TOKEN_BYTES} bytes")
        now = self._now().timestamp()
        known = self._verified.get(token, now)
        if known is None:
            known = await self._checked(token, now)
            self._verified.put(token, known, now)
        self._require_welcome(known)
        return known.principal

    async def _checked(self, token: str, now: float) -> Verified:
        """Verify a token from the beginning."""
        if not _COMPACT.fullmatch(token):
            raise invalid("Token is not a JSON Web Token")
        claims = self._signed_claims(token, await self._candidates(token))
        times = Times.of(claims)
        times.require_present(now, leeway_s=self._rules.leeway_s, max_lifetime_s=self._rules.max_lifetime_s)
        principal = principal_of(claims, names=self._rules.names, roles=self._roles)
        return Verified(principal=principal, token_id=token_id_of(claims), ends=times.expires + self._rules.leeway_s)

    def _require_welcome(self, known: Verified) -> None:
        """Refuse who was revoked, also where the token was verified before that."""
        reason = self._revocations.reason(token_id=known.token_id, subject=known.principal.subject)
        if reason:
            raise invalid(reason)

    async def _candidates(self, token: str) -> Sequence[VerifyingKey]:
        """Return the keys that may have signed `token`: the one it names, else all."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise invalid("Token header is malformed") from None
        required = self._rules.required_type
        if required and str(header.get("typ", "")).lower().removeprefix("application/") != required.lower():
            raise invalid(f"Token type is not {required}")
        # A key that is named but unknown is not looked for among the others: whoever signs says with what.
        key_id = header.get("kid")
        found = await self._keys.find(key_id)
        if key_id is not None and not found:
            raise invalid("Token is signed with a key that is not known here")
        return found

    def _signed_claims(self, token: str, keys: Sequence[VerifyingKey]) -> Mapping[str, Any]:
        """Return the claims of `token` if one of `keys` signed it for this server."""
        refused: jwt.PyJWTError | None = None
        for key in keys:
            try:
                return self._decoded(token, key)
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError) as error:
                refused = error
        if isinstance(refused, jwt.InvalidAlgorithmError):
            raise invalid(_reason_of(refused))
        raise invalid("Token signature does not match")

    def _decoded(self, token: str, key: VerifyingKey) -> Mapping[str, Any]:
        """Return the claims of `token`, signature, issuer and audience checked but not the times."""
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
                    # The library reads the clock of the machine; ours is handed in, see `Times`.
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError):
            raise
        except jwt.PyJWTError as error:
            raise invalid(_reason_of(error)) from None
        return claims


def _reason_of(error: jwt.PyJWTError) -> str:
    """Return in our words why the JWT library refused a token."""
    if isinstance(error, jwt.MissingRequiredClaimError):
        # The library names one of the claims that it was told to require.
        return f"Token lacks the claim {error.claim}"
    reasons: Mapping[type[jwt.PyJWTError], str] = {
        jwt.InvalidAlgorithmError: "Token is signed with an algorithm that is not accepted",
        jwt.InvalidAudienceError: "Token is not meant for this audience",
        jwt.InvalidIssuerError: "Token comes from another issuer",
        InvalidSubjectError: "Token subject must be a string",
        InvalidJTIError: "Token id must be a string",
    }
    return reasons.get(type(error), "Token is malformed")

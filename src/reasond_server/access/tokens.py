"""Verifies and mints tokens: JSON Web Tokens (RFC 7519, RFC 8725) signed with HS256.

Neither a token nor the words of the JWT library ever stand in an error.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import jwt
from jwt.exceptions import InvalidSubjectError

from reasond_server.errors import (
    InvalidRequestError,
    TokenExpiredError,
    TokenInvalidError,
    TokenMissingError,
    Violation,
)
from reasond_server.types import Principal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

MAX_TOKEN_BYTES = 8 * 1024

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_REQUIRED = ("exp", "iat", "sub", "aud", "iss")
_MAX_SUBJECT_CHARACTERS = 256
_MAX_TENANT_CHARACTERS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key and the only algorithm it may be used with; the secret does not show in `repr`."""

    id: str
    secret: bytes = field(repr=False)
    algorithm: Literal["HS256"] = "HS256"


def ephemeral_key() -> SigningKey:
    """Make a key that lives as long as the process (`--dev`)."""
    return SigningKey(id="ephemeral", secret=secrets.token_bytes(32))


def missing(hint: str = "Provide 'auth_token' in params") -> TokenMissingError:
    """Make the error of a call without a token; `hint` says where the transport looks for one (seed 001)."""
    return TokenMissingError(f"Authentication required: Missing JWT token. {hint}")


def bearer_token(headers: Sequence[str]) -> str:
    """Return the token of a call's Authorization headers; empty where there is no header.

    Raises:
        TokenInvalidError: there is more than one, or it is not `Bearer <token>`.
    """
    if not headers:
        return ""
    if len(headers) > 1:
        raise TokenInvalidError("Authentication failed: more than one authorization header", remedy="Send exactly one.")
    scheme, _, token = headers[0].strip().partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or " " in token:
        raise TokenInvalidError(
            "Authentication failed: the authorization header is not 'Bearer <token>'",
            remedy="Send 'authorization: Bearer <token>'.",
        )
    return token


class TokenVerifier:
    """Turns tokens into principals.

    `now` returns the time in UTC; clocks may differ by `leeway_s`; a token may live `max_lifetime_s` from
    `iat` to `exp`.
    """

    def __init__(
        self,
        *,
        keys: Sequence[SigningKey],
        issuer: str,
        audience: str,
        leeway_s: float,
        max_lifetime_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._keys = tuple(keys)
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s
        self._max_lifetime_s = max_lifetime_s
        self._now = now

    def verify(self, token: str) -> Principal:
        """Return who `token` speaks for.

        Raises:
            TokenExpiredError: it was good once.
            TokenInvalidError: it is malformed, forged, not meant for this server or lives too long.
        """
        if len(token) > MAX_TOKEN_BYTES:
            raise _invalid(f"Token is longer than {MAX_TOKEN_BYTES} bytes")
        if not _COMPACT.fullmatch(token):
            raise _invalid("Token is not a JSON Web Token")
        claims = self._signed_claims(token, self._candidates(token))
        self._check_times(claims)
        return _principal(claims)

    def _candidates(self, token: str) -> Sequence[SigningKey]:
        """Return the keys that may have signed `token`: the one it names, else all."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _invalid("Token header is malformed") from None
        # A key that is named but unknown is not looked for among the others: whoever signs says with what.
        if "kid" not in header:
            return self._keys
        named = [key for key in self._keys if key.id == header["kid"]]
        if not named:
            raise _invalid("Token is signed with a key that is not known here")
        return named

    def _signed_claims(self, token: str, keys: Sequence[SigningKey]) -> Mapping[str, Any]:
        """Return the claims of `token` if one of `keys` signed it for this server."""
        for key in keys:
            try:
                return self._decoded(token, key)
            except jwt.InvalidSignatureError:
                continue
        raise _invalid("Token signature does not match")

    def _decoded(self, token: str, key: SigningKey) -> Mapping[str, Any]:
        """Return the claims of `token`, signature, issuer and audience checked but not the times."""
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key.secret,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": list(_REQUIRED),
                    "strict_aud": True,
                    "enforce_minimum_key_length": True,
                    # The library reads the clock of the machine; ours is handed in, see `_check_times`.
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidSignatureError:
            raise
        except jwt.PyJWTError as error:
            raise _invalid(_reason_of(error)) from None
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        """Refuse claims that are not valid now or for too long."""
        now = self._now().timestamp()
        expires, issued = _seconds(claims, "exp"), _seconds(claims, "iat")
        begins = _seconds(claims, "nbf") if "nbf" in claims else issued
        if expires <= now - self._leeway_s:
            raise TokenExpiredError("Authentication failed: Token has expired", remedy="Obtain a new token.")
        if issued > now + self._leeway_s:
            raise _invalid("Token was issued in the future")
        if begins > now + self._leeway_s:
            raise _invalid("Token is not valid yet")
        if not 0 < expires - issued <= self._max_lifetime_s:
            raise _invalid(f"Token must live at most {self._max_lifetime_s:g} s from iat to exp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMinter:
    """Makes tokens that a TokenVerifier of the same values accepts."""

    key: SigningKey
    issuer: str
    audience: str
    max_lifetime_s: float

    def mint(
        self,
        *,
        subject: str,
        permissions: Sequence[str],
        lifetime_s: float,
        now: datetime,
        tenant: str | None = None,
    ) -> str:
        """Return a token for `subject` that expires `lifetime_s` seconds after `now`.

        Raises:
            InvalidRequestError: no server would accept such a token.
        """
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "iat": int(now.timestamp()),
            "exp": int((now + timedelta(seconds=self._checked_lifetime(lifetime_s))).timestamp()),
            "permissions": list(permissions),
        }
        if tenant is not None:
            claims["tenant"] = tenant
        try:
            _principal(claims)
        except TokenInvalidError as error:
            raise InvalidRequestError(f"No token can be made: {error.message.rpartition(': ')[2]}") from None
        return jwt.encode(claims, self.key.secret, algorithm=self.key.algorithm, headers={"kid": self.key.id})

    def _checked_lifetime(self, lifetime_s: float) -> float:
        """Return `lifetime_s` if a verifier accepts it."""
        if not 1 <= lifetime_s <= self.max_lifetime_s:
            raise InvalidRequestError.of(
                Violation(field="lifetime_s", description=f"must be between 1 and {self.max_lifetime_s:g} seconds")
            )
        return lifetime_s


def _invalid(reason: str) -> TokenInvalidError:
    """Make the error of a token that cannot be accepted."""
    return TokenInvalidError(f"Authentication failed: {reason}", remedy="Obtain a token that is meant for this server.")


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
    }
    return reasons.get(type(error), "Token is malformed")


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return the time that claim `name` holds, in seconds since 1970."""
    value = claims[name]
    # A number beyond 2**53 is no time, and may be too large for the arithmetic of floats.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 2**53:
        raise _invalid(f"Token claim {name} must be a number of seconds")
    return float(value)


def _principal(claims: Mapping[str, Any]) -> Principal:
    """Return whom verified `claims` stand for; without a tenant the subject is its own."""
    subject = claims["sub"]
    tenant = claims.get("tenant", subject)
    permissions = claims.get("permissions", [])
    if not _is_name(subject, _MAX_SUBJECT_CHARACTERS):
        raise _invalid(f"Token subject must have 1-{_MAX_SUBJECT_CHARACTERS} printable characters")
    if "tenant" in claims and not _is_name(tenant, _MAX_TENANT_CHARACTERS):
        raise _invalid(f"Token tenant must have 1-{_MAX_TENANT_CHARACTERS} printable characters")
    if not isinstance(permissions, list) or not all(isinstance(permission, str) for permission in permissions):
        raise _invalid("Token permissions must be a list of strings")
    return Principal(subject=subject, tenant=tenant, permissions=frozenset(permissions))


def _is_name(value: object, most: int) -> bool:
    """Return whether `value` is a text of 1 to `most` printable characters."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()

"""Reads tokens from headers, their claims, and mints JSON Web Tokens (RFC 7519) signed with HS256.

`token_verifier` verifies them. No error quotes a foreign text.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import jwt

from reasond_server.errors.access import TokenExpiredError, TokenInvalidError, TokenMissingError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types import Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reasond_server.access.permissions import Roles
    from reasond_server.access.token_keys import SigningKey

REQUIRED: Final = ("exp", "iat", "sub", "aud", "iss")
_SPACED: Final = frozenset({"scope", "scp"})
_MAX_SUBJECT_CHARACTERS = 256
_MAX_TENANT_CHARACTERS = 128
OWN_TENANT: Final = "sub:"
"""Prefix of the own tenant of a subject without a tenant; no claim and no setting may name a tenant with it."""


def build_token_error(reason: str) -> TokenInvalidError:
    """Return the error for a token that is refused because of `reason`."""
    return TokenInvalidError(f"Authentication failed: {reason}", remedy="Obtain a token that is meant for this server.")


@value
class ClaimNames:
    """The names of claims. `permissions` and `roles` are lists of words; `scope` and `scp` may be one text of words."""

    tenant: str = "tenant"
    permissions: str = "permissions"
    roles: str = "roles"


_BUILT_IN: Final = ClaimNames()


@value
class TokenTimes:
    """The validity of a token, in seconds since 1970; all values are checked to be numbers."""

    expires: float
    issued: float
    begins: float

    @classmethod
    def of(cls, claims: Mapping[str, Any]) -> TokenTimes:
        """Return the times of `claims`.

        Raises:
            TokenInvalidError: a time is not a number of seconds.
        """
        issued = _read_seconds(claims, "iat")
        begins = _read_seconds(claims, "nbf") if "nbf" in claims else issued
        return cls(expires=_read_seconds(claims, "exp"), issued=issued, begins=begins)

    def require_valid_at(self, now: float, *, leeway_s: float, max_lifetime_s: float) -> None:
        """Refuse a token that is not valid at `now`, or is valid for too long.

        Raises:
            TokenExpiredError: the token has expired.
            TokenInvalidError: the token is not valid yet, or its lifetime exceeds `max_lifetime_s`.
        """
        if self.expires <= now - leeway_s:
            raise TokenExpiredError("Authentication failed: Token has expired", remedy="Obtain a new token.")
        if self.issued > now + leeway_s:
            raise build_token_error("Token was issued in the future")
        if self.begins > now + leeway_s:
            raise build_token_error("Token is not valid yet")
        if self.expires <= self.issued:
            raise build_token_error("Token ends before it begins: exp must be later than iat")
        if self.expires - self.issued > max_lifetime_s:
            raise build_token_error(f"Token must live at most {max_lifetime_s:g} s from iat to exp")


def build_principal(
    claims: Mapping[str, Any], *, names: ClaimNames = _BUILT_IN, roles: Roles | None = None
) -> Principal:
    """Return the principal of verified `claims`; a subject without a tenant gets its own tenant.

    Raises:
        TokenInvalidError: subject, tenant, permissions or roles have a wrong form.
    """
    subject = claims["sub"]
    if not _is_name(subject, _MAX_SUBJECT_CHARACTERS):
        raise build_token_error(f"Token subject must have 1-{_MAX_SUBJECT_CHARACTERS} printable characters")
    tenant = claims[names.tenant] if names.tenant in claims else derive_own_tenant(subject)
    if names.tenant in claims and not (_is_name(tenant, _MAX_TENANT_CHARACTERS) and is_free_tenant(tenant)):
        raise build_token_error(
            f"Token tenant must have 1-{_MAX_TENANT_CHARACTERS} printable characters and not begin with '{OWN_TENANT}'"
        )
    permissions = frozenset(_read_words(claims, names.permissions, "permissions"))
    if roles is not None:
        permissions |= roles.collect_grants(_read_words(claims, names.roles, "roles"))
    return Principal(subject=subject, tenant=tenant, permissions=permissions)


def derive_own_tenant(subject: str) -> str:
    """Return the own tenant of a subject without a tenant; no claim and no setting can name it."""
    return f"{OWN_TENANT}{subject}"


def is_free_tenant(tenant: str) -> bool:
    """Return whether a claim or setting may name the tenant; it may not name the own tenant of a subject."""
    return not tenant.startswith(OWN_TENANT)


def read_token_id(claims: Mapping[str, Any]) -> str:
    """Return the text of the claim `jti` of verified claims; empty if it is missing."""
    return str(claims.get("jti", ""))


def _read_words(claims: Mapping[str, Any], name: str, what: str) -> Sequence[str]:
    """Return the words of a claim, which is a list, or for OAuth's scope one text with spaces (RFC 8693)."""
    found = claims.get(name, [])
    if isinstance(found, str) and name in _SPACED:
        return found.split()
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise build_token_error(f"Token {what} must be a list of strings")
    return found


def _read_seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return the time in the claim `name`, in seconds since 1970."""
    value = claims[name]
    # A number beyond 2**53 is not a sensible time, and may be too large for float arithmetic.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 2**53:
        raise build_token_error(f"Token claim {name} must be a number of seconds")
    return float(value)


def _is_name(value: object, most: int) -> bool:
    """Return whether `value` is a text of 1 to `most` printable characters."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()


def build_missing_token_error(hint: str = "Provide 'auth_token' in params") -> TokenMissingError:
    """Return the error for a call without a token; `hint` says where to put the token (seed 001)."""
    return TokenMissingError(f"Authentication required: Missing JWT token. {hint}")


def parse_bearer_token(headers: Sequence[str]) -> str:
    """Return the token of a call's Authorization headers; empty if there is no header.

    Raises:
        TokenInvalidError: there is more than one header, or it is not `Bearer <token>`.
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


@value
class TokenMinter:
    """Makes tokens that a TokenVerifier with the same values accepts."""

    key: SigningKey
    issuer: str
    audience: str
    max_lifetime_s: float
    names: ClaimNames = field(default_factory=ClaimNames)
    token_type: str = "JWT"  # noqa: S105 - a word of the header, no password

    def mint(
        self,
        *,
        subject: str,
        permissions: Sequence[str],
        lifetime_s: float,
        now: datetime,
        tenant: str | None = None,
        roles: Sequence[str] = (),
    ) -> str:
        """Return a token for `subject` that expires `lifetime_s` seconds after `now`.

        Raises:
            InvalidRequestError: no server would accept the token.
        """
        claims: dict[str, Any] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "iat": int(now.timestamp()),
            "exp": int((now + timedelta(seconds=self._require_lifetime(lifetime_s))).timestamp()),
            self.names.permissions: list(permissions),
        }
        if roles:
            claims[self.names.roles] = list(roles)
        if tenant is not None:
            claims[self.names.tenant] = tenant
        try:
            build_principal(claims, names=self.names)
        except TokenInvalidError as error:
            raise InvalidRequestError(f"No token can be made: {error.message.rpartition(': ')[2]}") from None
        headers = {"kid": self.key.id, "typ": self.token_type}
        return jwt.encode(claims, self.key.secret, algorithm=self.key.algorithm, headers=headers)

    def _require_lifetime(self, lifetime_s: float) -> float:
        """Return `lifetime_s` if a verifier accepts it."""
        if not 1 <= lifetime_s <= self.max_lifetime_s:
            raise InvalidRequestError.at("lifetime_s", f"must be between 1 and {self.max_lifetime_s:g} seconds")
        return lifetime_s


class Revocations:
    """Ids of tokens (claim `jti`) and of API keys, and subjects, that are refused although what they show is valid."""

    def __init__(self, *, token_ids: Iterable[str] = (), subjects: Iterable[str] = ()) -> None:
        self._token_ids = frozenset(token_ids)
        self._subjects = frozenset(subjects)

    def replace(self, *, token_ids: Iterable[str] | None = None, subjects: Iterable[str] | None = None) -> None:
        """Replace the refused token ids or subjects from now on; None keeps the present ones."""
        self._token_ids = self._token_ids if token_ids is None else frozenset(token_ids)
        self._subjects = self._subjects if subjects is None else frozenset(subjects)

    def find_reason(self, *, token_id: str = "", subject: str) -> str:
        """Return the reason why a token or a certificate is refused; empty if it is not refused."""
        if token_id and token_id in self._token_ids:
            return "Token has been revoked"
        return "Subject is no longer active" if subject in self._subjects else ""

"""Reads the claims of a token: its principal and its times. No error quotes a foreign text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.access import TokenExpiredError, TokenInvalidError
from reasond_server.types import Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.access.permissions import Roles

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

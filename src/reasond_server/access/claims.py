"""Reads the claims of a token: its principal and its times. Every error has our own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import TokenExpiredError, TokenInvalidError
from reasond_server.types import Principal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.access.permissions import Roles

REQUIRED: Final = ("exp", "iat", "sub", "aud", "iss")
_SPACED: Final = frozenset({"scope", "scp"})
_MAX_SUBJECT_CHARACTERS = 256
_MAX_TENANT_CHARACTERS = 128
OWN_TENANT: Final = "sub:"
"""Prefix of the tenant of a subject that has none; no claim and no setting may name a tenant with it."""


def build_token_error(reason: str) -> TokenInvalidError:
    """Return the error of a token that is refused for `reason`."""
    return TokenInvalidError(f"Authentication failed: {reason}", remedy="Obtain a token that is meant for this server.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """The names of claims. `permissions` and `roles` are lists of words; `scope` and `scp` may be one text of words."""

    tenant: str = "tenant"
    permissions: str = "permissions"
    roles: str = "roles"


_BUILT_IN: Final = ClaimNames()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimes:
    """When a token is valid, in seconds since 1970; checked to be numbers."""

    expires: float
    issued: float
    begins: float

    @classmethod
    def of(cls, claims: Mapping[str, Any]) -> TokenTimes:
        """Return the times of `claims`.

        Raises:
            TokenInvalidError: one is no number of seconds.
        """
        issued = _read_seconds(claims, "iat")
        begins = _read_seconds(claims, "nbf") if "nbf" in claims else issued
        return cls(expires=_read_seconds(claims, "exp"), issued=issued, begins=begins)

    def require_valid_at(self, now: float, *, leeway_s: float, max_lifetime_s: float) -> None:
        """Refuse a token that is not valid at `now`, or is valid for too long.

        Raises:
            TokenExpiredError: it is over.
            TokenInvalidError: it has not begun, or lives longer than `max_lifetime_s`.
        """
        if self.expires <= now - leeway_s:
            raise TokenExpiredError("Authentication failed: Token has expired", remedy="Obtain a new token.")
        if self.issued > now + leeway_s:
            raise build_token_error("Token was issued in the future")
        if self.begins > now + leeway_s:
            raise build_token_error("Token is not valid yet")
        if not 0 < self.expires - self.issued <= max_lifetime_s:
            raise build_token_error(f"Token must live at most {max_lifetime_s:g} s from iat to exp")


def principal_of(claims: Mapping[str, Any], *, names: ClaimNames = _BUILT_IN, roles: Roles | None = None) -> Principal:
    """Return the principal of verified `claims`; a subject without a tenant gets one of its own.

    Raises:
        TokenInvalidError: subject, tenant, permissions or roles are not what they must be.
    """
    subject = claims["sub"]
    if not _is_name(subject, _MAX_SUBJECT_CHARACTERS):
        raise build_token_error(f"Token subject must have 1-{_MAX_SUBJECT_CHARACTERS} printable characters")
    tenant = claims[names.tenant] if names.tenant in claims else own_tenant_of(subject)
    if names.tenant in claims and not (_is_name(tenant, _MAX_TENANT_CHARACTERS) and is_free_tenant(tenant)):
        raise build_token_error(
            f"Token tenant must have 1-{_MAX_TENANT_CHARACTERS} printable characters and not begin with '{OWN_TENANT}'"
        )
    permissions = frozenset(_read_words(claims, names.permissions, "permissions"))
    if roles is not None:
        permissions |= roles.collect_grants(_read_words(claims, names.roles, "roles"))
    return Principal(subject=subject, tenant=tenant, permissions=permissions)


def own_tenant_of(subject: str) -> str:
    """Return the tenant of a subject that has none; no claim and no setting can name it."""
    return f"{OWN_TENANT}{subject}"


def is_free_tenant(tenant: str) -> bool:
    """Return whether a claim or setting may name the tenant: it is not the own tenant of a subject."""
    return not tenant.startswith(OWN_TENANT)


def token_id_of(claims: Mapping[str, Any]) -> str:
    """Return the claim `jti` of verified claims, a text; empty where there is none."""
    return str(claims.get("jti", ""))


def _read_words(claims: Mapping[str, Any], name: str, what: str) -> Sequence[str]:
    """Return the words of a claim: a list, or for OAuth's scope one text with spaces (RFC 8693)."""
    found = claims.get(name, [])
    if isinstance(found, str) and name in _SPACED:
        return found.split()
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise build_token_error(f"Token {what} must be a list of strings")
    return found


def _read_seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return the time that claim `name` holds, in seconds since 1970."""
    value = claims[name]
    # A number beyond 2**53 is no time, and may be too large for the arithmetic of floats.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 2**53:
        raise build_token_error(f"Token claim {name} must be a number of seconds")
    return float(value)


def _is_name(value: object, most: int) -> bool:
    """Return whether `value` is a text of 1 to `most` printable characters."""
    return isinstance(value, str) and 0 < len(value) <= most and value.isprintable()

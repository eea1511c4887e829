"""The caller is not authenticated, or lacks a permission."""

from __future__ import annotations

from reasond_server.errors.base import DEFAULT_RETRY_S, Reason, ReasondError


class AccessError(ReasondError):
    """The caller is not authenticated, or lacks a permission."""


class TokenMissingError(AccessError):
    """The call carries no token."""

    declaration = Reason(
        "TOKEN_MISSING",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Send `authorization: Bearer <token>` as metadata or header; JSON-RPC also takes `auth_token`.",
    )


class TokenInvalidError(AccessError):
    """The token is malformed, forged or not meant for this server."""

    declaration = Reason(
        "TOKEN_INVALID",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Get a token from this server's issuer; the message says which check failed.",
    )


class TokenExpiredError(AccessError):
    """The token has expired."""

    declaration = Reason(
        "TOKEN_EXPIRED",
        "UNAUTHENTICATED",
        is_bare=True,
        denial="authentication",
        remedy="Get a fresh token and call again.",
    )


class IssuerUnavailableError(AccessError):
    """The keys of the issuer cannot be fetched, so the token cannot be verified; nothing was spent."""

    declaration = Reason(
        "ISSUER_UNAVAILABLE",
        "UNAVAILABLE",
        is_fault=True,
        denial="issuer",
        retry_after_s=DEFAULT_RETRY_S,
        remedy="Retry after `RetryInfo` with the same token. If it lasts, the operator looks at `[auth] jwks_url`.",
    )


class PermissionMissingError(AccessError):
    """The token lacks a permission."""

    declaration = Reason(
        "PERMISSION_MISSING",
        "PERMISSION_DENIED",
        is_bare=True,
        denial="permission",
        remedy="Ask the issuer for a token with the permission that the message names.",
    )

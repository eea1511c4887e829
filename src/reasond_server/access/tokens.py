"""Reads tokens from headers and mints JSON Web Tokens (RFC 7519) signed with HS256; `token_verifier` verifies them."""

from __future__ import annotations

from dataclasses import field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import jwt

from reasond_server.access.claims import ClaimNames, build_principal
from reasond_server.errors.access import TokenInvalidError, TokenMissingError
from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from reasond_server.access.token_keys import SigningKey


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
            raise InvalidRequestError.of(
                Violation(field="lifetime_s", description=f"must be between 1 and {self.max_lifetime_s:g} seconds")
            )
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

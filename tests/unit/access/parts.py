"""Shared parts of the token tests: valid claims, keys, and a clock that the test sets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jwt

from reasond_server.access.token_keys import SigningKey, StaticKeys
from reasond_server.access.token_verifier import TokenRules, TokenVerifier

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MAIN = SigningKey(id="main", secret=b"m" * 32)
OTHER = SigningKey(id="other", secret=b"o" * 32)
RULES: dict[str, Any] = {"issuer": "reasond", "audience": "reasond", "leeway_s": 30, "max_lifetime_s": 86_400}


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time


def verifier_of(*keys: SigningKey, now: Callable[[], datetime], **rules: Any) -> TokenVerifier:
    """Return a verifier over `keys` with RULES, changed by `rules`."""
    source = StaticKeys([key.verifying_key for key in keys])
    return TokenVerifier(keys=source, rules=TokenRules(**(RULES | rules)), now=now)


def claims(**changes: object) -> dict[str, Any]:
    """Return valid claims with `changes`; a change to None removes the claim."""
    good = {
        "iss": "reasond",
        "aud": "reasond",
        "sub": "alice",
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 3600,
        "permissions": ["reasoning:execute"],
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def sign(
    payload: dict[str, Any], key: SigningKey = MAIN, headers: dict[str, Any] | None = None, algorithm: str = "HS256"
) -> str:
    """Return a token of `payload`, signed with `key`."""
    return jwt.encode(payload, key.secret, algorithm=algorithm, headers=headers)

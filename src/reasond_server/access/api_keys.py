"""API keys: secrets that a program keeps for months; the server knows only their hashes.

A key is `sk-reasond-<id>-<secret>`. The id is public: logs, metrics and commands name a key by it. The secret has 256
random bits, so a plain SHA-256 of the whole key is enough: nobody can guess it, and a slow hash would cost each call
what it costs an attacker. The form `sk-` is one that the scrubbing of logs and the clients of OpenAI know.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import field
from typing import TYPE_CHECKING, Final

from reasond_server.errors.access import TokenExpiredError, TokenInvalidError
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from reasond_server.access.tokens import Revocations
    from reasond_server.types import Principal

KEY_PREFIX: Final = "sk-reasond-"
_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_ID_CHARACTERS: Final = 12
_SECRET_BYTES: Final = 32
_SHORT_SECRET_BYTES: Final = 16
_KEY: Final = re.compile(rf"{KEY_PREFIX}([a-z0-9]{{{_ID_CHARACTERS}}})-[A-Za-z0-9_-]{{22,43}}")
# Compared with where no key has the id, so that unknown ids and wrong secrets take the same time.
_NOBODY: Final = "0" * 64


@value
class NewKey:
    """A key that was just made; `repr` does not show it."""

    id: str
    text: str = field(repr=False)


def create_key(*, is_short: bool = False) -> NewKey:
    """Return a new key of the system's randomness; a short one has 128 random bits, for the life of a process."""
    size = _SHORT_SECRET_BYTES if is_short else _SECRET_BYTES
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_CHARACTERS))
    return NewKey(id=key_id, text=f"{KEY_PREFIX}{key_id}-{secrets.token_urlsafe(size)}")


def hash_key(text: str) -> str:
    """Return the SHA-256 of a key in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def find_key_id(text: str) -> str:
    """Return the public id within the text of a key; empty if `text` is no key."""
    form = _KEY.fullmatch(text)
    return form[1] if form else ""


@value
class ApiKey:
    """A key by its hash, and who calls with it. `expires` is None if it is valid until it is revoked."""

    id: str
    key_hash: str = field(repr=False)
    principal: Principal
    expires: datetime | None = None
    is_revoked: bool = False


class ApiKeys:
    """The API keys that are accepted; `now` returns the time in UTC.

    `revocations` refuse by the id of a key and by its subject, as they do with tokens.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        revocations: Revocations,
        keys: Iterable[ApiKey] = (),
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._now = now
        self._revocations = revocations
        self._observer = observer
        self._keys: dict[str, ApiKey] = {}
        self._own: dict[str, ApiKey] = {}
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """Accept `keys` from now on, and no others."""
        self._keys = {key.id: key for key in keys} | self._own

    def issue(self, principal: Principal) -> str:
        """Return a new short key with which `principal` calls until this process ends."""
        made = create_key(is_short=True)
        self._own[made.id] = ApiKey(id=made.id, key_hash=hash_key(made.text), principal=principal)
        self._keys |= self._own
        return made.text

    def verify(self, text: str) -> Principal:
        """Return the principal of a key.

        Raises:
            TokenExpiredError: the key has expired.
            TokenInvalidError: the key is not known here or revoked.
        """
        key_id = find_key_id(text)
        if not key_id:
            raise TokenInvalidError("Authentication failed: API key is malformed", remedy="Send the whole key.")
        key = self._keys.get(key_id)
        # The id is public and looked up as it is; only the secret must not show in the time that this takes.
        is_right = hmac.compare_digest(hash_key(text), _NOBODY if key is None else key.key_hash)
        if key is None or not is_right:
            raise TokenInvalidError(
                "Authentication failed: API key is not known here", remedy="Ask the operator for a key of this server."
            )
        self._refuse_ended(key)
        self._observer.api_key_used(key.id, "accepted")
        return key.principal

    def _refuse_ended(self, key: ApiKey) -> None:
        """Refuse a key that was revoked or has expired; its owner is told which, because the secret was right."""
        reason = (
            "API key has been revoked"
            if key.is_revoked
            else self._revocations.find_reason(token_id=key.id, subject=key.principal.subject)
        )
        if reason:
            self._observer.api_key_used(key.id, "revoked")
            raise TokenInvalidError(
                f"Authentication failed: {reason}",
                remedy="Ask the operator for a new key.",
                metadata={"key_id": key.id},
            )
        if key.expires is not None and key.expires <= self._now():
            self._observer.api_key_used(key.id, "expired")
            raise TokenExpiredError(
                "Authentication failed: API key has expired",
                remedy="Ask the operator for a new key.",
                metadata={"key_id": key.id},
            )

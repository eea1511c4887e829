"""What is refused from now on, although its signature, hash or certificate is good."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


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

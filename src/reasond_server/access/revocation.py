"""Tokens and subjects that are no longer welcome, though their tokens are not over; changes hold at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Revocations:
    """Ids of tokens (claim `jti`) and subjects (claim `sub`) that are refused."""

    def __init__(self, *, token_ids: Iterable[str] = (), subjects: Iterable[str] = ()) -> None:
        self._token_ids = frozenset(token_ids)
        self._subjects = frozenset(subjects)

    def replace(self, *, token_ids: Iterable[str], subjects: Iterable[str]) -> None:
        """Refuse these from now on, and no others."""
        self._token_ids, self._subjects = frozenset(token_ids), frozenset(subjects)

    def reason(self, *, token_id: str, subject: str) -> str:
        """Return why a token is refused; empty where it is not."""
        if token_id and token_id in self._token_ids:
            return "Token has been revoked"
        return "Subject is no longer active" if subject in self._subjects else ""

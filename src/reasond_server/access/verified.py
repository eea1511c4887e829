"""What was verified a moment ago, so that a caller of many calls pays for one signature a minute."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reasond_server.types import Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Whom a token stands for, its id, and when it ends, in seconds since 1970."""

    principal: Principal
    token_id: str
    ends: float


class VerifiedTokens:
    """Keeps up to `most` verified tokens for `kept_s` seconds, never past their end; 0 keeps none.

    A token is kept by its SHA-256 digest, never itself. Revocations are not known here: who asks looks
    there as well.
    """

    def __init__(self, *, most: int = 4096, kept_s: float = 60.0) -> None:
        self._most = most
        self._kept_s = kept_s
        self._entries: OrderedDict[bytes, tuple[Verified, float]] = OrderedDict()

    def get(self, token: str, now: float) -> Verified | None:
        """Return what is known of `token` at `now`."""
        digest = _digest(token)
        entry = self._entries.get(digest)
        if entry is None:
            return None
        verified, until = entry
        # A clock that was set back must not prolong what is kept.
        if not until - self._kept_s <= now < until:
            del self._entries[digest]
            return None
        return verified

    def put(self, token: str, verified: Verified, now: float) -> None:
        """Keep `verified`, in place of the oldest where there is no room."""
        until = min(now + self._kept_s, verified.ends)
        if self._kept_s <= 0 or until <= now:
            return
        self._entries[_digest(token)] = (verified, until)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()

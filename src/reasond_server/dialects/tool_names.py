"""Names of tools in at most as many characters as every provider accepts."""

from __future__ import annotations

import hashlib
from typing import Final

MOST_CHARACTERS: Final = 64
"""What OpenAI's interface accepts, and what some servers hold clients to."""
_DIGEST: Final = 8


def shorten_name(name: str, *, key: str = "") -> str:
    """Return the beginning of `name` with a digest of `key`, or of the whole name, which keeps two names different."""
    digest = hashlib.sha256((key or name).encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{name[: MOST_CHARACTERS - _DIGEST - 1]}_{digest}"

"""Texts of callers, models and tools as spans hold them, where an operator asks for that at all."""

from __future__ import annotations

from typing import Final

from reasond_server.telemetry.redaction import redacted

MAX_CHARACTERS: Final = 2048
"""Longest text of one message, argument or result in a span."""


def shortened(text: str) -> str:
    """Return the beginning of `text` without secrets, encodable."""
    kept = redacted(text[:MAX_CHARACTERS]).encode("utf-8", "replace").decode()
    return f"{kept} …" if len(text) > MAX_CHARACTERS else kept

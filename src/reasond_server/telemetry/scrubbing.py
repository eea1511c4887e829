"""Removes tokens, passwords and the texts of callers and models from log lines and spans."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

# Fields that may hold texts of callers or models are dropped from every record, also from those of libraries.
CONTENT_FIELDS: Final = frozenset(
    {"answer", "body", "carryover", "content", "material", "messages", "params", "prompt", "query", "response", "text"}
)
SECRET_FIELDS: Final = frozenset(
    {"api_key", "apikey", "auth_token", "authorization", "client_secret", "cookie", "password", "secret", "token"}
)
REDACTED: Final = "***"
MAX_TEXT_CHARACTERS: Final = 8192
MAX_SPAN_CHARACTERS: Final = 2048
"""Longest text of one message, argument or result in a span."""
_MAX_DEPTH: Final = 4
_MAX_ITEMS: Final = 50

_WORDS: Final = r"authorization|(?:auth|access|refresh)[_-]token|api[_-]?key|client[_-]secret|secret|password"
_SECRETS: Final = re.compile(
    r"eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){0,4}"
    # Keys in the form of OpenAI's; the password before the host of a URL.
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"
    r"|(?P<user>://[^\s/@:\"']*:)[^\s/\"']+(?=@)"
    r"|(?i:(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"',;]+)"
    rf"|(?i:(?P<field>(?<![a-z])(?:{_WORDS})[\\\"']*\s*[:=]\s*[\\\"']*)"
    r"(?!(?:bearer|basic)\s)[^\s\"',;}\\]+)"
)
Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def has_marks(text: str) -> bool:
    """Return whether `text` may contain a secret.

    Every text that `_SECRETS` matches contains one of these marks, and the search for them is eight times cheaper.
    """
    lowered = text.lower()
    # A chain, because a loop takes longer. Most texts lack the two single characters, which are found much faster.
    return (
        ("k" in lowered and ("key" in lowered or "sk-" in lowered))
        or ("/" in lowered and "://" in lowered)
        or "eyj" in lowered
        or "auth" in lowered
        or "basic" in lowered
        or "bearer" in lowered
        or "secret" in lowered
        or "access" in lowered
        or "refresh" in lowered
        or "password" in lowered
    )


def redact(text: str) -> str:
    """Return `text` with JSON Web Tokens, Authorization values and the like replaced by ***."""
    if not has_marks(text):
        return text
    return _SECRETS.sub(lambda found: f"{found['user'] or found['scheme'] or found['field'] or ''}{REDACTED}", text)


def shown_text(text: str) -> str:
    """Return `text` redacted, cut to MAX_TEXT_CHARACTERS, and encodable in UTF-8."""
    return redact(text[:MAX_TEXT_CHARACTERS]).encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Return whether a field of this name always counts as a secret."""
    return name.lower().replace("-", "_") in SECRET_FIELDS


def shown_value(value: object, *, depth: int = 0) -> Plain:
    """Return `value` in a form that JSON can hold: nested values to a depth of 4, without content and secrets."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return shown_text(value)
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return {
            shown_text(str(name)): REDACTED if is_secret(str(name)) else shown_value(inner, depth=depth + 1)
            for name, inner in list(value.items())[:_MAX_ITEMS]
            if str(name).lower() not in CONTENT_FIELDS
        }
    if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
        return [shown_value(inner, depth=depth + 1) for inner in list(value)[:_MAX_ITEMS]]
    return shown_text(_show(value))


def _show(value: object) -> str:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        # In the text of a container, content and secrets could not be found.
        return "…"
    try:
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else repr(value)
    except Exception:  # noqa: BLE001 - a value without a working repr must not lose the line
        return f"<{type(value).__name__}>"


def shorten(text: str) -> str:
    """Return the beginning of `text` without secrets and encodable, for spans with content."""
    kept = redact(text[:MAX_SPAN_CHARACTERS]).encode("utf-8", "replace").decode()
    return f"{kept} …" if len(text) > MAX_SPAN_CHARACTERS else kept

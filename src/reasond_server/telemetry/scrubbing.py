"""Cuts out what must not stand in a log line or a span: tokens, passwords, and what callers asked or models wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

# Fields that could hold what a caller asked or a model wrote are dropped, whoever logs them.
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
    # Keys of OpenAI and those who took over its form; the password before the host of a URL.
    r"|(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"
    r"|(?P<user>://[^\s/@:\"']*:)[^\s/\"']+(?=@)"
    r"|(?i:(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"',;]+)"
    rf"|(?i:(?P<field>(?<![a-z])(?:{_WORDS})[\\\"']*\s*[:=]\s*[\\\"']*)"
    r"(?!(?:bearer|basic)\s)[^\s\"',;}\\]+)"
)
# Each text that `_SECRETS` finds holds one of them: looking for these is eight times cheaper.
_MARKS: Final = ("eyj", "bearer", "basic", "auth", "key", "secret", "password", "://", "sk-", "access", "refresh")

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def has_marks(text: str) -> bool:
    """Whether there may be something in `text` to redact."""
    lowered = text.lower()
    # A loop, because a generator takes as long again as the search.
    for mark in _MARKS:  # noqa: SIM110 - as above
        if mark in lowered:
            return True
    return False


def redact(text: str) -> str:
    """Return `text` with JSON Web Tokens, Authorization values and the like replaced by ***."""
    if not has_marks(text):
        return text
    return _SECRETS.sub(lambda found: f"{found['user'] or found['scheme'] or found['field'] or ''}{REDACTED}", text)


def shown_text(text: str) -> str:
    """Return `text` redacted, in a length that a log can take, and encodable."""
    return redact(text[:MAX_TEXT_CHARACTERS]).encode("utf-8", "backslashreplace").decode("utf-8")


@lru_cache(maxsize=1024)
def is_secret(name: str) -> bool:
    """Whether a field of that name holds a secret, whatever it looks like."""
    return name.lower().replace("-", "_") in SECRET_FIELDS


def shown_value(value: object, *, depth: int = 0) -> Plain:
    """Return `value` as JSON can say it: nested values to a depth of 4, without content and secrets."""
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
        # As text its parts could not be told from each other.
        return "…"
    try:
        return value.decode("utf-8", "replace") if isinstance(value, bytes | bytearray) else repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot say what it is must not cost the line
        return f"<{type(value).__name__}>"


def shorten(text: str) -> str:
    """Return the beginning of `text` without secrets, encodable: as spans hold it where an operator wants content."""
    kept = redact(text[:MAX_SPAN_CHARACTERS]).encode("utf-8", "replace").decode()
    return f"{kept} …" if len(text) > MAX_SPAN_CHARACTERS else kept

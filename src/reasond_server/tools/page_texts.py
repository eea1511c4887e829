"""The text of a page in HTML: what a reader sees, with the addresses of its links.

Tags are found in one pass over the text, because parsers take quadratic time for some broken pages.
"""

from __future__ import annotations

import html
import re
from typing import Final

_LOOKED_AT: Final = 20_000
_LEAST_TAGS: Final = 5
_MOST_ATTRIBUTES: Final = 4_000
_IS_PAGE: Final = re.compile(r"\s*(?:<!doctype html|<html\b)", re.IGNORECASE)
_CLOSING: Final = re.compile(r"</(?:a|p|div|li|td|tr|span|h[1-6]|ul|table|body)>", re.IGNORECASE)
_NAME: Final = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]*")
_HREF: Final = re.compile(r"\bhref\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>\"']+))", re.IGNORECASE)
_UNSEEN: Final = frozenset({"script", "style", "svg", "noscript", "template"})
_INLINE: Final = frozenset({"a", "b", "i", "em", "strong", "span", "code", "small", "sub", "sup", "u", "mark", "abbr"})


def read_page(text: str) -> str | None:
    """Return the lines that a reader of the page `text` sees, links as `text <address>`; None if it is no page."""
    if not _IS_PAGE.match(text) and len(_CLOSING.findall(text[:_LOOKED_AT])) < _LEAST_TAGS:
        return None
    first, *parts = text.split("<")
    seen, hidden, address = [first], "", ""
    for part in parts:
        tag, end, rest = part.partition(">")
        found = _NAME.match(tag)
        name = found[0].lower() if found and end else ""
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
            if hidden:
                continue
        elif name in _UNSEEN and not tag.endswith("/"):
            hidden = name
            continue
        if not name:
            seen.append("" if part.startswith("!") else f"<{part}")
            continue
        if name == "/a" and address:
            seen.append(f" {address}")
            address = ""
        elif name == "a":
            link = _HREF.search(tag[:_MOST_ATTRIBUTES])
            address = (link[1] or link[2] or link[3] or "") if link else ""
        seen.append(rest if name.lstrip("/") in _INLINE else f"\n{rest}")
    lines = (" ".join(line.split()) for line in html.unescape("".join(seen)).splitlines())
    return "\n".join(line for line in lines if line)

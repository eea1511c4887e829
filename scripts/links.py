"""Find the links of Markdown pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FENCED = re.compile(r"^[ \t]*(?P<fence>`{3,}|~{3,}).*?^[ \t]*(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def prose(markdown: str) -> str:
    """Return the text of a page without its code."""
    return CODE.sub("", FENCED.sub("", markdown))


def links(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield text and target of the links and pictures of a page that do not lead to other hosts."""
    # Code is removed first, because it may look like a link; code in the text of a link leaves an empty text.
    for match in LINK.finditer(prose(markdown)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["text"], match["target"]

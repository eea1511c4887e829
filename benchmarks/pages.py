"""Writes figures into hand-written pages, between two markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def put_between(page: Path, begin: str, end: str, content: str) -> None:
    """Replace the text of `page` between the lines `begin` and `end` by `content`."""
    before, first, rest = page.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise SystemExit(f"{page.name} lacks {begin} or {end}")
    page.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")

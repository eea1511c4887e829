"""Rank files and tokenizers that are generated for tests: small, and in the real formats."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from reasond_server.llm.counting.tokenizers import KNOWN_RANKS, Ranks

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ("th", "the", " t", " the", "wa", "wal", "wall", " wall", "12", "\u4f60", "an", "<|", "|>", "end")


def ranks_content() -> bytes:
    """Return a rank file: every byte, then the words of `WORDS`."""
    tokens = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(dict.fromkeys(tokens)))
    return "".join(lines).encode()


def made_up_ranks(folder: Path, *, name: str = "o200k_base", plain: bool = True) -> Ranks:
    """Write a rank file into `folder` and return its `Ranks`. The pattern is that of the real encoding."""
    pattern = next(one.pattern for one in KNOWN_RANKS if one.name == name)
    content = ranks_content()
    ranks = Ranks(name=name, sha256=hashlib.sha256(content).hexdigest(), pattern=pattern)
    (folder / ranks.file_names[int(plain)]).write_bytes(content)
    return ranks

"""Texts in several scripts, with the fewest and the most tokens that any of six real tokenizers needs for them.

Measured once with the encodings o200k_base, cl100k_base, p50k_base and gpt2, Mistral's Tekken and a SentencePiece model
of 32,000 pieces: docs/decisions/0026-what-reports-teach.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class TokenizerSample(NamedTuple):
    """A text, and the smallest and the largest number of tokens that a real tokenizer makes of it."""

    text: str
    fewest: int
    most: int


SAMPLES = {
    name: TokenizerSample(text=row["text"] * row.get("times", 1), fewest=row["fewest"], most=row["most"])
    for name, row in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}

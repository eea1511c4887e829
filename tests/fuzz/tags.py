"""Fuzz the parser of replies and what neutralises tags: `python -m tests.fuzz.tags -runs=200000`."""

from __future__ import annotations

from tests.fuzz.running import fuzz

if __name__ == "__main__":
    fuzz("tags")

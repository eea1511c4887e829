"""Fuzz the Authorization header and the verifier of tokens: `python -m tests.fuzz.token_header -runs=200000`."""

from __future__ import annotations

from tests.fuzz.running import fuzz

if __name__ == "__main__":
    fuzz("token_header")

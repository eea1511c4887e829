"""Fuzz the reader of server-sent events: `python -m tests.fuzz.sse -runs=200000`."""

from __future__ import annotations

from tests.fuzz.running import fuzz

if __name__ == "__main__":
    fuzz("sse")

"""Fuzz the JSON-RPC reader, its parameters and the limits of a task: `python -m tests.fuzz.jsonrpc -runs=200000`."""

from __future__ import annotations

from tests.fuzz.running import fuzz

if __name__ == "__main__":
    fuzz("jsonrpc")

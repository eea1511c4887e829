"""Fuzz the configuration file and the environment over it: `python -m tests.fuzz.settings -runs=200000`."""

from __future__ import annotations

from tests.fuzz.running import fuzz

if __name__ == "__main__":
    fuzz("settings")

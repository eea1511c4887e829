"""Reasoning strategies, one file or package each. No strategy imports another or depends on the transport."""

"""Judges of a candidate: checks, which run code, and critics, which only read it."""

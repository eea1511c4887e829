"""Repairs: candidates that are really run, and a patch that applies; the third kind of work."""

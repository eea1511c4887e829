"""Prompts of a model and parsing of its replies: sections, segments, tags, windows. Nothing here calls a tool."""

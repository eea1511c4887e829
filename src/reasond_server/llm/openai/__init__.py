"""Servers that speak the protocols of OpenAI: Chat Completions and Responses; the only room that imports openai."""

"""Servers that speak the protocols of OpenAI: Chat Completions and Responses.

The way of a call: `openai_model` (attempts, health), `transport` (connections, bytes), `answer` (deadlines, bytes
to events, faults, the end). `chat` and `responses` are the two protocols, `addressing` builds URLs and headers.
"""

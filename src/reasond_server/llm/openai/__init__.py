"""Servers that speak the protocols of OpenAI: Chat Completions and Responses.

A call passes through `openai_model` (attempts, health), `transport` (connections, bytes) and `answer` (deadlines,
decoding, faults, the end). `chat` and `responses` are the two protocols. `model_client` is the `openai` package.
"""

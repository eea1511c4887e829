"""The OpenAI-compatible interface: chat completions and the list of models, over the reasoning service."""

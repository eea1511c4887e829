"""The HTTP side: JSON-RPC, the agent card, health; the only package that uses ASGI."""

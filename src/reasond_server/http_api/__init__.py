"""The HTTP side: JSON-RPC, the agent card, health; the only room that knows ASGI."""

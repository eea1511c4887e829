"""Helpers for every room, without knowledge of reasoning: time, addresses, plug-ins, asyncio tasks."""

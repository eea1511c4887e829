"""The shapes of ASGI 3.0: what a server hands to an application (asgi.readthedocs.io, "ASGI Message Format")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
"""What is known of a request, or of a connection."""

Message: TypeAlias = MutableMapping[str, Any]
"""One event, under `type` what kind of one."""

Receive: TypeAlias = Callable[[], Awaitable[Message]]
"""Waits for the next event from the client."""

Send: TypeAlias = Callable[[Message], Awaitable[None]]
"""Sends an event to the client."""

ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An application: serves one request."""

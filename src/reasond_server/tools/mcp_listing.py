"""Lists of tools as MCP servers send them: what is no tool is left out, so that the package takes the others.

The package refuses a list as a whole if one entry breaks the protocol, and the connection ends with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mcp_types import methods
from pydantic import ValidationError

from reasond_server.errors.base import show

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from mcp.client import Transport
    from mcp.shared.message import SessionMessage

# Later versions take more keys, and the same forms of these.
_VERSION: Final = "2025-11-25"


class ListingTransport:
    """The transport of a client, over `inner`; `leave_out` is told the name of each tool that is left out, and why."""

    def __init__(self, inner: Transport, *, leave_out: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._leave_out = leave_out

    async def __aenter__(self) -> tuple[Any, Any]:
        """Open the transport; returns its streams, as the package's protocol says."""
        read, write = await self._inner.__aenter__()
        return _ListingStream(read, self._leave_out), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the transport."""
        return await self._inner.__aexit__(kind, error, traceback)


class _ListingStream:
    """The messages of `inner`, with whole tools alone in each list of tools."""

    def __init__(self, inner: Any, leave_out: Callable[[str, str], None]) -> None:  # noqa: ANN401 - the package's stream
        self._inner = inner
        self._leave_out = leave_out

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - such as the context of the last message
        return getattr(self._inner, name)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._clean(await self._inner.receive())

    def __aiter__(self) -> Self:
        """Return this stream."""
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Return the next message, or end as the inner stream does."""
        return self._clean(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        """Open the stream."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the stream."""
        closed: bool | None = await self._inner.__aexit__(kind, error, traceback)
        return closed

    def _clean(self, received: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(received, Exception):
            return received
        result = getattr(received.message, "result", None)
        if not isinstance(result, dict) or not isinstance(tools := result.get("tools"), list):
            return received
        kept = [tool for place, tool in enumerate(tools) if not self._refuse(tool, place)]
        if len(kept) == len(tools):
            return received
        message = received.message.model_copy(update={"result": {**result, "tools": kept}})
        return replace(received, message=message)

    def _refuse(self, tool: object, place: int) -> bool:
        """Return whether `tool` is none, and tell it."""
        try:
            methods.validate_server_result("tools/list", _VERSION, {"tools": [tool]})
        except ValidationError as error:
            name = tool.get("name") if isinstance(tool, dict) else None
            path = ".".join(map(str, error.errors()[0]["loc"][2:])) or "it is no object"
            self._leave_out(show(name) if isinstance(name, str) else f"number {place + 1}", path)
            return True
        return False

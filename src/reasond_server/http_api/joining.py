"""The head of an answer and its body leave in one piece: two cost the server and its client a system call each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_HEAD: Final = b"HTTP/1.1 "


class JoiningTransport:
    """A transport that keeps the head of an answer until what is written next, or until the loop comes round.

    uvicorn writes the head as soon as an answer begins, and nearly every body follows before anything else happens. All
    but writing is the business of `transport`, and `on_close` closes it.
    """

    def __init__(
        self, transport: asyncio.Transport, *, loop: asyncio.AbstractEventLoop, on_close: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._on_close = on_close
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write `data` after what is kept; keep it if it is the head of an answer."""
        if self._head:
            kept, self._head = self._head, b""
            self._transport.writelines((kept, data))
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Write what is kept, and close."""
        self._flush()
        self._on_close()

    def is_closing(self) -> bool:
        """Return whether nothing more is written."""
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a transport has
        return getattr(self._transport, name)

    def _flush(self) -> None:
        kept, self._head = self._head, b""
        if kept and not self._transport.is_closing():
            self._transport.write(kept)

"""Scripts of a misbehaving upstream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.llm.openai.backend_options import RetryPolicy
from tests.faults.upstream import STREAM_HEAD, chunk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.faults.upstream import Conversation

    Script = Callable[[Conversation], Awaitable[None]]

SECRET = "the provider's own words"
THRICE = RetryPolicy(max_attempts=3)
PATIENT = RetryPolicy(max_attempts=1, breaker_window=100_000)
OPEN_HEAD = STREAM_HEAD + b"connection: close\r\n\r\n"


async def hang(conversation: Conversation) -> None:
    await conversation.until_gone()


async def hang_after_headers(conversation: Conversation) -> None:
    await conversation.send(OPEN_HEAD)
    await conversation.until_gone()


async def hang_after_text(conversation: Conversation) -> None:
    await conversation.send(OPEN_HEAD + chunk("Hello"))
    await conversation.until_gone()


async def abort_at_once(conversation: Conversation) -> None:
    conversation.abort()


async def abort_after_text(conversation: Conversation) -> None:
    await conversation.send(STREAM_HEAD + b"transfer-encoding: chunked\r\n\r\n")
    piece = chunk("Hello")
    await conversation.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    await conversation.send(b"ff\r\ndata: ")


def drip(piece: bytes) -> Script:
    async def script(conversation: Conversation) -> None:
        await conversation.send(OPEN_HEAD + chunk("Hello"))
        while not conversation.gone.is_set():
            await conversation.send(piece)
            await asyncio.sleep(0.01)  # the pace of the drip, not a wait for anything

    return script

"""Keep-alive connections that the server drops at the next request."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from reasond_server.errors.model import ModelUnavailableError
from tests.accepting import accepting
from tests.faults.backend import ONE_ATTEMPT, backend, call
from tests.faults.upstream import DONE, STREAM_HEAD, Conversation, chunk, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ANSWER = chunk("Hello") + chunk(finish="stop") + DONE
KEPT = STREAM_HEAD + b"content-length: %d\r\n\r\n" % len(ANSWER) + ANSWER
LAST = STREAM_HEAD + b"connection: close\r\n\r\n" + ANSWER


@asynccontextmanager
async def dropping(*, answers: int, together: int = 1) -> AsyncIterator[tuple[str, list[str]]]:
    """Run a server that drops each connection at the request after `answers`; yield its address and the requests.

    It answers the first requests when as many as `together` have come.
    """
    heads: list[str] = []
    have_come = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for number in range(answers + 1):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
                heads.append(head)
                if number == answers:
                    return
                if len(heads) >= together:
                    have_come.set()
                await have_come.wait()
                is_last = "connection: close" in head
                writer.write(LAST if is_last else KEPT)
                await writer.drain()
                if is_last:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async with accepting(serve) as port:
        yield f"http://127.0.0.1:{port}/v1", heads


def closes(heads: list[str]) -> list[bool]:
    """Return for each request whether it asked to close the connection."""
    return ["connection: close" in head for head in heads]


async def test_a_kept_connection_that_is_dropped_costs_no_wait_and_only_once() -> None:
    async with dropping(answers=1) as (address, heads), backend(address, retries=ONE_ATTEMPT) as one:
        for _ in range(3):
            outcome = await call(one.model)
            assert outcome.error is None
        assert one.sleep.waits == []
        assert closes(heads) == [False, False, True, True]


async def test_a_call_gets_past_all_kept_connections_that_are_dropped() -> None:
    """As after the samples of a vote, whose answers llama.cpp ends at once."""
    async with dropping(answers=1, together=5) as (address, heads), backend(address, retries=ONE_ATTEMPT) as one:
        for outcome in await asyncio.gather(*(call(one.model) for _ in range(5))):
            assert outcome.error is None
        outcome = await call(one.model)
        assert outcome.error is None
        assert one.sleep.waits == []
        assert closes(heads)[-1]
        assert len(heads) <= 5 + 5 + 1


async def test_connections_are_kept_as_long_as_the_server_keeps_them() -> None:
    async with dropping(answers=3) as (address, heads), backend(address) as one:
        for _ in range(3):
            assert (await call(one.model)).error is None
        assert closes(heads) == [False, False, False]


async def test_a_first_connection_that_is_dropped_is_a_fault_like_any_other() -> None:
    async with dropping(answers=0) as (address, heads), backend(address, retries=ONE_ATTEMPT) as one:
        outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert closes(heads) == [False]


async def test_a_request_that_was_dropped_on_a_connection_of_its_own_is_not_sent_again() -> None:
    """The server may have read it, and bill it."""

    async def drop(conversation: Conversation) -> None:
        conversation.abort()

    async def refuse(conversation: Conversation) -> None:
        await conversation.answer("400 Bad Request", b"{}")

    async with upstream(refuse, drop) as server:
        async with backend(server.address, retries=ONE_ATTEMPT) as one:
            await call(one.model)
            outcome = await call(one.model)
        assert isinstance(outcome.error, ModelUnavailableError)
        assert server.calls == 2

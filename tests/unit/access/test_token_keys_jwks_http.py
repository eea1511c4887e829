"""The fetcher against real servers that misbehave."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from reasond_server.access.token_keys import HttpJwksFetcher, JwksFetchError
from tests.accepting import accepting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def answering(*parts: bytes, hangs: bool = False) -> AsyncGenerator[tuple[str, list[bytes]], None]:
    """Serve `parts` to every client, then close or hang; yield the address and the received requests."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if hangs:
                await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with accepting(serve) as port:
        yield f"http://127.0.0.1:{port}/keys", requests


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


async def test_the_document_is_returned_and_nothing_secret_is_sent() -> None:
    async with answering(ok(b'{"keys": []}')) as (url, requests):
        assert await HttpJwksFetcher(url=url).fetch() == b'{"keys": []}'
    assert requests[0].startswith(b"GET /keys HTTP/1.1\r\n")
    assert b"authorization" not in requests[0].lower()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "status 307"),
        (b"not http at all\r\n\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{", "cannot be reached"),
        (b"", "cannot be reached"),
        (ok(b"x" * 65_537), "longer than 65536 bytes"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + ok(b"{}"), "cannot be reached"),
    ],
)
async def test_an_issuer_that_misbehaves_is_refused_in_our_words(answer: bytes, reason: str) -> None:
    async with answering(answer) as (url, _):
        with pytest.raises(JwksFetchError, match=reason):
            await HttpJwksFetcher(url=url).fetch()


@pytest.mark.parametrize("before", [(), (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{",)])
async def test_an_issuer_that_hangs_is_given_up(before: tuple[bytes, ...]) -> None:
    async with answering(*before, hangs=True) as (url, _):
        with pytest.raises(JwksFetchError, match=r"within 0.2 s"):
            await HttpJwksFetcher(url=url, timeout_s=0.2).fetch()


async def test_an_issuer_that_is_not_there_is_told() -> None:
    async with answering() as (url, _):
        pass
    with pytest.raises(JwksFetchError, match="cannot be reached"):
        await HttpJwksFetcher(url=url).fetch()

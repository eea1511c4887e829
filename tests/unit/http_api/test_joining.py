"""The bytes that a joining transport writes, and the number of its writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.http_api.connections import JoiningTransport

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Recording(asyncio.Transport):
    """Records its calls, one entry for each write."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []
        self.is_shut = False

    def write(self, data: Any) -> None:
        self.told.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.told.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.is_shut

    def close(self) -> None:
        self.told.append("closed")

    def abort(self) -> None:
        self.is_shut = True
        self.told.append("cut")


@pytest.fixture
def recording() -> Recording:
    return Recording()


def joining(recording: Recording) -> JoiningTransport:
    return JoiningTransport(recording, loop=asyncio.get_running_loop(), on_close=recording.close)


async def test_a_head_and_what_follows_at_once_are_one_piece(recording: Recording) -> None:
    transport = joining(recording)
    transport.write(HEAD)
    assert recording.told == []
    transport.write(b"body")
    transport.write(b"more")
    await asyncio.sleep(0)
    assert recording.told == [HEAD + b"body", b"more"]


async def test_a_head_that_nothing_follows_is_written_when_the_loop_comes_round(recording: Recording) -> None:
    transport = joining(recording)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert recording.told == [HEAD]
    transport.write(b"later")
    assert recording.told == [HEAD, b"later"]


async def test_a_head_is_written_before_the_connection_is_closed(recording: Recording) -> None:
    transport = joining(recording)
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert recording.told == [HEAD, "closed"]


async def test_a_head_is_lost_with_its_connection(recording: Recording) -> None:
    transport = joining(recording)
    transport.write(HEAD)
    transport.abort()
    await asyncio.sleep(0)
    assert recording.told == ["cut"]
    assert transport.is_closing()

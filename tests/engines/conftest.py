"""A real Redis for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from tests.engines.redis_server import RedisServer, running_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def redis_server() -> AsyncIterator[RedisServer]:
    async with running_redis() as running:
        yield running


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    # A busy machine may take long to answer.
    client = Redis.from_url(redis_server.url, socket_timeout=120, socket_connect_timeout=120)
    yield client
    await client.aclose()

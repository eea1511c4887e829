"""Places that several servers share, over a real Redis that is also killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from reasond_server.limits.request_limits import release_slot
from reasond_server.limits.shared import RedisSlots
from tests.engines.admitting import admitting, passes_admission

if TYPE_CHECKING:
    from tests.engines.redis_server import RedisServer


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_one_of_many_callers_gets_the_last_place_and_releases_it(kind: str, redis: Redis) -> None:
    places = admitting(kind, redis, most=1)
    taken = await asyncio.gather(*(passes_admission(places, "alice", str(number)) for number in range(20)))
    assert taken.count(True) == 1
    assert await passes_admission(places, "bob", "x")
    await release_slot(places, "alice", str(taken.index(True)))
    await release_slot(places, "alice", str(taken.index(True)))
    assert await passes_admission(places, "alice", "next")


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_place_is_moved_from_one_server_to_the_next_whether_it_was_released_or_not(
    kind: str, redis: Redis
) -> None:
    places = admitting(kind, redis, most=1)
    assert await passes_admission(places, "alice", "run")
    await places.move("alice", "run:2", earlier=["run"])
    assert not await passes_admission(places, "alice", "next")
    await release_slot(places, "alice", "run")
    assert not await passes_admission(places, "alice", "next")
    await places.move("alice", "run:4", earlier=["run", "run:2", "run:3"])
    await release_slot(places, "alice", "run:4")
    assert await passes_admission(places, "alice", "next")


async def test_the_place_of_a_server_that_died_is_free_soon_and_that_of_one_that_lives_is_not(
    redis: Redis, redis_server: RedisServer
) -> None:
    other = Redis.from_url(redis_server.url, socket_timeout=120, socket_connect_timeout=120)
    dead, alive = (RedisSlots(redis=client, most=1, lease_s=1.0) for client in (other, redis))
    assert await dead.take("bob", "lost")
    assert await alive.take("alice", "run")
    await dead.aclose()
    await other.aclose()
    async with asyncio.timeout(120):
        while not await alive.take("bob", "new"):
            await alive.renew()
    assert not await alive.take("alice", "another")
    await alive.aclose()


async def test_places_are_renewed_while_they_are_held_also_after_they_had_lapsed(redis: Redis) -> None:
    may_go, pauses = asyncio.Semaphore(0), []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await may_go.acquire()

    slots = RedisSlots(redis=redis, most=1, sleep=pause)
    assert await slots.take("alice", "run")
    key = slots._build_key("alice")
    await redis.delete(key)
    async with asyncio.timeout(120):
        may_go.release()
        while not await redis.zcard(key):
            pass
        assert 55_000 < await redis.pttl(key) <= 60_000
        rest = slots.release("alice", "run")
        await rest()
        may_go.release()
        assert slots._renewing is not None
        await slots._renewing
    assert pauses == [15.0, 15.0]
    assert not await redis.exists(key)


async def test_a_place_that_is_released_while_it_is_renewed_does_not_come_back(redis: Redis) -> None:
    slots = RedisSlots(redis=redis, most=2)
    assert await slots.take("alice", "one")
    assert await slots.take("alice", "two")
    renewing = asyncio.create_task(slots.renew())
    await asyncio.sleep(0)
    # The release reaches Redis before the renewal does.
    slots.release("alice", "one")
    await renewing
    assert await redis.zrange(slots._build_key("alice"), 0, -1) == [b"two"]
    await slots.aclose()


async def test_failed_renewals_do_not_block_others_and_are_logged_in_one_line(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    slots = RedisSlots(redis=redis, most=1)
    for caller in ("alice", "bob", "carol", "dave"):
        assert await slots.take(caller, "run")
        await redis.delete(slots._build_key(caller))
    for caller in ("alice", "dave"):
        await redis.set(slots._build_key(caller), "not what we wrote")
    await slots.renew()
    assert await redis.zrange(slots._build_key("bob"), 0, -1) == [b"run"]
    assert await redis.zrange(slots._build_key("carol"), 0, -1) == [b"run"]
    assert caplog.messages == ["places of 2 callers could not be renewed"]
    await slots.aclose()


async def test_a_renewal_that_fails_is_made_again(redis_server: RedisServer, redis: Redis) -> None:
    may_go = asyncio.Semaphore(0)

    async def pause(_seconds: float) -> None:
        await may_go.acquire()

    slots = RedisSlots(redis=redis, most=1, sleep=pause)
    assert await slots.take("alice", "run")
    redis_server.kill()
    may_go.release()
    await asyncio.sleep(0)
    await redis_server.start()
    async with asyncio.timeout(120):
        while not await redis.exists(slots._build_key("alice")):
            may_go.release()
            await asyncio.sleep(0)
    await slots.aclose()

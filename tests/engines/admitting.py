"""Admission with limits in memory or in Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from reasond_server.limits.request_limits import (
    DirectAdmission,
    MemoryRates,
    MemorySlots,
    MemoryWindows,
    RequestAdmission,
    RequestLimits,
)
from reasond_server.limits.shared import RedisRates, RedisSlots, build_redis_storage

if TYPE_CHECKING:
    from redis.asyncio import Redis


def admitting(kind: str, redis: Redis, *, most: int | None = None, **limits: int) -> RequestAdmission:
    """Return an admission with `limits` and `most` places, in "memory" or in "redis"."""
    bounds = RequestLimits(**limits)
    rates = (
        RedisRates(storage=build_redis_storage(redis), limits=bounds)
        if kind == "redis"
        else MemoryRates(windows=MemoryWindows(monotonic=time.monotonic), limits=bounds)
    )
    if most is None:
        return DirectAdmission(rates=rates, slots=None)
    slots = RedisSlots(redis=redis, most=most) if kind == "redis" else MemorySlots(most=most)
    return DirectAdmission(rates=rates, slots=slots)


async def passes_admission(admission: RequestAdmission, caller: str, place: str, *, weight: int = 1) -> bool:
    """Return whether `caller` is admitted."""
    return await admission.admit(caller, place, weight=weight) is None

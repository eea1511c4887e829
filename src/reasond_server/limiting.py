"""Settings become limits: what counts requests, places and tokens, in memory or in Redis."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.errors import SettingsError
from reasond_server.limits.callers import CallerLimits
from reasond_server.limits.health import SharedHealth
from reasond_server.limits.tokens import MemoryTokenLedger, TokenLimits
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from reasond_server.config import LimitsSettings
    from reasond_server.limits.redis_places import RedisSlots
    from reasond_server.limits.redis_tokens import RedisTokenLedger
    from reasond_server.limits.requests import Admission, RequestGate, RequestLimits
    from reasond_server.limits.tokens import TokenLedger
    from reasond_server.telemetry.observers import LimitObserver


@dataclass(frozen=True, slots=True, kw_only=True)
class Limiting:
    """The limits of a server; `health` tells whether what is shared can be reached."""

    callers: CallerLimits
    health: SharedHealth
    redis: Redis | None = None
    places: RedisSlots | None = None
    tokens: RedisTokenLedger | None = None

    async def aclose(self) -> None:
        """Give back what was left, and the connections."""
        await self.callers.aclose()
        if self.places is not None:
            await self.places.aclose()
        if self.tokens is not None:
            await self.tokens.aclose()
        if self.redis is not None:
            await self.redis.aclose()


def limiting_of(settings: LimitsSettings, *, observer: LimitObserver = UNOBSERVED) -> Limiting:
    """Return the limits that `settings` ask for, with `observer` told; what sets no bound costs nothing.

    Raises:
        SettingsError: Redis is asked for, but its package is not installed or its address is no address.
    """
    health = SharedHealth(monotonic=time.monotonic)
    redis = _redis(settings) if settings.storage == "redis" else None
    places = None if redis is None else _places(settings, redis)
    tokens = None if redis is None else _tokens(settings, redis)
    admission = None if redis is None else _shared(settings, redis, places)
    callers = CallerLimits(
        gate=_gate(settings, health, admission, observer),
        ledger=_ledger(settings, health, tokens),
        weights=settings.weights,
        by=settings.by,
        observer=observer,
    )
    return Limiting(callers=callers, health=health, redis=redis, places=places, tokens=tokens)


def _redis(settings: LimitsSettings) -> Redis:
    try:
        from redis.asyncio import Redis  # noqa: PLC0415 - a server without Redis starts without its package
    except ImportError:
        raise SettingsError(
            'limits.storage = "redis" needs the package redis', remedy="Install reasond-server[redis]."
        ) from None
    try:
        # Half a second is for a new connection; how long a call waits, Fallback says.
        return Redis.from_url(settings.redis_url.get_secret_value(), socket_connect_timeout=0.5, socket_timeout=0.5)
    except ValueError:
        raise SettingsError(
            "limits.redis_url is no address of Redis", remedy='Write one such as "redis://127.0.0.1:6379/0".'
        ) from None


def _token_limits(settings: LimitsSettings, *, share: int = 1) -> TokenLimits:
    return TokenLimits(
        per_minute=_share(settings.tokens_per_minute, share), per_day=_share(settings.tokens_per_day, share)
    )


def _share(amount: int, servers: int) -> int | None:
    """Return the part of `amount` that one of `servers` may use by itself; None where there is no bound."""
    return max(1, amount // servers) if amount else None


def _tokens(settings: LimitsSettings, redis: Redis) -> RedisTokenLedger | None:
    """Return the budgets that all servers share; None where tokens are not bounded."""
    limits = _token_limits(settings)
    if not limits.buckets:
        return None
    from reasond_server.limits.redis_tokens import RedisTokenLedger  # noqa: PLC0415 - needs the package redis

    return RedisTokenLedger(redis=redis, limits=limits)


def _ledger(settings: LimitsSettings, health: SharedHealth, shared: RedisTokenLedger | None) -> TokenLedger | None:
    limits = _token_limits(settings)
    if not limits.buckets:
        return None
    if shared is None:
        return MemoryTokenLedger(limits=limits, monotonic=time.monotonic)
    from reasond_server.limits.fallback import Fallback, FallbackLedger  # noqa: PLC0415 - needs the package redis

    alone = MemoryTokenLedger(limits=_token_limits(settings, share=settings.replicas), monotonic=time.monotonic)
    fallback = Fallback(health=health, on_failure=settings.on_backend_failure)
    return FallbackLedger(shared=shared, local=alone, fallback=fallback)


def _gate(
    settings: LimitsSettings, health: SharedHealth, shared: Admission | None, observer: LimitObserver
) -> RequestGate | None:
    """Return what admits requests; None where nothing bounds them, so that nothing is imported for it."""
    if not _bounds_requests(settings):
        return None
    from reasond_server.limits.requests import RequestGate  # noqa: PLC0415 - a server without limits needs none of it

    alone = _alone(settings, servers=1 if shared is None else settings.replicas)
    has_places = settings.concurrent_requests > 0
    if shared is None:
        return RequestGate(admission=alone, has_places=has_places, observer=observer)
    from reasond_server.limits.fallback import Fallback, FallbackAdmission  # noqa: PLC0415 - needs the package redis

    fallback = Fallback(health=health, on_failure=settings.on_backend_failure)
    admission = FallbackAdmission(shared=shared, local=alone, fallback=fallback)
    return RequestGate(admission=admission, has_places=has_places, observer=observer)


def _request_limits(settings: LimitsSettings, *, servers: int) -> RequestLimits | None:
    """Return the limits that one of `servers` keeps by itself; None where requests are not counted."""
    from reasond_server.limits.requests import RequestLimits  # noqa: PLC0415 - as above

    minute, hour = (_share(amount, servers) for amount in (settings.requests_per_minute, settings.requests_per_hour))
    return RequestLimits(per_minute=minute, per_hour=hour) if minute or hour else None


def _alone(settings: LimitsSettings, *, servers: int) -> Admission:
    """Return what one of `servers` admits by itself."""
    from reasond_server.limits.concurrency import MemorySlots  # noqa: PLC0415 - as above
    from reasond_server.limits.requests import DirectAdmission  # noqa: PLC0415 - as above

    most, limits, rates = (
        _share(settings.concurrent_requests, servers),
        _request_limits(settings, servers=servers),
        None,
    )
    if limits is not None:
        from reasond_server.limits.memory_windows import MemoryWindows  # noqa: PLC0415 - needs the package limits
        from reasond_server.limits.windows import MemoryRates  # noqa: PLC0415 - as above

        rates = MemoryRates(windows=MemoryWindows(monotonic=time.monotonic), limits=limits)
    return DirectAdmission(rates=rates, slots=MemorySlots(most=most) if most else None)


def _bounds_requests(settings: LimitsSettings) -> bool:
    return bool(settings.requests_per_minute or settings.requests_per_hour or settings.concurrent_requests)


def _places(settings: LimitsSettings, redis: Redis) -> RedisSlots | None:
    """Return the places that all servers share; None where executions at once are not counted."""
    if not settings.concurrent_requests:
        return None
    from reasond_server.limits.redis_places import RedisSlots  # noqa: PLC0415 - needs the package redis

    return RedisSlots(redis=redis, most=settings.concurrent_requests)


def _shared(settings: LimitsSettings, redis: Redis, places: RedisSlots | None) -> Admission | None:
    """Return what all servers admit together; None where requests are not bounded."""
    if not _bounds_requests(settings):
        return None
    from reasond_server.limits.requests import DirectAdmission  # noqa: PLC0415 - as above

    limits, rates = _request_limits(settings, servers=1), None
    if limits is not None:
        from reasond_server.limits.windows import RedisRates, redis_windows  # noqa: PLC0415 - as above

        rates = RedisRates(storage=redis_windows(redis), limits=limits)
    return DirectAdmission(rates=rates, slots=places)

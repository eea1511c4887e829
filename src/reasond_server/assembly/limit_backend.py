"""Builds the limits that the settings ask for: requests, executions at once and tokens, in memory or in Redis.

Refusals of the token accounts of callers are recorded in the audit log.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from reasond_server.access import audit
from reasond_server.access.permissions import Operation
from reasond_server.errors.base import SettingsError
from reasond_server.limits.budgets import MemoryTokenLedger, TokenLedger, TokenLimits
from reasond_server.limits.callers import CallerLimits, OnSettled, SharedHealth, ignore_settled
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from reasond_server.config import LimitsSettings
    from reasond_server.errors.limits import TokenBudgetExhaustedError
    from reasond_server.limits.request_limits import RequestAdmission, RequestGate, RequestLimits
    from reasond_server.limits.shared import RedisSlots, RedisTokenLedger
    from reasond_server.llm.metered_model import TokenAccount


@value
class LimitBackend:
    """The limits of a server; `health` says whether Redis can be reached."""

    callers: CallerLimits
    health: SharedHealth
    redis: Redis | None = None
    slots: RedisSlots | None = None
    tokens: RedisTokenLedger | None = None

    async def aclose(self) -> None:
        """Release the remaining permits and reservations, and close the connections."""
        await self.callers.aclose()
        if self.slots is not None:
            await self.slots.aclose()
        if self.tokens is not None:
            await self.tokens.aclose()
        if self.redis is not None:
            await self.redis.aclose()


def build_limit_backend(
    settings: LimitsSettings, *, observer: Observer = UNOBSERVED, on_settled: OnSettled = ignore_settled
) -> LimitBackend:
    """Return the limits that `settings` ask for, which report refusals to `observer`; absent limits cost nothing.

    Raises:
        SettingsError: the settings name Redis, but its package is not installed or its address is not valid.
    """
    health = SharedHealth(monotonic=time.monotonic)
    redis = _open_redis(settings) if settings.storage == "redis" else None
    gate, slots = _build_gate(settings, health, redis, observer)
    ledger, tokens = _build_ledger(settings, health, redis)
    callers = CallerLimits(
        gate=gate, ledger=ledger, weights=settings.weights, by=settings.by, observer=observer, on_settled=on_settled
    )
    return LimitBackend(callers=callers, health=health, redis=redis, slots=slots, tokens=tokens)


def _open_redis(settings: LimitsSettings) -> Redis:
    try:
        from redis.asyncio import Redis  # noqa: PLC0415 - a server without Redis starts without its package
    except ImportError:
        raise SettingsError(
            'limits.storage = "redis" needs the package redis', remedy="Install reasond-server[redis]."
        ) from None
    try:
        # Half a second limits a new connection; Fallback limits each call.
        return Redis.from_url(settings.redis_url.get_secret_value(), socket_connect_timeout=0.5, socket_timeout=0.5)
    except ValueError:
        raise SettingsError(
            "limits.redis_url is no address of Redis", remedy='Write one such as "redis://127.0.0.1:6379/0".'
        ) from None


def _read_token_limits(settings: LimitsSettings, *, share: int = 1) -> TokenLimits:
    return TokenLimits(
        per_minute=_share(settings.tokens_per_minute, share), per_day=_share(settings.tokens_per_day, share)
    )


def _share(amount: int, servers: int) -> int | None:
    """Return the share of `amount` that each of `servers` may use without Redis; None without a limit."""
    return max(1, amount // servers) if amount else None


def _build_ledger(
    settings: LimitsSettings, health: SharedHealth, redis: Redis | None
) -> tuple[TokenLedger | None, RedisTokenLedger | None]:
    """Return the budgets of tokens, and those of them that all servers share; None without limits."""
    limits = _read_token_limits(settings)
    if not limits.buckets:
        return None, None
    if redis is None:
        return MemoryTokenLedger(limits=limits, monotonic=time.monotonic), None
    from reasond_server.limits.shared import (  # noqa: PLC0415 - needs the package redis
        Fallback,
        FallbackLedger,
        RedisTokenLedger,
    )

    shared = RedisTokenLedger(redis=redis, limits=limits)
    local = MemoryTokenLedger(limits=_read_token_limits(settings, share=settings.replicas), monotonic=time.monotonic)
    fallback = Fallback(health=health, on_failure=settings.on_backend_failure)
    return FallbackLedger(shared=shared, local=local, fallback=fallback), shared


def _build_gate(
    settings: LimitsSettings, health: SharedHealth, redis: Redis | None, observer: Observer
) -> tuple[RequestGate | None, RedisSlots | None]:
    """Return the gate of requests, and the slots that all servers share; None without limits."""
    has_slots = settings.concurrent_requests > 0
    if not (settings.requests_per_minute or settings.requests_per_hour or has_slots):
        return None, None
    from reasond_server.limits.request_limits import (  # noqa: PLC0415 - a server without limits needs none of it
        DirectAdmission,
        RequestGate,
    )

    admission = _build_local(settings, servers=1 if redis is None else settings.replicas)
    if redis is None:
        return RequestGate(admission=admission, has_slots=has_slots, observer=observer), None
    from reasond_server.limits.shared import (  # noqa: PLC0415 - needs the package redis
        Fallback,
        FallbackAdmission,
        RedisSlots,
    )

    slots = RedisSlots(redis=redis, most=settings.concurrent_requests) if has_slots else None
    rates = None
    if (limits := _read_request_limits(settings, servers=1)) is not None:
        from reasond_server.limits.shared import RedisRates, build_redis_storage  # noqa: PLC0415 - loads `limits`

        rates = RedisRates(storage=build_redis_storage(redis), limits=limits)
    fallback = Fallback(health=health, on_failure=settings.on_backend_failure)
    shared = DirectAdmission(rates=rates, slots=slots)
    admission = FallbackAdmission(shared=shared, local=admission, fallback=fallback)
    return RequestGate(admission=admission, has_slots=has_slots, observer=observer), slots


def _read_request_limits(settings: LimitsSettings, *, servers: int) -> RequestLimits | None:
    """Return the limits that each of `servers` applies without Redis; None if requests are not counted."""
    from reasond_server.limits.request_limits import RequestLimits  # noqa: PLC0415 - as above

    minute, hour = (_share(amount, servers) for amount in (settings.requests_per_minute, settings.requests_per_hour))
    return RequestLimits(per_minute=minute, per_hour=hour) if minute or hour else None


def _build_local(settings: LimitsSettings, *, servers: int) -> RequestAdmission:
    """Return the admission that each of `servers` applies without Redis."""
    from reasond_server.limits.request_limits import DirectAdmission, MemorySlots  # noqa: PLC0415 - as above

    most, rates = _share(settings.concurrent_requests, servers), None
    if (limits := _read_request_limits(settings, servers=servers)) is not None:
        from reasond_server.limits.request_limits import MemoryRates, MemoryWindows  # noqa: PLC0415 - as above

        rates = MemoryRates(windows=MemoryWindows(monotonic=time.monotonic), limits=limits)
    return DirectAdmission(rates=rates, slots=MemorySlots(most=most) if most else None)


MODEL_CALL = Operation("CallModel")
"""The operation of a model call in the audit log; callers do not request it, and it needs no permission."""


def audited_account(limits: CallerLimits, tenant: str, subject: str, execution_id: str) -> TokenAccount | None:
    """Return the token account for the model calls of an execution; None if its tokens are not limited.

    Each refusal becomes a line of the audit log.
    """
    return limits.open_account(tenant, subject, on_refused=partial(_note_refusal, tenant, subject, execution_id))


def _note_refusal(tenant: str, subject: str, execution_id: str, error: TokenBudgetExhaustedError) -> None:
    principal = Principal(subject=subject, tenant=tenant, permissions=frozenset())
    audit.log_denied(MODEL_CALL, error, principal=principal, execution_id=execution_id)

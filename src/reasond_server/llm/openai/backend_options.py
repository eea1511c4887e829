"""The operator's settings of one model backend, as plain values."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from reasond_server.llm.profiles import ModelProfile
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.types.usage import Price


@value
class Timeouts:
    """Timeouts in seconds. `idle_s` limits the time between pieces of content, ignoring keep-alives and comments."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 600.0


@value
class RetryPolicy:
    """When a call is repeated: only before any of its answer was accepted, and only if waiting can help.

    `budget_ratio` is the part of a retry that each call adds to the retry budget. The breaker opens when the share
    `breaker_ratio` of the last `breaker_window` calls failed, and admits one call after `breaker_cooldown_s` seconds.
    """

    max_attempts: int = 3
    first_wait_s: float = 0.5
    max_wait_s: float = 20.0
    budget_ratio: float = 0.1
    breaker_window: int = 20
    breaker_ratio: float = 0.5
    breaker_cooldown_s: float = 10.0


@value
class BackendOptions:
    """One model at one address, Azure's if `azure_api_version` is set. `repr` does not show the key.

    `api_key` may be a function that returns the key of each request, such as one that expires. `azure_token` is such a
    function for tokens of Microsoft Entra ID, for Azure instead of a key.
    """

    name: str
    model: str
    base_url: str
    api_key: str | Callable[[], Awaitable[str]] = field(default="", repr=False)
    azure_token: Callable[[], Awaitable[str]] | None = field(default=None, repr=False)
    protocol: Literal["chat", "responses"] = "chat"
    azure_api_version: str = ""
    profile: ModelProfile = field(default_factory=ModelProfile)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    max_concurrency: int = 64
    max_line_bytes: int = 1_048_576
    max_response_bytes: int = 8_388_608
    price: Price | None = None

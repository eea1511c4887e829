"""What the operator decides about one model backend, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reasond_server.llm.profiles import ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. `idle_s` is between pieces of content: keep-alives and comments do not count."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a call is made again: only before anything was accepted, and only where waiting can help.

    `budget_ratio` is the share of calls that may be retries over a window; the breaker opens when of the last
    `breaker_window` calls `breaker_ratio` failed, and lets one through after `breaker_cooldown_s` seconds.
    """

    max_attempts: int = 3
    first_wait_s: float = 0.5
    max_wait_s: float = 20.0
    budget_ratio: float = 0.1
    breaker_window: int = 20
    breaker_ratio: float = 0.5
    breaker_cooldown_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """One model behind one address, Azure's where `azure_api_version` is set. The key does not show in `repr`."""

    name: str
    model: str
    base_url: str
    api_key: str = field(default="", repr=False)
    protocol: Literal["chat", "responses"] = "chat"
    azure_api_version: str = ""
    profile: ModelProfile = field(default_factory=ModelProfile)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    max_concurrency: int = 64
    max_line_bytes: int = 1_048_576
    max_response_bytes: int = 8_388_608

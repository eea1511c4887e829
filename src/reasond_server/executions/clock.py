"""Where times, ids and chance come from; injected, so that a log can be made again byte for byte."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.context.fences import new_nonce

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time of day in UTC, seconds for measuring, new ids and nonces, and a number in [0, 1) for spreading waits."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    new_id: Callable[[], str]
    new_nonce: Callable[[], str] = new_nonce
    random: Callable[[], float] = random.random

"""Whether what several servers share can be reached: asked by whoever would otherwise wait for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("reasond.limits")


class SharedHealth:
    """Remembers a failure for `rest_s` seconds, in which nobody tries again; one try then tells whether it is over."""

    def __init__(self, *, monotonic: Callable[[], float], rest_s: float = 1.0) -> None:
        self._monotonic = monotonic
        self._rest_s = rest_s
        self._failed_s: float | None = None

    @property
    def is_degraded(self) -> bool:
        """Whether the last try failed: limits are then kept by each server for itself."""
        return self._failed_s is not None

    def may_try(self) -> bool:
        """Return whether it is worth trying; of several who ask after the rest, the first one tries."""
        if self._failed_s is None:
            return True
        now_s = self._monotonic()
        if now_s - self._failed_s < self._rest_s:
            return False
        self._failed_s = now_s
        return True

    def failed(self, error: Exception) -> None:
        """Note a failure."""
        if self._failed_s is None:
            _log.warning("limits cannot be shared at present: %s", type(error).__name__)
        self._failed_s = self._monotonic()

    def worked(self) -> None:
        """Note that it works again."""
        if self._failed_s is not None:
            _log.info("limits are shared again")
        self._failed_s = None

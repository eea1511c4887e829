"""Frees memory after calls with metadata above the limit.

gRPC rejects such metadata itself, but only from peers that have acknowledged its SETTINGS. In their first seconds,
other peers can send metadata of any size. grpc.aio keeps the metadata of each call in a reference cycle, which only the
garbage collector frees. The collector counts objects, not bytes, so a few hundred such calls can hold a gigabyte.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS_TIMEOUT_S: Final = 3.0
"""Seconds within which a peer must acknowledge the SETTINGS; grpc then closes its connection."""

# By then the connections of these calls are closed.
_COLLECT_AFTER_S: Final = SETTINGS_TIMEOUT_S + 1.0


class Leftovers:
    """Notes calls with more than `max_metadata_bytes` of metadata, and collects garbage once for many of them."""

    def __init__(self, *, max_metadata_bytes: int) -> None:
        self._max_metadata_bytes = max_metadata_bytes
        self._is_due = False

    def note(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Check the metadata of a call; if they are too large, run the garbage collector some seconds later."""
        size = sum(map(len, chain.from_iterable(metadata)))
        if size > self._max_metadata_bytes and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_COLLECT_AFTER_S, self._collect)

    def _collect(self) -> None:
        self._is_due = False
        gc.collect()
        asyncio.get_running_loop().run_in_executor(None, _trim)


def _trim() -> None:
    """Return freed memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

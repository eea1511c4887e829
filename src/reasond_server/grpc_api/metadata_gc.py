"""Frees memory after calls with metadata above the limit.

gRPC rejects such metadata itself, but only from peers that have acknowledged its SETTINGS. In their first seconds,
other peers can send metadata of any size. Such calls are refused, but grpc.aio keeps the metadata of each call in a
reference cycle, which only the garbage collector frees. The collector counts objects, not bytes, so a few hundred such
calls can hold a gigabyte.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Sequence
from itertools import chain
from typing import Final

SETTINGS_TIMEOUT_S: Final = 3.0
"""Seconds within which a peer must acknowledge the SETTINGS; grpc then closes its connection."""

# By then the connections of these calls are closed.
_COLLECT_AFTER_S: Final = SETTINGS_TIMEOUT_S + 1.0
_MOST_LEFT_BYTES: Final = 64 * 1024 * 1024
# HTTP/2 counts 32 bytes for each pair besides its texts (RFC 9113, section 10.5.1); in Python a short pair takes more.
_PAIR_BYTES: Final = 32
_PAIR_BYTES_IN_PYTHON: Final = 200


class MetadataCollector:
    """Finds calls with more than `max_metadata_bytes` of metadata, and collects garbage once for many of them."""

    def __init__(self, *, max_metadata_bytes: int) -> None:
        self.max_metadata_bytes = max_metadata_bytes
        self._left_bytes = 0
        self._is_due = False

    def note(self, metadata: Sequence[tuple[str, str | bytes]]) -> bool:
        """Return whether the metadata of a call are too large; if so, the garbage collector runs some seconds later.

        It runs at once if what may be left takes 64 MiB.
        """
        size = sum(map(len, chain.from_iterable(metadata)))
        if size + len(metadata) * _PAIR_BYTES <= self.max_metadata_bytes:
            return False
        self._left_bytes += size + len(metadata) * _PAIR_BYTES_IN_PYTHON
        loop = asyncio.get_running_loop()
        if self._left_bytes > _MOST_LEFT_BYTES:
            self._left_bytes = 0
            # By then grpc.aio has found the handler of this call, and nothing but the cycle holds the metadata.
            loop.call_soon(gc.collect)
        if not self._is_due:
            self._is_due = True
            loop.call_later(_COLLECT_AFTER_S, self._collect)
        return True

    def _collect(self) -> None:
        self._is_due, self._left_bytes = False, 0
        gc.collect()
        asyncio.get_running_loop().run_in_executor(None, _trim)


def _trim() -> None:
    """Return freed memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

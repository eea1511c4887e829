"""The request id of a call: the caller's own where it may stand in logs and headers, else a fresh one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CALL_ID_KEY: Final = "x-request-id"
"""Name of the gRPC metadata and of the HTTP header, in both directions."""

# Nothing that could break a log line or a header out of its place, and no more than a UUID or a trace id needs.
_FIT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", re.ASCII)


def call_id_of(given: Iterable[str], *, new_call_id: Callable[[], str]) -> str:
    """Return the first well-formed id of those `given`, else a new one.

    Well-formed are 1-128 letters, digits and `._:/+=-`, the first a letter or digit.
    """
    for text in given:
        if _FIT.fullmatch(text):
            return text
    return new_call_id()

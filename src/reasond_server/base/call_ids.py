"""The request id of a call: the caller's own id if it is safe in logs and headers, else a new one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CALL_ID_KEY: Final = "x-request-id"
"""Name of the gRPC metadata key and of the HTTP header, in both directions."""

# These characters cannot end a log line or a header, and they are enough for a UUID or a trace id.
_FIT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", re.ASCII)


def call_id_of(given: Iterable[str], *, new_call_id: Callable[[], str]) -> str:
    """Return the first well-formed id in `given`, else a new one.

    A well-formed id has 1-128 letters, digits and `._:/+=-`; the first character is a letter or digit.
    """
    for text in given:
        if _FIT.fullmatch(text):
            return text
    return new_call_id()

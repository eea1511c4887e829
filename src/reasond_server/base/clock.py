"""The source of times, ids and random numbers; injected, so that a log can be reproduced byte for byte."""

from __future__ import annotations

import os
import random
import re
import string
from typing import TYPE_CHECKING, Final

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime


# 26^28 > 2^128. Letters, because tokenizers cut them into fewer tokens than digits.
_NONCE_LETTERS = 28
# Each letter stands for nine byte values; the remaining values would make some letters more likely.
_LETTER_OF_BYTE = (string.ascii_lowercase.encode() * 10)[:256]
_UNFIT_BYTES = bytes(range(9 * len(string.ascii_lowercase), 256))
_SPARE_BYTES = 20
_POWERS = [26**place for place in range(_NONCE_LETTERS)]


def new_nonce() -> str:
    """Return a random nonce of at least 128 bits: 28 lower-case letters."""
    letters = b""
    while len(letters) < _NONCE_LETTERS:
        letters += os.urandom(_NONCE_LETTERS + _SPARE_BYTES).translate(_LETTER_OF_BYTE, _UNFIT_BYTES)
    return letters[:_NONCE_LETTERS].decode()


def encode_nonce(number: int) -> str:
    """Return the nonce of `number` (0 or more): 28 lower-case letters, its lowest digits in base 26."""
    return "".join([string.ascii_lowercase[number // power % 26] for power in _POWERS])


@value
class Clock:
    """The time in UTC, monotonic seconds, new ids and nonces, and a random number in [0, 1) for spreading waits.

    `elapsed` are seconds that pass while the machine sleeps, too. `expiry` is the time in UTC by which what is stored
    expires, which lags behind `now` where the clock may be wrong. By default they are `monotonic` and `now`.
    """

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    new_id: Callable[[], str]
    new_nonce: Callable[[], str] = new_nonce
    random: Callable[[], float] = random.random
    elapsed: Callable[[], float] | None = None
    expiry: Callable[[], datetime] | None = None

    def expiry_now(self) -> datetime:
        """Return the time by which what is stored expires."""
        return (self.expiry or self.now)()


CALL_ID_KEY: Final = "x-request-id"
"""Name of the gRPC metadata key and of the HTTP header, in both directions."""

# These characters cannot end a log line or a header, and they are enough for a UUID or a trace id.
_FIT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=-]{0,127}", re.ASCII)


def choose_call_id(given: Iterable[str], *, new_call_id: Callable[[], str]) -> str:
    """Return the first well-formed id in `given`, else a new one.

    A well-formed id has 1-128 letters, digits and `._:/+=-`; the first character is a letter or digit.
    """
    for text in given:
        if _FIT.fullmatch(text):
            return text
    return new_call_id()

"""HTTP clients of tests, for servers of the same machine."""

from __future__ import annotations

import ssl
from typing import Any, Final

import httpx

LIMIT_S: Final = 180.0
"""Ends only what hangs: httpx itself waits five seconds, which a busy machine may take for any answer."""

WITHOUT_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""To read the authorities of the machine for each client took a twentieth of the time of the tests of HTTP."""


def make_http_client(
    *, timeout: float = LIMIT_S, verify: ssl.SSLContext | bool = WITHOUT_AUTHORITIES, **options: Any
) -> httpx.AsyncClient:
    """Return a client with the `options` of httpx; over TLS it trusts what `verify` trusts."""
    return httpx.AsyncClient(timeout=timeout, verify=verify, **options)

"""Fetches a key set over HTTP: bounded in time and bytes, and never from another place than the one configured."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reasond_server.access.jwks import JwksFetchError

if TYPE_CHECKING:
    import ssl

MAX_DOCUMENT_BYTES: Final = 64 * 1024
_TIMEOUT_S: Final = 10.0
_OK: Final = 200


class HttpJwksFetcher:
    """Asks `url` with one request each time; redirects are refused, because the operator trusts this place alone.

    `tls` replaces the system's trust where the issuer's certificate is signed by somebody else.
    """

    def __init__(self, *, url: str, tls: ssl.SSLContext | None = None, timeout_s: float = _TIMEOUT_S) -> None:
        self._url = url
        self._tls = tls
        self._timeout_s = timeout_s

    async def fetch(self) -> bytes:
        """See JwksFetcher."""
        # Imported when it is needed: a server without a key set starts without it.
        import aiohttp  # noqa: PLC0415 - as above

        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aiohttp.ClientSession(auto_decompress=False) as session,
                session.get(
                    self._url,
                    allow_redirects=False,
                    ssl=True if self._tls is None else self._tls,
                    headers={"accept": "application/json", "accept-encoding": "identity"},
                ) as answer,
            ):
                if answer.status != _OK:
                    raise JwksFetchError(f"the issuer answered with status {answer.status}")
                document = b""
                while chunk := await answer.content.read(MAX_DOCUMENT_BYTES + 1 - len(document)):
                    document += chunk
        except TimeoutError:
            raise JwksFetchError(f"the issuer did not answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise JwksFetchError(f"the issuer cannot be reached ({type(error).__name__})") from error
        if len(document) > MAX_DOCUMENT_BYTES:
            raise JwksFetchError(f"it is longer than {MAX_DOCUMENT_BYTES} bytes")
        return document

    async def aclose(self) -> None:
        """Every request has a connection of its own; nothing is kept."""

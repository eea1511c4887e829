"""HTTP requests to addresses that a policy allows: one hop, no redirect followed, no cookies, no second look-up."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from reasond_server.tools.address_checks import RefusedAddressError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Mapping, Sequence

    import aiohttp

    from reasond_server.tools.address_checks import AddressPolicy, Resolve, Target

_OWN_HEADERS: Final = {"User-Agent": "reasond", "Accept-Encoding": "identity"}


@asynccontextmanager
async def request_vetted(
    target: Target,
    policy: AddressPolicy,
    *,
    headers: Mapping[str, str],
    timeout_s: float,
    body: bytes | None = None,
    resolve: Resolve | None = None,
    trusted: ssl.SSLContext | None = None,
) -> AsyncGenerator[aiohttp.ClientResponse, None]:
    """Send GET, or POST with a `body`, to `target` and yield the response, whatever its status.

    `resolve` replaces the system's resolver, and `trusted` the certificates that it trusts.

    Raises:
        RefusedAddressError: an address of the host is not allowed.
        Exception: the request failed; `describe_cause` has words for those that `find_failures` returns.
    """
    import aiohttp  # noqa: PLC0415 - it takes a while, and most servers send none of these requests
    from yarl import URL  # noqa: PLC0415 - as above

    from reasond_server.base.http_responses import BoundedResponse  # noqa: PLC0415 - as above

    addresses = await policy.vet_addresses(target, resolve or _resolve_host)
    connector = aiohttp.TCPConnector(
        resolver=_build_resolver(addresses), force_close=True, use_dns_cache=False, ssl=trusted or True
    )
    # The URL is built from the vetted parts, because a second parser might find another host in the same text.
    url = URL.build(
        scheme=target.scheme,
        host=target.host,
        port=target.port,
        path=target.path,
        query_string=target.query,
        encoded=True,
    )
    async with (
        aiohttp.ClientSession(
            connector=connector,
            response_class=BoundedResponse,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            headers={**_OWN_HEADERS, **headers},
            auto_decompress=False,
        ) as session,
        session.request("GET" if body is None else "POST", url, data=body, allow_redirects=False) as response,
    ):
        yield response


def find_failures() -> tuple[type[Exception], ...]:
    """Return the classes of errors of a request that failed, refused addresses aside."""
    import aiohttp  # noqa: PLC0415 - as above

    return (aiohttp.ClientError, OSError, ValueError, TimeoutError)


def describe_cause(error: Exception) -> str:
    """Return a text for the cause that quotes nothing of a foreign exception's text."""
    import aiohttp  # noqa: PLC0415 - as above

    if isinstance(error, RefusedAddressError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "its certificate cannot be trusted"
    if isinstance(error, socket.gaierror):
        return "its host is not known"
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        return "the connection failed"
    return "the server's answer is not valid HTTP"


def _build_resolver(addresses: Sequence[str]) -> aiohttp.abc.AbstractResolver:
    """Return a resolver that answers with `addresses` and sends no query."""
    from aiohttp.abc import AbstractResolver, ResolveResult  # noqa: PLC0415 - as above

    class Vetted(AbstractResolver):
        """Answers with the vetted addresses."""

        async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[ResolveResult]:  # noqa: ARG002 - the protocol's
            """Return the addresses."""
            return [
                ResolveResult(
                    hostname=host,
                    host=address,
                    port=port,
                    family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                    proto=socket.IPPROTO_TCP,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in addresses
            ]

        async def close(self) -> None:
            """Do nothing."""

    return Vetted()


async def _resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of `host` from the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for _, _, _, _, place in found]

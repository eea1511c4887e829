"""The connections to one model server: aiohttp sends what `requests` wrote, and says nothing of its own."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reasond_server.errors import SettingsError
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.proxies import environment_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp
    from yarl import URL

    from reasond_server.llm.openai.faults import UpstreamFaultError
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.openai.requests import WrittenRequest

_SPARE_CONNECTIONS = 16
_KEPT_S = 5.0


class ConnectionPool:
    """Connections are kept for 5 s after an answer that was read to its end.

    There are no retries, redirects, cookies, credentials of netrc files, nor deadlines but that of the connection.
    Proxies are those of the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) when the backend is made.

    Raises:
        SettingsError: aiohttp is not installed, or the proxy speaks no HTTP.
    """

    def __init__(self, *, options: BackendOptions) -> None:
        try:
            import aiohttp  # noqa: F401, PLC0415 - only when used; here to tell early that it is missing
            from httpx2 import create_ssl_context  # noqa: PLC0415 - only when used
        except ImportError:
            raise SettingsError(
                "The provider 'openai' needs the packages aiohttp and httpx2, which are not installed",
                remedy="Install reasond-server again: its dependencies are not complete.",
            ) from None
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, URL] = {}
        self._proxy = environment_proxy(options.base_url)
        # The package's own choice of authorities, SSL_CERT_FILE and SSL_CERT_DIR included; reading them takes a while.
        self._tls = create_ssl_context() if options.base_url.lower().startswith("https:") else True

    async def send(self, request: WrittenRequest, content: bytes, *, keeps: bool) -> aiohttp.ClientResponse:
        """Send a request and return its answer, whose body is still to come. Raises what aiohttp raises."""
        session = self._session
        if session is None:
            session = self._session = _session(self._options, tls=self._tls)
        return await session.post(
            self._urls.get(request.url) or self._parsed(request.url),
            data=content,
            headers=request.headers_now(keeps=keeps),
            allow_redirects=False,
            proxy=self._proxy,
        )

    def _parsed(self, url: str) -> URL:
        """Return one of the few addresses of the server as it is, quoted by whoever wrote the request."""
        from yarl import URL  # noqa: PLC0415 - only when used

        self._urls[url] = parsed = URL(url, encoded=True)
        return parsed

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def failed_to_open(options: BackendOptions, error: Exception) -> UpstreamFaultError:
    """Return the fault for what `ConnectionPool.send` raised."""
    import aiohttp  # noqa: PLC0415 - only when used

    faults.note(options, f"not opened: {type(error).__name__}")
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(error.__cause__, ssl.SSLError):
        return faults.unreachable(options, "its certificate or its TLS is not acceptable", is_retryable=False)
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return faults.unreachable(options, "base_url is not an address of HTTP", is_retryable=False)
    if isinstance(error, aiohttp.ServerTimeoutError):
        fault = faults.late(options, "did not take a connection", options.timeouts.connect_s, "timeouts.connect_s")
        fault.may_cost = False
        return fault
    if isinstance(error, aiohttp.ClientResponseError):
        return faults.breach(options, "answered with something that is not HTTP")
    if isinstance(error, aiohttp.ClientConnectorError):
        return faults.unreachable(options, "no connection")
    fault = faults.unreachable(options, "the connection ended before an answer began")
    fault.may_cost = True
    return fault


def is_dropped(error: Exception) -> bool:
    """Whether a connection that stood ended before an answer began."""
    import aiohttp  # noqa: PLC0415 - only when used

    is_ended = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
    return is_ended and not isinstance(error, aiohttp.ClientConnectorError)


def _session(options: BackendOptions, *, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    """Return what sends; it belongs to the event loop that runs now."""
    import aiohttp  # noqa: PLC0415 - only when used

    connector = aiohttp.TCPConnector(
        ssl=tls,
        limit=options.max_concurrency + _SPARE_CONNECTIONS,
        keepalive_timeout=_KEPT_S,
        socket_factory=_opener(user_timeout_s=options.timeouts.first_token_s),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, connect=options.timeouts.connect_s, sock_connect=options.timeouts.connect_s
        ),
    )


def _opener(*, user_timeout_s: float) -> Callable[[Any], socket.socket]:
    """Return what opens sockets that the system drops when the other end took nothing of what was sent for so long.

    A call ends at its deadlines in any case. But a socket is closed only when all that was written has been taken,
    so a server that never reads a long request would hold it, and megabytes with it, for as long as it likes.
    """

    def opened(address: Any) -> socket.socket:  # noqa: ANN401 - aiohttp's AddrInfoType
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # where the system knows it but not for this kind of socket
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(user_timeout_s * 1000)))
        return made

    return opened

"""The `openai` package's client for one backend. To be imported when a backend is made, because that takes long."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from contextvars import ContextVar
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import httpx2
from openai import AsyncAzureOpenAI, AsyncOpenAI, DefaultAioHttpClient, Omit, OpenAIError
from openai._vendor.httpx_aiohttp.transport import AiohttpTransport

from reasond_server.base.addresses import find_proxy
from reasond_server.base.http_responses import BoundedResponse
from reasond_server.errors.base import SettingsError, show
from reasond_server.telemetry.propagation import build_outgoing_headers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reasond_server.llm.openai.backend_options import BackendOptions

_OPENAI_HOST: Final = "api.openai.com"
_SPARE_CONNECTIONS: Final = 16
_KEPT_S: Final = 5.0
_NO_KEY: Final = "none"
# What the package tells of the machine that it runs on.
_DESCRIPTIONS: Final = ("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async")
_MAX_REFUSAL_BYTES: Final = 65_536
_REFUSAL_PATIENCE_S: Final = 2.0
_CLOSE_PATIENCE_S: Final = 1.0
_ERRORS_FROM: Final = 300
# What httpx2 unfolds at most a thousand times. A list of codings could unfold a thousand times for each of them.
_CODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
# Characters that RFC 3986 allows in a path segment in addition to letters, digits and "-._~".
_SAFE_IN_SEGMENTS: Final = "!$&'()*+,;=:@"

_opened: ContextVar[list[socket.socket]] = ContextVar("sockets that were opened for the last request of a task")


class ErrorStatusError(Exception):
    """An answer with another status than success. `body`: what arrived of its body in two seconds, at most 64 KiB."""

    def __init__(self, *, status: int, headers: httpx2.Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class CodingError(Exception):
    """An answer is compressed in a way that has no bound."""


class ModelClient:
    """The package's client, without retries and redirects, whose answers are read by the caller.

    The package knows addresses, keys, TLS and connections. Here stands what it leaves open to a hostile server or a
    foreign environment: interim responses, bodies of refusals and codings are bounded, a socket whose peer acknowledges
    nothing is closed, and OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS go to OpenAI alone.

    Args:
        options: the backend. A name and a password in its address become basic authentication instead of the key; a
            query of its address is sent with each request.
        keeps_connections: whether connections are kept for the next request.

    Raises:
        SettingsError: the address, or a proxy of the environment, cannot be used.
    """

    def __init__(self, *, options: BackendOptions, keeps_connections: bool = True) -> None:
        for name in ("openai", "httpx2"):
            # They write a line for every request.
            logging.getLogger(name).setLevel(logging.WARNING)
        kept = "keep-alive" if keeps_connections else "close"
        self._headers: dict[str, Any] = {"connection": kept, "x-stainless-retry-count": Omit()}
        if not options.api_key and options.azure_token is None:
            # The package takes an empty key for one that is missing, so it gets another, which is not sent.
            self._headers |= {"Authorization": Omit(), "api-key": Omit()}
        try:
            self._base = httpx2.URL(options.base_url)
            _ = urlsplit(options.base_url).port  # httpx2 accepts "http://["
            self._client = _build_client(options, self._base, keeps_connections=keeps_connections)
            # The package knows which addresses of Azure name the deployment; others are joined once.
            self._address = "" if options.azure_api_version else str(self._client.base_url).rstrip("/")
        except (httpx2.InvalidURL, OpenAIError, ValueError, TypeError):
            raise SettingsError(
                f"The address {show(options.base_url)} of model backend {show(options.name)} is not usable",
                remedy="Set base_url to an address such as https://host/v1.",
            ) from None

    async def post(self, path: str, content: bytes, *, keeps: bool = True) -> httpx2.Response:
        """Send JSON and return the answer, unread; `path` is relative to the base URL, with a slash to the root.

        Raises:
            ErrorStatusError: the status is not one of success.
            Exception: the package's errors; `find_cause` returns what is below them.
        """
        # A list: sockets are opened in tasks that share it with this one.
        _opened.set([])
        headers = {**self._headers, **({} if keeps else {"connection": "close"}), **build_outgoing_headers()}
        return await self._client.post(
            self._resolve(path), cast_to=httpx2.Response, content=content, options={"headers": headers}, stream=True
        )

    async def get(self, path: str) -> httpx2.Response:
        """Do the same with GET and without content. Raises the same errors."""
        _opened.set([])
        return await self._client.get(
            self._resolve(path), cast_to=httpx2.Response, options={"headers": self._headers}, stream=True
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    def _resolve(self, path: str) -> str:
        """Return `path` as the package takes it: a whole address, or for Azure one that is relative to the base URL."""
        if not path.startswith("/"):
            return f"{self._address}/{path}"
        return str(self._base.copy_with(username=None, password=None, raw_path=path.encode()))


def _build_client(options: BackendOptions, base: httpx2.URL, *, keeps_connections: bool) -> AsyncOpenAI:
    proxy = find_proxy(options.base_url)
    http = DefaultAioHttpClient(
        transport=_ModelTransport(
            options=options,
            verify=base.scheme == "https",
            limits=httpx2.Limits(
                max_connections=options.max_concurrency + _SPARE_CONNECTIONS,
                keepalive_expiry=_KEPT_S if keeps_connections else 0.0,
            ),
            proxy=None if proxy is None else httpx2.Proxy(proxy),
        ),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        auth=(base.username, base.password) if base.userinfo else None,
        event_hooks={"response": [_refuse]},
        follow_redirects=False,
        trust_env=False,
    )
    # Its own would be taken out again for each request.
    http.headers.clear()
    settings: dict[str, Any] = {
        "api_key": options.api_key or _NO_KEY,
        "default_headers": _build_headers(options, base),
        "default_query": dict(base.params.multi_items()),
        "http_client": http,
        "max_retries": 0,
        "timeout": httpx2.Timeout(None, connect=options.timeouts.connect_s, pool=options.timeouts.connect_s),
    }
    plain = str(base.copy_with(username=None, password=None, query=None))
    if not options.azure_api_version:
        client = AsyncOpenAI(base_url=plain, **settings)
    else:
        # The package looks for the deployment in bodies that it writes itself.
        deployment = None if "/deployments" in base.path else quote(options.model, safe=_SAFE_IN_SEGMENTS)
        if options.azure_token is not None:
            settings |= {"api_key": None, "azure_ad_token_provider": options.azure_token}
        client = AsyncAzureOpenAI(
            azure_endpoint=plain, azure_deployment=deployment, api_version=options.azure_api_version, **settings
        )
    if base.host != _OPENAI_HOST:
        client.organization = client.project = None
    return client


def _build_headers(options: BackendOptions, base: httpx2.URL) -> dict[str, Any]:
    """Return the headers of every request; those of a foreign environment, or that describe this one, are left out."""
    headers: dict[str, Any] = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": f"reasond-server/{version('reasond-server')}",
        **{f"X-Stainless-{name}": Omit() for name in _DESCRIPTIONS},
    }
    if base.host == _OPENAI_HOST:
        return headers
    for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").split("\n"):
        name = line.partition(":")[0].strip()
        if name.lower() == "authorization" and isinstance(options.api_key, str) and options.api_key:
            headers["Authorization"] = f"Bearer {options.api_key}"
        elif name:
            headers.setdefault(name, Omit())
    return headers


class _ModelTransport(AiohttpTransport):
    """The package's transport over a session whose interim responses and silent sockets are bounded."""

    def __init__(self, *, options: BackendOptions, **settings: Any) -> None:  # noqa: ANN401 - as the package takes them
        super().__init__(**settings)
        self._user_timeout_s = options.timeouts.first_token_s

    def get_client(self) -> aiohttp.ClientSession:
        """Return the session, which belongs to the running event loop."""
        is_kept = bool(self.limits.keepalive_expiry)
        connector = aiohttp.TCPConnector(
            ssl=self.ssl_context,
            limit=self.limits.max_connections or 0,
            socket_factory=_build_opener(user_timeout_s=self._user_timeout_s),
            **({"keepalive_timeout": self.limits.keepalive_expiry} if is_kept else {"force_close": True}),
        )
        return aiohttp.ClientSession(
            connector=connector, response_class=BoundedResponse, cookie_jar=aiohttp.DummyCookieJar()
        )


def _build_opener(*, user_timeout_s: float) -> Callable[[Any], socket.socket]:
    """Return a function that opens sockets with TCP_USER_TIMEOUT.

    The system closes such a socket if the server acknowledges no data for `user_timeout_s` seconds. The deadlines of a
    call do not suffice: a socket is closed only after all its data was sent, so a server that never reads a long
    request would keep the socket, and megabytes of data, forever.
    """

    def open_socket(address: Any) -> socket.socket:  # noqa: ANN401 - aiohttp's AddrInfoType
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        _opened.get().append(made)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # some systems have the option, but not for this kind of socket
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(user_timeout_s * 1000)))
        return made

    return open_socket


async def _refuse(response: httpx2.Response) -> None:
    """Raise `ErrorStatusError` for a status of no success, before the package reads the whole body."""
    if response.status_code < _ERRORS_FROM:
        return
    body = await read_beginning(response)
    await close_response(response)
    raise ErrorStatusError(status=response.status_code, headers=response.headers, body=body)


def iterate_body(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Return the pieces of a body, at most 16 KiB each before they are unfolded.

    Raises:
        CodingError: the body is compressed without a bound.
    """
    if response.headers.get("content-encoding", "").strip().lower() not in _CODINGS:
        raise CodingError
    return response.aiter_bytes()


async def read_beginning(response: httpx2.Response) -> bytes:
    """Return what arrives of a body in two seconds, at most 64 KiB."""
    body = bytearray()
    with suppress(Exception):  # a body that breaks off or cannot be unfolded ends there
        async with asyncio.timeout(_REFUSAL_PATIENCE_S):
            async for piece in iterate_body(response):
                body += piece
                if len(body) >= _MAX_REFUSAL_BYTES:
                    break
    return bytes(body[:_MAX_REFUSAL_BYTES])


def build_response(refused: ErrorStatusError) -> httpx2.Response:
    """Return an answer with the body of a refused one."""
    return httpx2.Response(200, headers={"content-type": "application/json"}, content=refused.body)


async def close_response(response: httpx2.Response) -> None:
    """Close an answer; its connection ends at once if the server is still writing, or reads no more of the request."""
    with suppress(Exception):  # nothing that fails here has a meaning for the caller
        async with asyncio.timeout(_CLOSE_PATIENCE_S):
            await response.aclose()


def has_reused_connection() -> bool:
    """Return whether the last request of this task was sent on a connection of an earlier one."""
    return not _opened.get()


def find_cause(error: BaseException) -> BaseException:
    """Return the error of aiohttp or of the system from which the package made `error`."""
    while error.__cause__ is not None and not isinstance(error, aiohttp.ClientError):
        error = error.__cause__
    return error

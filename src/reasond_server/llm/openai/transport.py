"""The way to a model server: openai's client on its aiohttp transport, used below its typed layers.

This module alone imports `openai`, and only when a backend is made: its import costs a third of a second.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from reasond_server.errors import ModelProtocolError, SettingsError, shown
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import json_value
from reasond_server.llm.openai.retrying import retry_after_s
from reasond_server.telemetry.propagation import outgoing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    import aiohttp
    import httpx2
    from openai import AsyncOpenAI

    from reasond_server.llm.openai.options import BackendOptions

_MAX_REFUSAL_BYTES = 65_536
_REFUSAL_PATIENCE_S = 2.0
_SPARE_CONNECTIONS = 16
_OF_ONE_CALL = frozenset({b"content-length", b"connection", b"traceparent", b"tracestate", b"baggage"})
_OTHER_CONTENT = {"text/html": "HTML", "application/json": "JSON", "text/xml": "XML", "application/xml": "XML"}


class Upstream(Protocol):
    """An answer that has begun, with a status of success."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer; names in lower case."""
        ...

    def chunks(self, *, granted: Callable[[], int] = int) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes, read by read.

        `granted` tells how many bytes beyond `max_response_bytes` the answer has earned so far; by default none.

        Raises:
            UpstreamFaultError: the connection broke, or more bytes came than are taken.
        """
        ...

    async def close(self) -> None:
        """Let go of the answer; a server that still writes it sees the connection end at once."""
        ...


class Transport(Protocol):
    """Requests to one backend. Paths are relative to its base URL, or with a leading slash to its root."""

    async def open(self, path: str, body: dict[str, Any]) -> Upstream:
        """Send `body` and return the answer once its headers came.

        Raises:
            UpstreamFaultError: there is no answer, or one without success.
        """
        ...

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` and return the JSON that comes back.

        Raises:
            UpstreamFaultError: as `open`, or what came is not JSON, or not in time.
        """
        ...

    async def get_json(self, path: str, *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON at `path`.

        Raises:
            UpstreamFaultError: as `post_json`.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class OpenAITransport:
    """A `Transport` over the `openai` package, which contributes credentials, addresses, Azure and the pool.

    The package makes the first request to each address; those after it are copies with another body and the headers of
    their own call. Nothing else in them changes, and making each anew took 40 % of a call.

    Its retries and redirects are off, and it reads no settings of its own from the environment, apart from
    OPENAI_ORG_ID and OPENAI_PROJECT_ID, which are sent to OpenAI only.

    Args:
        options: the backend.
        now: seconds since 1970, for servers that name a date to come back at.

    Raises:
        SettingsError: the package is not installed, or refuses the address.
    """

    def __init__(self, *, options: BackendOptions, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._client, self._http = _clients(options, on_response=self._check)
        self._made: dict[str, httpx2.Request] = {}
        self._has_answered = False
        self._keeps_connections = True

    async def open(self, path: str, body: dict[str, Any]) -> Upstream:
        """Send `body` and return the answer once its headers came."""
        answer = _Answer(await self._send("post", path, body), options=self._options)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_CONTENT:
            try:
                raise await self._no_stream(answer, _OTHER_CONTENT[kind])
            finally:
                await answer.close()
        return answer

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` and return the JSON that comes back."""
        return await self._json("post", path, body, timeout_s)

    async def get_json(self, path: str, *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Return the JSON at `path`."""
        return await self._json("get", path, None, timeout_s)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _json(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
        try:
            async with asyncio.timeout(timeout_s):
                answer = _Answer(await self._send(method, path, body), options=self._options)
                try:
                    content = b"".join([piece async for piece in answer.chunks()])
                finally:
                    await answer.close()
        except TimeoutError:
            raise faults.late(self._options, "did not answer", timeout_s, "timeout_s") from None
        return json_value(content)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        """Send a request and return its answer, whose body is still to come.

        llama.cpp promises to keep a connection and drops it after a stream, so that the next call fails on it. Then the
        request is sent once more, and from then on no connection is kept; to others each new one would cost a third
        of a call.
        """
        while True:
            keeps = self._keeps_connections
            try:
                return await self._request(method, path, body, keeps=keeps)
            except UpstreamFaultError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the layers below raise, the caller gets an error of ours
                if not (keeps and self._has_answered and _is_dropped(error)):
                    raise _failed_to_open(self._options, error) from None
                self._keeps_connections = False

    async def _request(self, method: str, path: str, body: dict[str, Any] | None, *, keeps: bool) -> httpx2.Response:
        made = self._made.get(path)
        if made is not None and method == "post":
            return await self._http.send(_copied(made, body, keeps=keeps), stream=True)
        response = await self._first_request(method, path, body, keeps=keeps)
        if method == "post" and response.is_success:
            self._made[path] = _without_body(response.request)
        return response

    async def _first_request(
        self, method: str, path: str, body: dict[str, Any] | None, *, keeps: bool
    ) -> httpx2.Response:
        """Let the package make the request and send it."""
        import openai  # noqa: PLC0415 - only when used
        from httpx2 import Response  # noqa: PLC0415 - only when used

        headers: dict[str, Any] = {**outgoing()} if keeps else {"Connection": "close", **outgoing()}
        if not self._options.api_key:
            # openai refuses to send what carries no key, unless each request says so.
            headers["Authorization"] = openai.Omit()
        stream: dict[str, Any] = {"cast_to": Response, "stream": True, "stream_cls": openai.AsyncStream}
        stream["options"] = {"headers": headers}
        if method == "get":
            answer: Any = await self._client.get(self._address(path), **stream)
        else:
            answer = await self._client.post(self._address(path), body=body, **stream)
        response: Response = answer
        return response

    def _address(self, path: str) -> str:
        """Return where `path` is: whole, which saves the client 7 % of a call; Azure's puts the deployment into it."""
        if path.startswith("/"):
            parts = urlsplit(self._options.base_url)
            return f"{parts.scheme}://{parts.netloc}{path}"
        if self._options.azure_api_version:
            return f"/{path}"
        return f"{self._options.base_url.rstrip('/')}/{path}"

    async def _check(self, response: httpx2.Response) -> None:
        """Refuse answers without success here, where their length can be bounded."""
        self._has_answered = True
        if response.is_success:
            return
        answer = _Answer(response, options=self._options)
        body = await answer.beginning()
        wait = retry_after_s(answer.headers, now=self._now)
        raise faults.refused(self._options, status=response.status_code, body=body, retry_after_s=wait)

    async def _no_stream(self, answer: _Answer, kind: str) -> UpstreamFaultError:
        """Return the fault for an answer with success that is no stream of events."""
        body = await answer.beginning()
        try:
            report = json_value(body) if kind == "JSON" else None
        except ModelProtocolError:
            report = None
        if isinstance(report, dict) and report.get("error"):
            return faults.reported(self._options, report)
        return faults.breach(self._options, f"answered with {kind} instead of a stream of events")


class _Answer:
    """One answer of the server."""

    def __init__(self, response: httpx2.Response, *, options: BackendOptions) -> None:
        self._response = response
        self._options = options

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self, *, granted: Callable[[], int] = int) -> AsyncGenerator[bytes, None]:
        is_encoded = self.headers.get("content-encoding", "identity") != "identity"
        pieces = self._response.aiter_bytes() if is_encoded else self._response.aiter_raw()
        most, came = self._options.max_response_bytes, 0
        try:
            async for piece in pieces:
                came += len(piece)
                if came > most + granted():
                    break
                yield piece
        except Exception:  # noqa: BLE001 - aiohttp's own errors come through unmapped
            raise faults.connection_lost(self._options) from None
        if came > most + granted():
            raise _too_much(self._options, most + granted())

    async def beginning(self) -> bytes:
        """Return the first bytes of the body, as many as come within two seconds."""
        body = bytearray()
        try:
            async with asyncio.timeout(_REFUSAL_PATIENCE_S):
                async for piece in self.chunks():
                    body += piece
                    if len(body) > _MAX_REFUSAL_BYTES:
                        break
        except (TimeoutError, UpstreamFaultError):
            return bytes(body)
        return bytes(body[:_MAX_REFUSAL_BYTES])

    async def close(self) -> None:
        with suppress(Exception):  # it is gone, which is what was asked for
            await self._response.aclose()


def _too_much(options: BackendOptions, limit: int) -> UpstreamFaultError:
    remedy = "Raise max_response_bytes of the backend if such answers are meant."
    return faults.breach(options, f"sent more than {limit} bytes in one answer", remedy=remedy)


def _without_body(request: httpx2.Request) -> httpx2.Request:
    """Return `request` as a pattern for later ones: what its caller asked must not stay as long as the server does."""
    from httpx2 import Request  # noqa: PLC0415 - only when used

    return Request(request.method, request.url, headers=request.headers, extensions=request.extensions)


def _copied(made: httpx2.Request, body: dict[str, Any] | None, *, keeps: bool) -> httpx2.Request:
    """Return a request like `made` with another body, and the connection and trace headers of this call."""
    from httpx2 import Request  # noqa: PLC0415 - only when used

    kept = [(name, value) for name, value in made.headers.raw if name.lower() not in _OF_ONE_CALL]
    own = {"Connection": "keep-alive" if keeps else "close", **outgoing()}
    headers = [*kept, *((name.encode(), value.encode()) for name, value in own.items())]
    content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    extensions = {"timeout": made.extensions["timeout"]}
    return Request(made.method, made.url, headers=headers, content=content, extensions=extensions)


def _clients(
    options: BackendOptions, *, on_response: Callable[[httpx2.Response], Any]
) -> tuple[AsyncOpenAI, httpx2.AsyncClient]:
    """Return openai's client for the backend and what it sends by; all that it would decide itself is decided here."""
    try:
        import httpx2  # noqa: PLC0415 - only when used
        import openai  # noqa: PLC0415 - only when used

        timeout = httpx2.Timeout(
            connect=options.timeouts.connect_s, pool=options.timeouts.connect_s, read=None, write=None
        )
        connections = options.max_concurrency + _SPARE_CONNECTIONS
        http = openai.DefaultAioHttpClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            event_hooks={"response": [on_response]},
        )
        _bound_writes(http, seconds=options.timeouts.first_token_s)
    except (ImportError, RuntimeError):
        raise SettingsError(
            "The provider 'openai' needs the openai package with its aiohttp transport, which is not installed",
            remedy="Install reasond-server again: its dependencies are not complete.",
        ) from None
    try:
        shared: dict[str, Any] = {
            "max_retries": 0,
            "timeout": timeout,
            "http_client": http,
            "api_key": options.api_key or "none",
            "default_headers": _headers(options, omit=openai.Omit()),
        }
        if options.azure_api_version:
            azure = openai.AsyncAzureOpenAI(
                azure_endpoint=options.base_url, api_version=options.azure_api_version, **shared
            )
            return azure, http
        return openai.AsyncOpenAI(base_url=options.base_url, **shared), http
    except Exception:  # noqa: BLE001 - whatever it objects to, the address is at fault
        raise SettingsError(
            f"The address {shown(options.base_url)} of model backend {shown(options.name)} is not usable",
            remedy="Set base_url to an address such as https://host/v1.",
        ) from None


def _bound_writes(http: httpx2.AsyncClient, *, seconds: float) -> None:
    """Let the system drop connections whose other end took nothing of what was sent for `seconds`.

    A call ends at its deadlines in any case. But a socket is closed only when all that was written has been taken,
    so a server that never reads a long request would hold it, and megabytes with it, for as long as it likes.
    """
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    # openai's client has no parameter for it; tests/faults/test_upstream_connections.py tells if it moves.
    transport: Any = vars(http).get("_transport")
    if not hasattr(transport, "client"):
        return

    def opened(address: Any) -> socket.socket:  # noqa: ANN401 - aiohttp's AddrInfoType
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        with suppress(OSError):  # where the system knows it but not for this kind of socket
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(seconds * 1000)))
        return made

    def session() -> aiohttp.ClientSession:
        import aiohttp  # noqa: PLC0415 - only when used

        limits = transport.limits
        connector = aiohttp.TCPConnector(
            ssl=transport.ssl_context,
            limit=limits.max_connections or 0,
            keepalive_timeout=limits.keepalive_expiry,
            socket_factory=opened,
        )
        return aiohttp.ClientSession(connector=connector)

    transport.client = session


def _headers(options: BackendOptions, *, omit: Any) -> dict[str, Any]:  # noqa: ANN401 - a mark of openai's
    """Return the headers that differ from what openai's client sends by itself."""
    headers: dict[str, Any] = {"accept": "text/event-stream, application/json", "accept-encoding": "identity"}
    if not options.api_key:
        headers["Authorization"] = omit
    host = urlsplit(options.base_url).hostname or ""
    if host != "api.openai.com":
        headers |= {"OpenAI-Organization": omit, "OpenAI-Project": omit}
    return headers


def _failed_to_open(options: BackendOptions, error: Exception) -> UpstreamFaultError:
    """Return the fault for an exception of the layers below, told by its causes: openai's own classes say less."""
    import aiohttp  # noqa: PLC0415 - only when used

    causes = tuple(_causes(error))
    faults.note(options, "not opened: " + " <- ".join(type(one).__name__ for one in causes))
    if _any(causes, aiohttp.ClientSSLError, ssl.SSLError):
        return faults.unreachable(options, "its certificate or its TLS is not acceptable", is_retryable=False)
    if _any(causes, aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        return faults.unreachable(options, "base_url is not an address of HTTP", is_retryable=False)
    if _any(causes, aiohttp.ServerTimeoutError):
        fault = faults.late(options, "did not take a connection", options.timeouts.connect_s, "timeouts.connect_s")
        fault.may_cost = False
        return fault
    if _any(causes, aiohttp.ClientResponseError):
        return faults.breach(options, "answered with something that is not HTTP")
    if _any(causes, aiohttp.ClientConnectorError):
        return faults.unreachable(options, "no connection")
    fault = faults.unreachable(options, "the connection ended before an answer began")
    fault.may_cost = True
    return fault


def _is_dropped(error: BaseException) -> bool:
    """Whether a connection that stood ended before an answer began."""
    import aiohttp  # noqa: PLC0415 - only when used

    causes = tuple(_causes(error))
    is_ended = _any(causes, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)
    return is_ended and not _any(causes, aiohttp.ClientConnectorError)


def _any(causes: tuple[BaseException, ...], *kinds: type[BaseException]) -> bool:
    return any(isinstance(one, kinds) for one in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and what it came from; openai and httpx2 wrap aiohttp's errors twice."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

"""Requests to a model server, sent by aiohttp over persistent connections, and their answers.

aiohttp is imported only when a backend is built, because the import takes long.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
from contextlib import suppress
from contextvars import ContextVar
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_json

from reasond_server.errors.base import show
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import parse_json
from reasond_server.llm.openai.request_heads import RequestHeads, build_missing_package_error, find_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import aiohttp

    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.request_heads import RequestHead


_MAX_REFUSAL_BYTES = 65_536
_REFUSAL_PATIENCE_S = 2.0
_READ_BYTES = 16_384
_SUCCESS, _REDIRECT = 200, 300
_OTHER_CONTENT = {"text/html": "HTML", "application/json": "JSON", "text/xml": "XML", "application/xml": "XML"}


class Upstream(Protocol):
    """An answer whose headers were received, with a success status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer; the keys are names in lower case."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the body has ended and all of it was returned."""
        ...

    def read_ready(self, *, granted: Callable[[], int] = int) -> bytes | None:
        """Return the received bytes of the body, at most 16 KiB; empty at its end; None if none have arrived yet.

        `granted` returns the bytes that the answer may have in addition to `max_response_bytes`; by default 0.

        Raises:
            UpstreamFaultError: the connection broke, or the body exceeds its limit.
        """
        ...

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        """Wait for bytes and return them like `read_ready`. Raises the same error."""
        ...

    def close(self) -> None:
        """Close the answer; if the server is still writing, its connection ends at once."""
        ...


class OpenAITransport:
    """Requests to one backend over aiohttp. Paths are relative to its base URL; with a leading slash, to the root.

    It does not follow redirects, and repeats a request only after a dropped connection.

    It does not request compression; if an answer is compressed, its decompressed size is bounded.

    Args:
        options: the backend.
        now: returns seconds since 1970, for a Retry-After header with a date.

    Raises:
        SettingsError: a package is not installed, or the address is refused.
    """

    def __init__(self, *, options: BackendOptions, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._heads = RequestHeads(options=options)
        self._pool = ConnectionPool(options=options)
        self._keeps_connections = True

    async def open(self, path: str, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> Upstream:
        """Send `body` and return the answer when its headers arrive. `messages` are serialised already.

        Raises:
            UpstreamFaultError: there is no answer, or its status is an error.
        """
        answer = await self._send(path, body, messages)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_CONTENT:
            try:
                raise await self._read_other_content(answer, _OTHER_CONTENT[kind])
            finally:
                answer.close()
        return answer

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` and return the JSON answer.

        Raises:
            UpstreamFaultError: as `open`, or the answer did not arrive within `timeout_s` seconds.
            ModelProtocolError: the answer is not JSON.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._send(path, body)
                try:
                    while piece := await answer.read():
                        content += piece
                finally:
                    answer.close()
        except TimeoutError:
            raise faults.build_timeout_fault(self._options, "did not answer", timeout_s, "timeout_s") from None
        return parse_json(bytes(content))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def _send(self, path: str, body: dict[str, Any], messages: Sequence[bytes] = ()) -> _HttpAnswer:
        """Send a request and return its answer, whose body is not read yet.

        llama.cpp promises to keep a connection open but closes it after a stream, so the next call on it fails. Then
        the request is sent once more, and from then on no connection is kept. For other servers, a new connection would
        take a third of the time of each call.
        """
        request = self._heads.find(path)
        content = encode_body(self._options, body, messages=messages)
        while True:
            keeps = self._keeps_connections
            try:
                response = await self._pool.send(request, content, keeps=keeps)
                break
            except Exception as error:  # noqa: BLE001 - every error of the layers below is converted
                # On a connection of its own, a request may have been read, and be billed, before that ended.
                if not (keeps and is_dropped(error) and self._pool.has_reused_connection()):
                    raise build_open_fault(self._options, error) from None
                self._keeps_connections = False
        answer = _HttpAnswer(response, options=self._options)
        if not _SUCCESS <= response.status < _REDIRECT:
            raise await self._read_refusal(answer, response.status)
        return answer

    async def _read_refusal(self, answer: _HttpAnswer, status: int) -> UpstreamFaultError:
        """Read a bounded part of an answer with an error status and return its fault."""
        try:
            body = await answer.read_beginning()
        finally:
            answer.close()
        wait = read_retry_after_s(answer.headers, now=self._now)
        return faults.classify_status(self._options, status=status, body=body, retry_after_s=wait)

    async def _read_other_content(self, answer: _HttpAnswer, kind: str) -> UpstreamFaultError:
        """Return the fault for an answer with a success status that is not a stream of events."""
        body = await answer.read_beginning()
        try:
            report = parse_json(body) if kind == "JSON" else None
        except ModelProtocolError:
            report = None
        if isinstance(report, dict) and report.get("error"):
            return faults.classify_report(self._options, report)
        return faults.build_protocol_fault(self._options, f"answered with {kind} instead of a stream of events")


class _HttpAnswer:
    """One answer of the server."""

    def __init__(self, response: aiohttp.ClientResponse, *, options: BackendOptions) -> None:
        self._response = response
        self._options = options
        self._came = 0

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def is_over(self) -> bool:
        return self._response.content.at_eof()

    def read_ready(self, *, granted: Callable[[], int] = int) -> bytes | None:
        content = self._response.content
        try:
            piece = content.read_nowait(_READ_BYTES)
        except Exception:  # noqa: BLE001 - aiohttp's errors, and those of decoders below it
            raise build_lost_connection_fault(self._options) from None
        return self._count(piece, granted) if piece or content.is_eof() else None

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        try:
            piece = await self._response.content.read(_READ_BYTES)
        except Exception:  # noqa: BLE001 - aiohttp's errors, and those of decoders below it
            raise build_lost_connection_fault(self._options) from None
        return self._count(piece, granted)

    def _count(self, piece: bytes, granted: Callable[[], int]) -> bytes:
        self._came += len(piece)
        most = self._options.max_response_bytes
        if self._came > most and self._came > most + granted():
            raise _build_size_fault(self._options, most + granted())
        return piece

    async def read_beginning(self) -> bytes:
        """Return the beginning of the body: a bounded number of bytes that arrive within two seconds."""
        body = bytearray()
        try:
            async with asyncio.timeout(_REFUSAL_PATIENCE_S):
                while len(body) <= _MAX_REFUSAL_BYTES and (piece := await self.read()):
                    body += piece
        except (TimeoutError, UpstreamFaultError):
            return bytes(body)
        return bytes(body[:_MAX_REFUSAL_BYTES])

    def close(self) -> None:
        # This closes the connection, unless the body was read to its end and the pool has taken it back.
        self._response.close()


def build_lost_connection_fault(options: BackendOptions) -> UpstreamFaultError:
    """Return the fault for a connection that broke during the answer."""
    error = ModelUnavailableError(
        f"The model backend {faults.describe_place(options)} broke the connection in the middle of its answer",
        remedy="Check the model server and the proxies before it.",
    )
    return UpstreamFaultError(error, retries=faults.AS_OFTEN_AS_ALLOWED, is_unhealthy=True, may_cost=True)


def _build_size_fault(options: BackendOptions, limit: int) -> UpstreamFaultError:
    remedy = "Raise max_response_bytes of the backend if such answers are meant."
    return faults.build_protocol_fault(options, f"sent more than {limit} bytes in one answer", remedy=remedy)


_SPARE_CONNECTIONS = 16
_KEPT_S = 5.0
_opened: ContextVar[list[socket.socket]] = ContextVar("sockets that were opened for the last request of a task")


class ConnectionPool:
    """Connections to one backend, kept open for 5 s after an answer that was read to its end.

    All requests have the `headers` of the first head.

    There are no retries, redirects, cookies or netrc credentials, and the only timeout is that of connecting.
    The proxy is read from the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) when the backend is built.

    Raises:
        SettingsError: aiohttp is not installed, or the proxy is not an HTTP proxy.
    """

    def __init__(self, *, options: BackendOptions) -> None:
        try:
            import aiohttp  # noqa: F401, PLC0415 - only when used; here to report early that it is missing
            from httpx2 import create_ssl_context  # noqa: PLC0415 - only when used
        except ImportError:
            raise build_missing_package_error() from None
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._proxy = find_proxy(options.base_url)
        # The package's default authorities, SSL_CERT_FILE and SSL_CERT_DIR included. Plain HTTP skips the slow loading.
        self._tls = create_ssl_context() if options.base_url.lower().startswith("https:") else True

    async def send(self, request: RequestHead, content: bytes, *, keeps: bool) -> aiohttp.ClientResponse:
        """Send a request and return its answer, whose body is not read yet. Raises the errors of aiohttp."""
        session = self._session
        if session is None:
            # aiohttp copies the headers of a session at once, and those of a request one by one.
            session = self._session = _open_session(self._options, tls=self._tls, headers=request.headers)
        # A list: sockets are opened in tasks that share it with this one.
        _opened.set([])
        return await session.post(
            request.url,
            data=content,
            headers=request.build_headers(keeps=keeps),
            allow_redirects=False,
            proxy=self._proxy,
        )

    def has_reused_connection(self) -> bool:
        """Return whether the last request of this task was sent on a connection of an earlier one."""
        return not _opened.get()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def build_open_fault(options: BackendOptions, error: Exception) -> UpstreamFaultError:
    """Return the fault for an error of `ConnectionPool.send`."""
    import aiohttp  # noqa: PLC0415 - only when used

    faults.log_fault(options, f"not opened: {type(error).__name__}")
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(error.__cause__, ssl.SSLError):
        return faults.build_unreachable_fault(
            options, "its certificate or its TLS is not acceptable", is_retryable=False
        )
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return faults.build_unreachable_fault(options, "base_url is not an address of HTTP", is_retryable=False)
    if isinstance(error, aiohttp.ServerTimeoutError):
        fault = faults.build_timeout_fault(
            options, "did not take a connection", options.timeouts.connect_s, "timeouts.connect_s"
        )
        fault.may_cost = False
        return fault
    if isinstance(error, aiohttp.ClientResponseError):
        return faults.build_protocol_fault(
            options, "answered with something that is not HTTP, or with interim responses without end"
        )
    if isinstance(error, aiohttp.ClientConnectorError):
        return faults.build_unreachable_fault(options, "no connection")
    fault = faults.build_unreachable_fault(options, "the connection ended before an answer began")
    fault.may_cost = True
    return fault


def is_dropped(error: Exception) -> bool:
    """Return whether an open connection ended before an answer began."""
    import aiohttp  # noqa: PLC0415 - only when used

    is_ended = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
    return is_ended and not isinstance(error, aiohttp.ClientConnectorError)


def _open_session(
    options: BackendOptions, *, tls: ssl.SSLContext | bool, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    """Return a session, which belongs to the running event loop."""
    import aiohttp  # noqa: PLC0415 - only when used

    from reasond_server.base.http_responses import BoundedResponse  # noqa: PLC0415 - as above

    connector = aiohttp.TCPConnector(
        ssl=tls,
        limit=options.max_concurrency + _SPARE_CONNECTIONS,
        keepalive_timeout=_KEPT_S,
        socket_factory=_build_opener(user_timeout_s=options.timeouts.first_token_s),
    )
    return aiohttp.ClientSession(
        connector=connector,
        response_class=BoundedResponse,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, connect=options.timeouts.connect_s, sock_connect=options.timeouts.connect_s
        ),
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


def encode_body(options: BackendOptions, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> bytes:
    """Return `body` as JSON in UTF-8, with "?" for lone surrogates. `messages` are serialised already.

    Raises:
        UpstreamFaultError: `body` cannot be written as JSON, for example because the caller's schema has a NaN.
    """
    content = b""
    with suppress(ValueError):
        content = to_json(body)
    if not content or b"NaN" in content or b"Infinity" in content:
        content = _encode_with_care(options, body)
    # `body` is never empty here, so the comma is always valid.
    return b'{"messages":[%s],%s' % (b",".join(messages), content[1:]) if messages else content


def _encode_with_care(options: BackendOptions, body: dict[str, Any]) -> bytes:
    """Do the same for lone surrogates, deep nesting, and NaN or infinity. It takes three times as long.

    pydantic's serialiser refuses these, or writes invalid JSON.
    """
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        error = ModelProtocolError(
            f"The request to the model backend {show(options.name)} cannot be written as JSON",
            remedy="Check the JSON Schemas of the request: NaN and infinity have no form in JSON.",
        )
        raise UpstreamFaultError(error) from None
    return text.encode("utf-8", "replace")


def read_retry_after_s(headers: Mapping[str, str], *, now: Callable[[], float]) -> float | None:
    """Return the seconds that a server asks to wait (RFC 9110, section 10.2.3); None if it asks for none.

    `retry-after-ms` has precedence, because it is more precise. A date is compared with `now`, in seconds since 1970.
    Values that are neither a number nor a date, and times in the past, are ignored.
    """
    fine = _parse_number(headers.get("retry-after-ms", ""))
    value = headers.get("retry-after", "").strip()
    seconds = fine / 1000 if fine is not None else _parse_number(value)
    if seconds is None and value:
        seconds = _seconds_until(value, now=now())
    return seconds if seconds is not None and seconds > 0 else None


def _parse_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _seconds_until(value: str, *, now: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now
    except (ValueError, OverflowError):
        return None

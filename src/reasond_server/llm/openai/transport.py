"""The way to a model server: requests sent by aiohttp over connections that are kept, and what comes back.

aiohttp is imported only when a backend is made: it takes long.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import ssl
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_json

from reasond_server.errors import ModelProtocolError, ModelUnavailableError, show
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.addressing import RequestHeads, build_missing_package_error, find_proxy
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import aiohttp

    from reasond_server.llm.openai.addressing import RequestHead
    from reasond_server.llm.openai.backend_options import BackendOptions


_MAX_REFUSAL_BYTES = 65_536
_REFUSAL_PATIENCE_S = 2.0
_READ_BYTES = 16_384
_SUCCESS, _REDIRECT = 200, 300
_OTHER_CONTENT = {"text/html": "HTML", "application/json": "JSON", "text/xml": "XML", "application/xml": "XML"}


class Upstream(Protocol):
    """An answer of which headers and a status of success came."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer, found by their names in lower case."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the body came to its end, and all of it was returned."""
        ...

    def read_ready(self, *, granted: Callable[[], int] = int) -> bytes | None:
        """Return what came of the body, at most 16 KiB; nothing at its end; None while nothing came.

        `granted` tells how many bytes beyond `max_response_bytes` the answer has earned so far; by default none.

        Raises:
            UpstreamFaultError: the connection broke, or more bytes came than are taken.
        """
        ...

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        """Wait for what `read_ready` returns, and return it. Raises what it does."""
        ...

    def close(self) -> None:
        """Let go of the answer; a server that still writes it sees the connection end at once."""
        ...


class Transport(Protocol):
    """Requests to one backend. Paths are relative to its base URL, or with a leading slash to its root."""

    async def open(self, path: str, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> Upstream:
        """Send `body`, with `messages` that are JSON already, and return the answer once its headers came.

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

    async def aclose(self) -> None:
        """Close all connections."""
        ...


class OpenAITransport:
    """A `Transport` over aiohttp. There are no retries and no redirects.

    Compressed answers are not asked for; if one comes, its decompressed size is bounded.

    Args:
        options: the backend.
        now: seconds since 1970, for servers that name a date to come back at.

    Raises:
        SettingsError: a package is not installed, or the address is refused.
    """

    def __init__(self, *, options: BackendOptions, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._heads = RequestHeads(options=options)
        self._pool = ConnectionPool(options=options)
        self._has_answered = False
        self._keeps_connections = True

    async def open(self, path: str, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> Upstream:
        """Send `body`, with `messages` that are JSON already, and return the answer once its headers came."""
        answer = await self._send(path, body, messages)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_CONTENT:
            try:
                raise await self._read_other_content(answer, _OTHER_CONTENT[kind])
            finally:
                answer.close()
        return answer

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` and return the JSON that comes back."""
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
            raise faults.fault_of_timeout(self._options, "did not answer", timeout_s, "timeout_s") from None
        return parse_json(bytes(content))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def _send(self, path: str, body: dict[str, Any], messages: Sequence[bytes] = ()) -> _HttpAnswer:
        """Send a request and return its answer, whose body is still to come.

        llama.cpp promises to keep a connection and drops it after a stream, so that the next call fails on it. Then the
        request is sent once more, and no connection is kept from then on. For other servers a new connection would
        cost a third of each call.
        """
        request = self._heads.find(path)
        content = encode_body(self._options, body, messages=messages)
        while True:
            keeps = self._keeps_connections
            try:
                response = await self._pool.send(request, content, keeps=keeps)
                break
            except Exception as error:  # noqa: BLE001 - whatever the layers below raise, the caller gets an error of ours
                if not (keeps and self._has_answered and is_dropped(error)):
                    raise fault_of_open(self._options, error) from None
                self._keeps_connections = False
        self._has_answered = True
        answer = _HttpAnswer(response, options=self._options)
        if not _SUCCESS <= response.status < _REDIRECT:
            raise await self._read_refusal(answer, response.status)
        return answer

    async def _read_refusal(self, answer: _HttpAnswer, status: int) -> UpstreamFaultError:
        """Read a bounded beginning of an answer without success and return its fault."""
        try:
            body = await answer.read_beginning()
        finally:
            answer.close()
        wait = read_retry_after_s(answer.headers, now=self._now)
        return faults.fault_of_status(self._options, status=status, body=body, retry_after_s=wait)

    async def _read_other_content(self, answer: _HttpAnswer, kind: str) -> UpstreamFaultError:
        """Return the fault for an answer with success that is not a stream of events."""
        body = await answer.read_beginning()
        try:
            report = parse_json(body) if kind == "JSON" else None
        except ModelProtocolError:
            report = None
        if isinstance(report, dict) and report.get("error"):
            return faults.fault_of_report(self._options, report)
        return faults.fault_of_breach(self._options, f"answered with {kind} instead of a stream of events")


class _HttpAnswer:
    """One answer of the server."""

    __slots__ = ("_came", "_options", "_response")

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
            raise fault_of_lost_connection(self._options) from None
        return self._count(piece, granted) if piece or content.is_eof() else None

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        try:
            piece = await self._response.content.read(_READ_BYTES)
        except Exception:  # noqa: BLE001 - aiohttp's errors, and those of decoders below it
            raise fault_of_lost_connection(self._options) from None
        return self._count(piece, granted)

    def _count(self, piece: bytes, granted: Callable[[], int]) -> bytes:
        self._came += len(piece)
        most = self._options.max_response_bytes
        if self._came > most and self._came > most + granted():
            raise _fault_of_size(self._options, most + granted())
        return piece

    async def read_beginning(self) -> bytes:
        """Return the first bytes of the body, as many as come within two seconds."""
        body = bytearray()
        try:
            async with asyncio.timeout(_REFUSAL_PATIENCE_S):
                while len(body) <= _MAX_REFUSAL_BYTES and (piece := await self.read()):
                    body += piece
        except (TimeoutError, UpstreamFaultError):
            return bytes(body)
        return bytes(body[:_MAX_REFUSAL_BYTES])

    def close(self) -> None:
        # Ends the connection, unless the body was read to its end: then the pool has it back by now.
        self._response.close()


def fault_of_lost_connection(options: BackendOptions) -> UpstreamFaultError:
    """Return the fault for a connection that broke while the answer was read."""
    error = ModelUnavailableError(
        f"The model backend {faults.describe_place(options)} broke the connection in the middle of its answer",
        remedy="Check the model server and the proxies before it.",
    )
    return UpstreamFaultError(error, retries=faults.AS_OFTEN_AS_ALLOWED, is_unhealthy=True, may_cost=True)


def _fault_of_size(options: BackendOptions, limit: int) -> UpstreamFaultError:
    remedy = "Raise max_response_bytes of the backend if such answers are meant."
    return faults.fault_of_breach(options, f"sent more than {limit} bytes in one answer", remedy=remedy)


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
            raise build_missing_package_error() from None
        self._options = options
        self._session: aiohttp.ClientSession | None = None
        self._proxy = find_proxy(options.base_url)
        # The package's own choice of authorities, SSL_CERT_FILE and SSL_CERT_DIR included; reading them takes a while.
        self._tls = create_ssl_context() if options.base_url.lower().startswith("https:") else True

    async def send(self, request: RequestHead, content: bytes, *, keeps: bool) -> aiohttp.ClientResponse:
        """Send a request and return its answer, whose body is still to come. Raises what aiohttp raises."""
        session = self._session
        if session is None:
            session = self._session = _open_session(self._options, tls=self._tls)
        return await session.post(
            request.url,
            data=content,
            headers=request.build_headers(keeps=keeps),
            allow_redirects=False,
            proxy=self._proxy,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def fault_of_open(options: BackendOptions, error: Exception) -> UpstreamFaultError:
    """Return the fault for what `ConnectionPool.send` raised."""
    import aiohttp  # noqa: PLC0415 - only when used

    faults.log_fault(options, f"not opened: {type(error).__name__}")
    if isinstance(error, aiohttp.ClientSSLError) or isinstance(error.__cause__, ssl.SSLError):
        return faults.fault_of_unreachable(options, "its certificate or its TLS is not acceptable", is_retryable=False)
    if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
        return faults.fault_of_unreachable(options, "base_url is not an address of HTTP", is_retryable=False)
    if isinstance(error, aiohttp.ServerTimeoutError):
        fault = faults.fault_of_timeout(
            options, "did not take a connection", options.timeouts.connect_s, "timeouts.connect_s"
        )
        fault.may_cost = False
        return fault
    if isinstance(error, aiohttp.ClientResponseError):
        return faults.fault_of_breach(options, "answered with something that is not HTTP")
    if isinstance(error, aiohttp.ClientConnectorError):
        return faults.fault_of_unreachable(options, "no connection")
    fault = faults.fault_of_unreachable(options, "the connection ended before an answer began")
    fault.may_cost = True
    return fault


def is_dropped(error: Exception) -> bool:
    """Whether a connection that stood ended before an answer began."""
    import aiohttp  # noqa: PLC0415 - only when used

    is_ended = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
    return is_ended and not isinstance(error, aiohttp.ClientConnectorError)


def _open_session(options: BackendOptions, *, tls: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    """Return a session; it belongs to the event loop that runs now."""
    import aiohttp  # noqa: PLC0415 - only when used

    connector = aiohttp.TCPConnector(
        ssl=tls,
        limit=options.max_concurrency + _SPARE_CONNECTIONS,
        keepalive_timeout=_KEPT_S,
        socket_factory=_build_opener(user_timeout_s=options.timeouts.first_token_s),
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, connect=options.timeouts.connect_s, sock_connect=options.timeouts.connect_s
        ),
    )


def _build_opener(*, user_timeout_s: float) -> Callable[[Any], socket.socket]:
    """Return what opens sockets that the system drops when the server acknowledged nothing for `user_timeout_s`.

    A call ends at its deadlines in any case. But a socket is closed only when all its data was sent, so a server that
    never reads a long request would hold the socket, and megabytes with it, for as long as it likes.
    """

    def open_socket(address: Any) -> socket.socket:  # noqa: ANN401 - aiohttp's AddrInfoType
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            with suppress(OSError):  # where the system knows it but not for this kind of socket
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(user_timeout_s * 1000)))
        return made

    return open_socket


def encode_body(options: BackendOptions, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> bytes:
    """Return `body` as JSON in UTF-8, with "?" for lone surrogates. `messages` are JSON already.

    Raises:
        UpstreamFaultError: it has no form in JSON, such as a number that is none in a schema of the caller.
    """
    content = b""
    with suppress(ValueError):
        content = to_json(body)
    if not content or b"NaN" in content or b"Infinity" in content:
        content = _encode_with_care(options, body)
    # There is always something else in a body with messages.
    return b'{"messages":[%s],%s' % (b",".join(messages), content[1:]) if messages else content


def _encode_with_care(options: BackendOptions, body: dict[str, Any]) -> bytes:
    """Do the same, three times as slowly, for lone surrogates, deep nesting, and NaN or infinity.

    pydantic's writer refuses these, or writes what is not JSON.
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
    """Return the seconds that a server asks to wait (RFC 9110, section 10.2.3); None if it does not say.

    `retry-after-ms` is finer and goes first. A date is compared with `now`, in seconds since 1970. What is neither
    a number nor a date, and what lies in the past, says nothing.
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

"""Requests to a model server, sent by the client of the `openai` package, and their answers.

The package is imported only when a backend is built, because the import takes long.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import to_json

from reasond_server.errors.base import SettingsError, show
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import httpx2

    from reasond_server.llm.openai.backend_options import BackendOptions


# A line takes as long to read as so many bytes of text: comments without end are bounded by their number.
_BYTES_A_LINE = 64
_OTHER_CONTENT = {"text/html": "HTML", "text/xml": "XML", "application/xml": "XML"}


class Upstream(Protocol):
    """An answer whose headers were received, with a success status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer; the keys are names in lower case."""

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        """Wait for bytes of the body and return them; empty at its end.

        `granted` returns the bytes that the answer may have in addition to `max_response_bytes`; by default 0. Each
        line counts as 64 bytes more than it has.

        Raises:
            UpstreamFaultError: the connection broke, or the body exceeds its limit.
        """

    async def aclose(self) -> None:
        """Close the answer; if the server is still writing, its connection ends at once."""


class OpenAITransport:
    """Requests to one backend. Paths are relative to its base URL; with a leading slash, to the root.

    It does not follow redirects, and repeats a request only after a dropped connection.

    It does not request compression; if an answer is compressed, its decompressed size is bounded.

    Args:
        options: the backend.
        now: returns seconds since 1970, for a Retry-After header with a date.

    Raises:
        SettingsError: a package is not installed, or the address is refused.
    """

    def __init__(self, *, options: BackendOptions, now: Callable[[], float]) -> None:
        try:
            from reasond_server.llm.openai import model_client  # noqa: PLC0415 - only when used
        except ImportError:
            raise SettingsError(
                "The provider 'openai' needs the packages openai and aiohttp, which are not installed",
                remedy="Install reasond-server again: its dependencies are not complete.",
            ) from None
        self._options = options
        self._now = now
        self._http = model_client
        self._client = model_client.ModelClient(options=options)
        self._keeps_connections = True

    async def open(self, path: str, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> Upstream:
        """Send `body` and return the answer when its headers arrive. `messages` are serialised already.

        Raises:
            UpstreamFaultError: there is no answer, or its status is an error.
        """
        response = await self._send(path, body, messages)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_CONTENT:
            beginning = await self._http.read_beginning(response)
            await self._http.close_response(response)
            raise self._judge_other_content(beginning, _OTHER_CONTENT[kind])
        return await self._build_answer(response)

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:  # noqa: ANN401 - JSON
        """Send `body` and return the JSON answer.

        Raises:
            UpstreamFaultError: as `open`, or the answer did not arrive within `timeout_s` seconds.
            ModelProtocolError: the answer is not JSON.
        """
        content = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._build_answer(await self._send(path, body))
                try:
                    while piece := await answer.read():
                        content += piece
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise faults.build_timeout_fault(self._options, "did not answer", timeout_s, "timeout_s") from None
        return parse_json(bytes(content))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _send(self, path: str, body: dict[str, Any], messages: Sequence[bytes] = ()) -> httpx2.Response:
        """Send a request and return its answer, whose body is not read yet.

        llama.cpp promises to keep a connection open but closes it after a stream, so the next call on it fails. Then
        the request is sent again, past other such connections if there are any, and from then on none is kept. For
        other servers, a new connection would take a third of the time of each call.
        """
        content = encode_body(self._options, body, messages=messages)
        while True:
            try:
                return await self._client.post(path, content, keeps=self._keeps_connections)
            except self._http.ErrorStatusError as refused:
                if b'"tool_use_failed"' in refused.body:
                    # The model has written a call, which the gateway could not read: that is an answer.
                    return self._http.build_response(refused)
                wait_s = read_retry_after_s(refused.headers, now=self._now)
                raise faults.classify_status(
                    self._options, status=refused.status, body=refused.body, retry_after_s=wait_s
                ) from None
            except Exception as error:  # noqa: BLE001 - every error of the layers below is converted
                cause = self._http.find_cause(error)
                # On a connection of its own, a request may have been read, and be billed, before that ended.
                if not (is_dropped(cause) and self._http.has_reused_connection()):
                    raise build_open_fault(self._options, cause) from None
                self._keeps_connections = False

    async def _build_answer(self, response: httpx2.Response) -> _HttpAnswer:
        try:
            return _HttpAnswer(response, options=self._options)
        except self._http.CodingError:
            await self._http.close_response(response)
            raise faults.build_protocol_fault(
                self._options, "compressed its answer in a way that has no bound, though it was asked not to"
            ) from None

    def _judge_other_content(self, beginning: bytes, kind: str) -> UpstreamFaultError:
        """Return the fault for an answer with a success status that is not a stream of events."""
        try:
            report = parse_json(beginning) if kind == "JSON" else None
        except ModelProtocolError:
            report = None
        if isinstance(report, dict) and report.get("error"):
            return faults.classify_report(self._options, report)
        return faults.build_protocol_fault(self._options, f"answered with {kind} instead of a stream of events")


class _HttpAnswer:
    """One answer of the server."""

    def __init__(self, response: httpx2.Response, *, options: BackendOptions) -> None:
        from reasond_server.llm.openai import model_client  # noqa: PLC0415 - imported already, by the transport

        self._response = response
        self._options = options
        self._came = 0
        self._close = model_client.close_response
        self._pieces = model_client.iterate_body(response)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        self._require_room(granted)
        try:
            piece = await anext(self._pieces, b"")
        except Exception:  # noqa: BLE001 - errors of the package, and those of decoders and transports below it
            raise build_lost_connection_fault(self._options) from None
        self._came += len(piece)
        self._require_room(granted)
        # Looked at by the next read, when the content of this one is known.
        self._came += _BYTES_A_LINE * (piece.count(b"\n") + piece.count(b"\r"))
        return piece

    def _require_room(self, granted: Callable[[], int]) -> None:
        most = self._options.max_response_bytes
        if self._came > most and self._came > most + granted():
            raise _build_size_fault(self._options, most + granted())

    async def aclose(self) -> None:
        await self._close(self._response)


def build_lost_connection_fault(options: BackendOptions) -> UpstreamFaultError:
    """Return the fault for a connection that broke during the answer."""
    error = ModelUnavailableError(
        f"The model backend {faults.describe_place(options)} broke the connection in the middle of its answer",
        remedy="Check the model server and the proxies before it.",
    )
    return UpstreamFaultError(error, retries=faults.AS_OFTEN_AS_ALLOWED, is_unhealthy=True, may_cost=True)


def _build_size_fault(options: BackendOptions, limit: int) -> UpstreamFaultError:
    remedy = "Raise max_response_bytes of the backend if such answers are meant."
    return faults.build_protocol_fault(
        options, f"sent more than {limit} bytes in one answer, at {_BYTES_A_LINE} more for each line", remedy=remedy
    )


def build_open_fault(options: BackendOptions, error: BaseException) -> UpstreamFaultError:
    """Return the fault for an error of aiohttp or of the system before an answer began."""
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


def is_dropped(error: BaseException) -> bool:
    """Return whether an open connection ended before an answer began."""
    import aiohttp  # noqa: PLC0415 - only when used

    is_ended = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError))
    return is_ended and not isinstance(error, aiohttp.ClientConnectorError)


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
        seconds = _count_seconds_until(value, now=now())
    return seconds if seconds is not None and seconds > 0 else None


def _parse_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _count_seconds_until(value: str, *, now: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - now
    except (ValueError, OverflowError):
        return None

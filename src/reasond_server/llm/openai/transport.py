"""The way to a model server: requests as the `openai` package writes them, sent by aiohttp, and what comes back.

Both are imported only when a backend is made: that costs a third of a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from reasond_server.errors import ModelProtocolError
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.json_values import json_value
from reasond_server.llm.openai.pool import ConnectionPool, failed_to_open, is_dropped
from reasond_server.llm.openai.requests import RequestWriter, encoded
from reasond_server.llm.openai.retrying import retry_after_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import aiohttp

    from reasond_server.llm.openai.options import BackendOptions

_MAX_REFUSAL_BYTES = 65_536
_REFUSAL_PATIENCE_S = 2.0
_READ_BYTES = 16_384
_SUCCESS, _REDIRECT = 200, 300
_OTHER_CONTENT = {"text/html": "HTML", "application/json": "JSON", "text/xml": "XML", "application/xml": "XML"}


class Upstream(Protocol):
    """An answer that has begun, with a status of success."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the answer, found by their names in lower case."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the body came to its end, and all of it was returned."""
        ...

    def ready(self, *, granted: Callable[[], int] = int) -> bytes | None:
        """Return what came of the body, at most 16 KiB; nothing at its end; None while nothing came.

        `granted` tells how many bytes beyond `max_response_bytes` the answer has earned so far; by default none.

        Raises:
            UpstreamFaultError: the connection broke, or more bytes came than are taken.
        """
        ...

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        """Wait for what `ready` returns, and return it. Raises what it does."""
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
    """A `Transport` that sends what the `openai` package writes: its addresses, Azure's, its credentials and headers.

    The package reads no settings of its own from the environment, apart from OPENAI_ORG_ID and OPENAI_PROJECT_ID, which
    are sent to OpenAI only. There are no retries and no redirects. Encoded answers are decoded, though none is asked
    for, and bounded by what they unfold to.

    Args:
        options: the backend.
        now: seconds since 1970, for servers that name a date to come back at.

    Raises:
        SettingsError: a package is not installed, or the address is refused.
    """

    def __init__(self, *, options: BackendOptions, now: Callable[[], float]) -> None:
        self._options = options
        self._now = now
        self._writer = RequestWriter(options=options)
        self._pool = ConnectionPool(options=options)
        self._has_answered = False
        self._keeps_connections = True

    async def open(self, path: str, body: dict[str, Any], *, messages: Sequence[bytes] = ()) -> Upstream:
        """Send `body`, with `messages` that are JSON already, and return the answer once its headers came."""
        answer = await self._send(path, body, messages)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_CONTENT:
            try:
                raise await self._no_stream(answer, _OTHER_CONTENT[kind])
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
            raise faults.late(self._options, "did not answer", timeout_s, "timeout_s") from None
        return json_value(bytes(content))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._writer.aclose()
        await self._pool.aclose()

    async def _send(self, path: str, body: dict[str, Any], messages: Sequence[bytes] = ()) -> _Answer:
        """Send a request and return its answer, whose body is still to come.

        llama.cpp promises to keep a connection and drops it after a stream, so that the next call fails on it. Then the
        request is sent once more, and from then on no connection is kept; to others each new one would cost a third
        of a call.
        """
        request = await self._writer.written(path, body)
        content = encoded(self._options, body, messages=messages)
        while True:
            keeps = self._keeps_connections
            try:
                response = await self._pool.send(request, content, keeps=keeps)
                break
            except Exception as error:  # noqa: BLE001 - whatever the layers below raise, the caller gets an error of ours
                if not (keeps and self._has_answered and is_dropped(error)):
                    raise failed_to_open(self._options, error) from None
                self._keeps_connections = False
        self._has_answered = True
        answer = _Answer(response, options=self._options)
        if not _SUCCESS <= response.status < _REDIRECT:
            raise await self._refused(answer, response.status)
        return answer

    async def _refused(self, answer: _Answer, status: int) -> UpstreamFaultError:
        """Return the fault for an answer without success, of which a bounded beginning is read."""
        try:
            body = await answer.beginning()
        finally:
            answer.close()
        wait = retry_after_s(answer.headers, now=self._now)
        return faults.refused(self._options, status=status, body=body, retry_after_s=wait)

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

    def ready(self, *, granted: Callable[[], int] = int) -> bytes | None:
        content = self._response.content
        try:
            piece = content.read_nowait(_READ_BYTES)
        except Exception:  # noqa: BLE001 - aiohttp's errors, and those of decoders below it
            raise faults.connection_lost(self._options) from None
        return self._counted(piece, granted) if piece or content.is_eof() else None

    async def read(self, *, granted: Callable[[], int] = int) -> bytes:
        try:
            piece = await self._response.content.read(_READ_BYTES)
        except Exception:  # noqa: BLE001 - aiohttp's errors, and those of decoders below it
            raise faults.connection_lost(self._options) from None
        return self._counted(piece, granted)

    def _counted(self, piece: bytes, granted: Callable[[], int]) -> bytes:
        self._came += len(piece)
        most = self._options.max_response_bytes
        if self._came > most and self._came > most + granted():
            raise _too_much(self._options, most + granted())
        return piece

    async def beginning(self) -> bytes:
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


def _too_much(options: BackendOptions, limit: int) -> UpstreamFaultError:
    remedy = "Raise max_response_bytes of the backend if such answers are meant."
    return faults.breach(options, f"sent more than {limit} bytes in one answer", remedy=remedy)

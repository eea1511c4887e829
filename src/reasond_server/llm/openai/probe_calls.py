"""Single calls for `reasond backends check`: bounded in time, length and bytes, and read without any assumption.

They bypass the adapter on purpose: the adapter leaves out parameters that a profile does not support, and a probe
must see how the server handles them.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import aiohttp
from pydantic_core import to_json

from reasond_server.dialects.reasoning_marks import FIELDS
from reasond_server.errors.base import show
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.openai.model_client import (
    ErrorStatusError,
    ModelClient,
    close_response,
    find_cause,
    iterate_body,
)
from reasond_server.llm.openai.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType

    import httpx2

    from reasond_server.llm.openai.backend_options import BackendOptions

MATCH_FIELDS = ("stop_reason", "matched_stop", "stop_sequence", "stopping_word")
_MAX_PIECES = 64
_MAX_BODY = 262_144
_OK = 200
_ERROR_WORDS = 160


@dataclass(slots=True, kw_only=True)
class ProbeReply:
    """The result of one call. `status` 0: no answer in time. `is_cut`: we closed the call before its end."""

    status: int = 0
    error: str = ""
    text: str = ""
    reasoning: set[str] = field(default_factory=set)
    usage: Mapping[str, Any] | None = None
    finish: str = ""
    matched: dict[str, str] = field(default_factory=dict)
    tools: list[str] = field(default_factory=list)
    pieces: int = 0
    is_cut: bool = False

    @property
    def is_ok(self) -> bool:
        """Whether the server answered with success and reported no error inside the answer."""
        return self.status == _OK and not self.error

    @property
    def tokens(self) -> int:
        """Output tokens: as reported, else the number of streamed pieces."""
        reported = (self.usage or {}).get("completion_tokens")
        return reported if isinstance(reported, int) else self.pieces

    @property
    def outcome(self) -> str:
        """A short description of the result."""
        if self.status == 0:
            return self.error
        if not self.is_ok:
            return f"HTTP {self.status}{f': {self.error}' if self.error else ''}"
        end = "closed by us" if self.is_cut else f"finish_reason {show(self.finish)}"
        return f"{self.tokens} tokens, {end}"

    def take(self, event: object) -> None:
        """Read one event of a stream, or a whole completion."""
        if not isinstance(event, dict):
            return
        if event.get("error"):
            self.error = _shorten_error(event)
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._take_choice(choice)

    def _take_choice(self, choice: Mapping[str, Any]) -> None:
        finish = choice.get("finish_reason")
        self.finish = finish if isinstance(finish, str) else self.finish
        self.matched |= {name: choice[name] for name in MATCH_FIELDS if isinstance(choice.get(name), str)}
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return
        content = delta.get("content")
        if isinstance(content, str) and content:
            self.text += content
            self.pieces += 1
        fields = {name for name in FIELDS if isinstance(delta.get(name), str) and delta[name]}
        self.reasoning |= fields
        self.pieces += bool(fields)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, dict) else None
            name = function.get("name") if isinstance(function, dict) else None
            self.tools += [name] if isinstance(name, str) and name else []


class ProbeClient:
    """Calls one backend; an async context manager. No call takes longer than `limit_s` seconds."""

    def __init__(self, *, options: BackendOptions, limit_s: float) -> None:
        self._options = options
        self._limit_s = limit_s
        self._folder = re.sub(r"/v1$", "", urlsplit(options.base_url).path.rstrip("/"))
        # One connection per call: if a server closes its connection after a stream, the next call would fail.
        self._client = ModelClient(options=options, keeps_connections=False)

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def chat(self, body: Mapping[str, Any]) -> ProbeReply:
        """Make one streamed call of Chat Completions and read at most 64 pieces of its answer.

        Raises:
            ModelUnavailableError: the server cannot be reached.
        """
        reply = ProbeReply()
        data = to_json({"model": self._options.model, "stream": True, **body})
        try:
            async with asyncio.timeout(self._limit_s):
                response = await self._client.post("chat/completions", data)
                reply.status = response.status_code
                try:
                    await _read_reply(response, reply)
                finally:
                    await close_response(response)
        except TimeoutError:
            reply.status, reply.error = 0, f"no end within {self._limit_s:g} s; allow more with --limit"
        except ErrorStatusError as refused:
            reply.status = refused.status
            reply.take(event := _read_json(refused.body))
            kind = refused.headers.get("content-type", "")
            reply.error = reply.error or (f"no JSON ({kind})" if event is None else _shorten_error(event))
        except Exception as error:  # noqa: BLE001 - errors of the package and of what lies below it
            cause = find_cause(error)
            if isinstance(cause, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
                raise self._build_unreachable_error() from None
            reply.error = f"the answer broke off ({type(cause).__name__})"
        reply.error = self._hide_key(reply.error)
        return reply

    async def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON at `path`, relative to the base URL without /v1; None if there is none."""
        return await self._fetch(self._client.get(f"{self._folder}{path}"))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """Send `body` to `path`, relative to the base URL without /v1, and return the JSON answer; None if none."""
        return await self._fetch(self._client.post(f"{self._folder}{path}", to_json(body)))

    async def _fetch(self, call: Awaitable[httpx2.Response]) -> Any:  # noqa: ANN401 - any JSON
        with suppress(Exception):  # a server without such a path may do anything
            async with asyncio.timeout(self._limit_s):
                response = await call
                try:
                    return _read_json(await _read_whole(response)) if response.status_code == _OK else None
                finally:
                    await close_response(response)
        return None

    def _build_unreachable_error(self) -> ModelUnavailableError:
        return ModelUnavailableError(
            f"nothing can be reached at {self._options.base_url}", remedy="Check base_url, and that the server runs."
        )

    def _hide_key(self, text: str) -> str:
        """Return `text` without the key, which some servers repeat."""
        key = self._options.api_key
        return text.replace(key, "***") if isinstance(key, str) and key else text


async def _read_reply(response: httpx2.Response, reply: ProbeReply) -> None:
    """Read a stream of events, a whole completion, or an error into `reply`."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "text/event-stream":
        event = _read_json(await _read_whole(response))
        reply.take(event)
        reply.error = reply.error or ("" if event is not None else f"no JSON ({kind})")
        return
    events = SseReader(max_line_bytes=_MAX_BODY)
    async for piece in iterate_body(response):
        for event in events.feed(piece):
            if event.data == b"[DONE]":
                return
            reply.take(json.loads(event.data))
            if reply.pieces >= _MAX_PIECES:
                reply.is_cut = True
                return
        if events.fault is not None:
            reply.error = "a line of the stream is too long"
            return


async def _read_whole(response: httpx2.Response) -> bytes:
    """Return at most 256 KiB of a body."""
    content = bytearray()
    async for piece in iterate_body(response):
        content += piece
        if len(content) > _MAX_BODY:
            break
    return bytes(content)


def _read_json(content: bytes) -> Any:  # noqa: ANN401 - any JSON
    """Return the value of `content`; None if it is not JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _shorten_error(event: object) -> str:
    """Return the shortened text of an error object."""
    error = event.get("error", event) if isinstance(event, dict) else event
    message = error.get("message", error) if isinstance(error, dict) else error
    text = " ".join((message if isinstance(message, str) else json.dumps(message)).split())
    return text if len(text) <= _ERROR_WORDS else f"{text[:_ERROR_WORDS]}…"

"""Single calls for `reasond backends check`: bounded in time, length and bytes, and read without any assumption.

They bypass the adapter on purpose: the adapter leaves out parameters that a profile does not support, and a probe
must see how the server handles them.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp

from reasond_server.base.http_responses import BoundedResponse
from reasond_server.errors.base import show
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.openai.request_heads import RequestHeads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from reasond_server.llm.openai.backend_options import BackendOptions

MATCH_FIELDS = ("stop_reason", "matched_stop", "stop_sequence", "stopping_word")
REASONING_FIELDS = ("reasoning", "reasoning_content")
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
        told = {name for name in REASONING_FIELDS if isinstance(delta.get(name), str) and delta[name]}
        self.reasoning |= told
        self.pieces += bool(told)
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
        base = options.base_url.rstrip("/")
        self._root = re.sub(r"/v1$", "", base)
        self._head = RequestHeads(options=options).find("chat/completions")

    async def __aenter__(self) -> Self:
        """Open the connections."""
        self._session = aiohttp.ClientSession(
            # One connection per call: if a server closes its connection after a stream, the next call would fail.
            connector=aiohttp.TCPConnector(force_close=True),
            headers=self._head.headers,
            response_class=BoundedResponse,
            timeout=aiohttp.ClientTimeout(total=self._limit_s, sock_connect=self._options.timeouts.connect_s),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._session.close()

    async def chat(self, body: Mapping[str, Any]) -> ProbeReply:
        """Make one streamed call of Chat Completions and read at most 64 pieces of its answer.

        Raises:
            ModelUnavailableError: the server cannot be reached.
        """
        reply = ProbeReply()
        data = {"model": self._options.model, "stream": True, **body}
        try:
            async with self._session.post(self._head.url, json=data, allow_redirects=False) as response:
                reply.status = response.status
                await _read_reply(response, reply)
        except TimeoutError:
            reply.status, reply.error = 0, f"no end within {self._limit_s:g} s; allow more with --limit"
        except aiohttp.ClientConnectorError:
            raise self._build_unreachable_error() from None
        except (aiohttp.ClientError, ValueError) as error:
            reply.error = f"the answer broke off ({type(error).__name__})"
        reply.error = self._hide_key(reply.error)
        return reply

    async def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON at `path`, relative to the base URL's root; None if there is none."""
        return await self._fetch("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """Send `body` to `path`, relative to the base URL's root, and return the JSON answer; None if there is none."""
        return await self._fetch("POST", path, body)

    async def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - any JSON
        try:
            async with self._session.request(
                method, f"{self._root}{path}", json=body, allow_redirects=False
            ) as response:
                if response.status != _OK:
                    return None
                return json.loads(await _read_whole(response))
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
            return None

    def _build_unreachable_error(self) -> ModelUnavailableError:
        return ModelUnavailableError(
            f"nothing can be reached at {self._options.base_url}", remedy="Check base_url, and that the server runs."
        )

    def _hide_key(self, text: str) -> str:
        """Return `text` without the key, which some servers repeat."""
        key = self._options.api_key
        return text.replace(key, "***") if key else text


async def _read_reply(response: aiohttp.ClientResponse, reply: ProbeReply) -> None:
    """Read a stream of events, a whole completion, or an error into `reply`."""
    if response.status != _OK or response.content_type != "text/event-stream":
        content = await _read_whole(response)
        try:
            event = json.loads(content)
        except (ValueError, RecursionError):
            reply.error = f"no JSON ({response.content_type})"
            return
        reply.take(event)
        reply.error = reply.error or ("" if response.status == _OK else _shorten_error(event))
        return
    async for line in response.content:
        data = line.strip().removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
        if data == b"[DONE]":
            return
        if data:
            reply.take(json.loads(data))
        if reply.pieces >= _MAX_PIECES:
            reply.is_cut = True
            response.close()
            return


async def _read_whole(response: aiohttp.ClientResponse) -> bytes:
    """Return at most 256 KiB of a body."""
    content = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        content += chunk
        if len(content) > _MAX_BODY:
            response.close()
            break
        await asyncio.sleep(0)
    return bytes(content)


def _shorten_error(event: object) -> str:
    """Return the shortened text of an error object."""
    error = event.get("error", event) if isinstance(event, dict) else event
    message = error.get("message", error) if isinstance(error, dict) else error
    text = " ".join((message if isinstance(message, str) else json.dumps(message)).split())
    return text if len(text) <= _ERROR_WORDS else f"{text[:_ERROR_WORDS]}…"

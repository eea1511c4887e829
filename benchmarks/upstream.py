"""A small, fast OpenAI-compatible upstream for the benchmarks: its own process on loopback.

Its own cost must not affect the figures, so each answer is built once per model name and written in as few calls as
possible. The model name controls the behaviour: `fake?chunks=100&gap_ms=10` answers with 100 pieces, one every 10 ms.

    chunks       pieces of a streamed answer (1)
    bytes        bytes of the whole answer (2048)
    latency_ms   time before the first byte (0)
    gap_ms       time between two pieces (0)
    apart        1 writes every piece by itself even without a gap (0: the whole stream in one write)
    tools        calls of the first tool that is offered, one in each answer, before the text (0)

`python -m benchmarks.upstream PORT` runs it alone; port 0 picks one, which is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, pairwise, takewhile
from typing import Any, cast
from urllib.parse import parse_qsl

from httptools import HttpParserError, HttpRequestParser

from benchmarks.machine import new_event_loop, pin

WORDS = ("light ", "is ", "refracted ", "by ", "glass ", "in ", "its ", "own ", "degree, ", "each ", "ray ", "apart. ")
PROMPT_TOKENS = 512
BYTES_PER_TOKEN = 4
STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The behaviour of one model name: whole HTTP responses, built once."""

    unary: bytes
    head: bytes
    pieces: tuple[bytes, ...]
    usage: bytes
    end: bytes
    latency_s: float
    gap_s: float
    is_apart: bool
    tools: int = 0


def text_of(size: int) -> str:
    """Return `size` bytes of words."""
    words = cycle(WORDS)
    text = ""
    while len(text) < size:
        text += next(words)
    return text[:size]


def http_chunk(body: bytes) -> bytes:
    """Return `body` as one chunk of the chunked transfer coding."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def response(status: bytes, body: bytes) -> bytes:
    """Return a whole JSON response."""
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def compact(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return `value` as JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def manner_of(model: str) -> Manner:
    """Return how `model` answers."""
    options = {name: int(value) for name, value in parse_qsl(model.partition("?")[2])}
    chunks, text = options.get("chunks", 1), text_of(options.get("bytes", 2048))
    # A plausible count for a text of this length: the adapter corrects a report that is too small.
    written = max(chunks, len(text) // BYTES_PER_TOKEN)
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": written, "total_tokens": PROMPT_TOKENS + written}
    common = {"id": "chatcmpl-bench", "created": 1_760_000_000, "model": model}

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return server_sent({**common, "object": "chat.completion.chunk", "choices": [choice]})

    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    whole = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    edges = [len(text) * number // chunks for number in range(chunks + 1)]
    return Manner(
        unary=response(b"200 OK", compact({**common, "object": "chat.completion", "choices": [whole], "usage": usage})),
        head=b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        pieces=(
            event({"role": "assistant", "content": ""}),
            *(event({"content": text[start:end]}) for start, end in pairwise(edges)),
            event({}, "stop"),
        ),
        usage=server_sent({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage}),
        end=http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
        latency_s=options.get("latency_ms", 0) / 1000,
        gap_s=options.get("gap_ms", 0) / 1000,
        is_apart=bool(options.get("apart", 0)),
        tools=options.get("tools", 0),
    )


@lru_cache(maxsize=256)
def manner_of_call(model: str, tool: str, number: int) -> Manner:
    """Return how `model` answers with its `number`-th tool call, a call of `tool`."""
    common = {"id": "chatcmpl-bench", "created": 1_760_000_000, "model": model}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": 16, "total_tokens": PROMPT_TOKENS + 16}
    # Agents refuse the same call with the same arguments.
    arguments = json.dumps({"expression": f"6 * {7 + number}"})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    whole = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
    delta = {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}]}
    part = {**common, "object": "chat.completion.chunk"}
    begun = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    ended = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    return replace(
        manner_of(model),
        unary=response(b"200 OK", compact({**common, "object": "chat.completion", "choices": [whole], "usage": usage})),
        pieces=tuple(server_sent({**part, "choices": [choice]}) for choice in (begun, ended)),
        usage=server_sent({**part, "choices": [], "usage": usage}),
    )


def manner_for(request: dict[str, Any]) -> Manner:
    """Return how `request` is answered: by its model name and by the tool results since the user's last message.

    Raises:
      KeyError, TypeError: it is not a valid request.
    """
    manner = manner_of(request["model"])
    if not manner.tools or not request.get("tools"):
        return manner
    roles = [message["role"] for message in request["messages"]]
    done = len(list(takewhile(lambda role: role != "user", reversed(roles)))) // 2
    if done >= manner.tools:
        return manner
    return manner_of_call(request["model"], request["tools"][0]["function"]["name"], done)


def server_sent(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return `value` as one server-sent event in a chunk of its own."""
    return http_chunk(b"data: " + compact(value) + b"\n\n")


class Conversation(asyncio.Protocol):
    """One connection: reads requests and answers each as its model name says."""

    def __init__(self) -> None:
        self._parser = HttpRequestParser(self)
        self._body = b""
        self._transport: asyncio.Transport | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._is_last = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the current answer."""
        del exc
        for answer in self._answers:
            answer.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; invalid HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._close()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._body = b""

    def on_body(self, body: bytes) -> None:
        """Add to the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer."""
        self._is_last = not self._parser.should_keep_alive()
        try:
            request = json.loads(self._body)
            manner = manner_for(request)
        except (ValueError, KeyError, TypeError):
            self._end(response(b"400 Bad Request", compact({"error": {"message": "no request", "type": "bench"}})))
            return
        wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        if manner.latency_s or (manner.gap_s and request.get("stream")):
            answer = asyncio.get_running_loop().create_task(self._answer(manner, request, wants_usage=wants_usage))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
        elif not request.get("stream"):
            self._end(manner.unary)
        else:
            self._write_stream(manner, wants_usage=wants_usage)

    def _write_stream(self, manner: Manner, *, wants_usage: bool) -> None:
        """Write a stream without any pause."""
        end = manner.usage + manner.end if wants_usage else manner.end
        if not manner.is_apart:
            self._end(b"".join((manner.head, *manner.pieces, end)))
            return
        for part in (self._add_header(manner.head), *manner.pieces):
            self._write(part)
        self._end(end)

    async def _answer(self, manner: Manner, request: dict[str, Any], *, wants_usage: bool) -> None:
        """Answer with the requested pauses; the schedule of the pieces does not depend on the time of a write."""
        loop = asyncio.get_running_loop()
        if manner.latency_s:
            await asyncio.sleep(manner.latency_s)
        if not request.get("stream"):
            self._end(manner.unary)
            return
        if not manner.gap_s:
            self._write_stream(manner, wants_usage=wants_usage)
            return
        self._write(self._add_header(manner.head))
        due = loop.time()
        for piece in manner.pieces:
            self._write(piece)
            due += manner.gap_s
            await asyncio.sleep(max(0.0, due - loop.time()))
        self._end(manner.usage + manner.end if wants_usage else manner.end)

    def _add_header(self, answer: bytes) -> bytes:
        """Return `answer` with a `connection: close` header if the client asked for that."""
        return answer.replace(b"\r\n", b"\r\nconnection: close\r\n", 1) if self._is_last else answer

    def _end(self, data: bytes) -> None:
        """Write the last part of an answer, or a whole one."""
        self._write(self._add_header(data) if data.startswith(b"HTTP/") else data)
        if self._is_last:
            self._close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def serve(port: int) -> None:
    """Serve until standard input ends; print the port first."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Conversation, "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()

    def read_input() -> None:
        if not os.read(sys.stdin.fileno(), 1):
            ended.set()

    if not sys.stdin.isatty():
        loop.add_reader(sys.stdin, read_input)
    await ended.wait()


@contextmanager
def running_upstream(*, core: int) -> Iterator[str]:
    """Run the upstream as its own process, pinned to processor `core` if the system can; yield its base URL."""
    command = [sys.executable, "-m", "benchmarks.upstream", "0", str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the upstream has no pipes")
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise SystemExit("the upstream did not start")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    """Run alone: `python -m benchmarks.upstream [PORT [CORE]]`."""
    port, core = map(int, (*sys.argv[1:], *("0", "-1")[len(sys.argv) - 1 :]))
    pin(core)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(port))


if __name__ == "__main__":
    main()

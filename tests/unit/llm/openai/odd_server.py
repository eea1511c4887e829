"""A small real HTTP server whose behaviour a test chooses: it can ignore limits, refuse, report, hang or disconnect."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@dataclass(kw_only=True)
class Manners:
    """The behaviour of the server. By default it accepts every field and obeys none.

    `starves` is the least limit of tokens with which a model that reasons answers; `key` the only one that it takes.
    `members` stand in each chunk, `told` are headers of each answer.
    """

    limits: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    starves: int = 0
    key: str = ""
    members: dict[str, Any] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    stops: int = 0
    match_field: str = ""
    usage: bool = False
    output_lie: int = 0
    schema: str = ""
    reasoning_field: str = ""
    tools: str = ""
    systems: int = 9
    status: int = 200
    error: str = ""
    content_type: str = "text/event-stream"
    window: int = 0
    cut_prompt: int = 0
    hangs: bool = False
    breaks: bool = False
    whole: bool = False
    repeats: int = 1
    text: str = ""
    documents: dict[str, Any] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


@contextmanager
def odd_server(manners: Manners, *, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve while the context is open, over TLS with a `context`; yields the base URL."""

    class Handler(_Handler):
        chosen = manners

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http{'' if context is None else 's'}://127.0.0.1:{server.server_port}/v1"
    finally:
        manners.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    chosen: Manners

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._document()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "/chat/completions" not in self.path:
            self._document()
            return
        manners = self.chosen
        if not self._knows_key():
            return
        manners.seen.append(body)
        manners.headers.append({**self.headers, "path": self.path})
        if manners.hangs:
            manners.release.wait(180)
            return
        why = self._refusal(body)
        if why or manners.status != 200:
            self._send(400 if why else manners.status, json.dumps({"error": {"message": why or manners.error}}))
            return
        self._answer(body)

    def _refusal(self, body: dict[str, Any]) -> str:
        for name in self.chosen.refuses:
            if name in body or name == f"{body.get('response_format', {}).get('type')}":
                return f"Unsupported parameter: {name}"
        if sum(message["role"] == "system" for message in body["messages"]) > self.chosen.systems:
            return "System message must be at the beginning"
        if self.chosen.window and len(body["messages"][-1]["content"].split()) > self.chosen.window:
            return f"This model's maximum context length is {self.chosen.window} tokens."
        if max([body[name] for name in self.chosen.limits if name in body] or [10_000]) < self.chosen.starves:
            return (
                "Could not finish the message because max_tokens or model output limit was reached. "
                "Please try again with higher max_tokens."
            )
        return ""

    def _knows_key(self) -> bool:
        given = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        if not self.chosen.key or given == self.chosen.key:
            return True
        message = f"Incorrect API key provided: {given[:8]}***. You can find your API key in your account."
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}
        self._send(401, json.dumps({"error": error}))
        return False

    def _answer(self, body: dict[str, Any]) -> None:
        manners = self.chosen
        kind = body.get("response_format", {}).get("type", "")
        words = (
            ['{"word":', '"zebra"}']
            if kind and kind in manners.schema.split()
            else manners.text.split() or WORDS * manners.repeats
        )
        limit = min([body[name] for name in manners.limits if name in body] or [10_000])
        ending: dict[str, Any] = {"finish_reason": "stop" if limit >= len(words) else "length"}
        words = words[:limit]
        for stop in body.get("stop", [])[: manners.stops]:
            if stop in words:
                words = words[: words.index(stop)]
                ending = {"finish_reason": "stop"} | ({manners.match_field: stop} if manners.match_field else {})
        deltas: list[dict[str, Any]] = [{manners.reasoning_field: "hm"}] if manners.reasoning_field else []
        asked = {"free": True, "forced": "tool_choice" in body, "required": body.get("tool_choice") == "required"}
        if body.get("tools") and asked.get(manners.tools):
            deltas.append({"tool_calls": [{"index": 0, "function": {"name": "get_time", "arguments": "{}"}}]})
        deltas += [{"content": f"{word} "} for word in words]
        if manners.whole:
            message = {"content": " ".join(words)}
            self._send(200, json.dumps({"choices": [{"message": message, **ending}]}))
            return
        chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, **ending}]})
        if manners.usage and body.get("stream_options"):
            prompt = manners.cut_prompt or sum(len(one["content"].split()) for one in body["messages"])
            chunks.append(
                {
                    "choices": [],
                    "usage": {"prompt_tokens": prompt, "completion_tokens": manners.output_lie or len(words)},
                }
            )
        text = "".join(f": ping\n\ndata: {json.dumps(manners.members | chunk)}\n\n" for chunk in chunks)
        if manners.breaks:
            self._send(200, text, length=len(text) + 1000)
            self.close_connection = True
            return
        self._send(200, f"{text}data: [DONE]\n\n", manners.content_type)

    def _document(self) -> None:
        if not self._knows_key():
            return
        known = self.path in self.chosen.documents
        self._send(200 if known else 404, json.dumps(self.chosen.documents.get(self.path, {})))

    def _send(self, status: int, text: str, content_type: str = "application/json", length: int = 0) -> None:
        if self.chosen.breaks:
            content_type = "text/event-stream"
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length or len(content)))
        for name, told in self.chosen.told.items():
            self.send_header(name, told)
        self.end_headers()
        try:
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

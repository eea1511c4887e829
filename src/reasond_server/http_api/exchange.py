"""One HTTP request of the application: its address, its headers, its log record, and its answer, whole or as events."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import unquote

from pydantic_core import to_json

JSON_TYPE: Final = b"application/json"
NO_STORE: Final = (b"cache-control", b"no-store")
"""The header that keeps an answer out of every cache."""
TRANSPORT: Final = "http"
"""The name in metrics of the pages that are not JSON-RPC."""

_SCOPE_KEY: Final = "reasond.exchange"
PEER_URIS_KEY: Final = "reasond.peer_uris"
WHOLE_BODY_KEY: Final = "reasond.has_whole_body"
ADMISSION_KEY: Final = "reasond.admission"


def always_admit() -> bool:
    """Return True: for servers without a limit on connections."""
    return True


@dataclass(slots=True, kw_only=True)
class Exchange:
    """The facts about a request for the access log; it has no content.

    `peer_uris` are the URIs of the client's verified certificate; `has_whole_body` is True if the body had arrived when
    the request began; `admit_connection` notes that the caller has shown a valid token, and returns False if such
    callers have all connections; `route` is the path if it exists; `methods` are those that were called, in the
    protocol `rpc_system`; `code`, `reason` and `is_fault` are those of the last error of its calls.
    """

    call_id: str
    headers: RequestHeaders
    peer_uris: Sequence[str] = ()
    has_whole_body: bool = False
    admit_connection: Callable[[], bool] = always_admit
    route: str = ""
    methods: list[str] = field(default_factory=list)
    rpc_system: str = "jsonrpc"
    subject: str = ""
    code: int = 0
    reason: str = ""
    is_fault: bool = False
    status: int = 0


class RefusalError(Exception):
    """The request is rejected with `status` and one sentence, before anything was run."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI has them."""
        return [(name.encode("ascii"), text.encode("ascii")) for name, text in self.headers.items()]


class ClientGoneError(Exception):
    """The client closed the connection, so no answer can be sent."""


def attach(scope: Scope, exchange: Exchange) -> None:
    """Attach `exchange` to the request of `scope`."""
    scope[_SCOPE_KEY] = exchange


def find_exchange(scope: Scope) -> Exchange:
    """Return the exchange of the request of `scope`."""
    exchange: Exchange = scope[_SCOPE_KEY]
    return exchange


def find_host(scope: Scope) -> str:
    """Return the address of the client; empty on a Unix socket."""
    client = scope.get("client")
    return client[0] if client else ""


async def send_answer(
    send: Send,
    status: int,
    body: bytes = b"",
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    media_type: bytes = JSON_TYPE,
) -> None:
    """Send a complete answer; a body is JSON, by the name of `media_type`."""
    about_body = [(b"content-type", media_type), (b"content-length", b"%d" % len(body))] if body else []
    await send({"type": "http.response.start", "status": status, "headers": [*about_body, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_described(send: Send, answer: Mapping[str, Any], *more: tuple[bytes, bytes]) -> None:
    """Send an answer that is {status, headers, body}, such as an error that a `Dialect` describes."""
    await send_answer(send, answer["status"], answer["body"], headers=[NO_STORE, *answer["headers"], *more])


async def send_refusal(send: Send, refusal: RefusalError, call_id: str) -> None:
    """Send the error of a rejected request as JSON: `{"error": ..., "request_id": ...}`."""
    content: dict[str, Any] = {"error": refusal.message, "request_id": call_id}
    await send_answer(send, refusal.status, to_json(content), headers=refusal.raw_headers)


_JSON: Final = "application/json"
# A longer number exceeds every limit, and parsing thousands of digits would take time.
_MOST_DIGITS: Final = 20


class RequestHeaders:
    """Header values by name, in the order of the request; `raw` are ASGI headers, with names in lower case."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._raw = raw
        self._last = dict(raw)

    def have(self, names: frozenset[bytes]) -> bool:
        """Return whether there is any of `names`."""
        return not names.isdisjoint(self._last)

    def getlist(self, name: bytes) -> list[str]:
        """Return all values of a header; empty if it is absent."""
        # Most headers that are looked up are absent, and most requests repeat none.
        if name not in self._last:
            return []
        # HTTP headers are Latin-1: every byte is a character.
        if len(self._last) == len(self._raw):
            return [self._last[name].decode("latin-1")]
        return [value.decode("latin-1") for key, value in self._raw if key == name]

    def first(self, name: bytes) -> str | None:
        """Return the first value of a header; None if it is absent."""
        values = self.getlist(name)
        return values[0] if values else None

    def declared_bytes(self) -> int | None:
        """Return Content-Length in bytes; None if it is absent or not a number."""
        length = self.first(b"content-length")
        return int(length[:_MOST_DIGITS]) if length and length.isdecimal() else None

    def accepts_json(self, also: str = _JSON) -> bool:
        """Return whether there is exactly one Content-Type, and it is JSON, by this name or `also` by another one."""
        if self._last.get(b"content-type") == JSON_TYPE and len(self._last) == len(self._raw):
            return True
        types = self.getlist(b"content-type")
        return len(types) == 1 and types[0].partition(";")[0].strip().lower() in {_JSON, also}


Scope: TypeAlias = MutableMapping[str, Any]
"""The ASGI scope of a request or of a connection."""

Message: TypeAlias = MutableMapping[str, Any]
"""One ASGI event; `type` is its kind."""

Receive: TypeAlias = Callable[[], Awaitable[Message]]
"""Waits for the next event from the client."""

Send: TypeAlias = Callable[[Message], Awaitable[None]]
"""Sends an event to the client."""

ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An application: serves one request."""


STREAM_HEADERS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    (b"cache-control", b"no-store"),
)
"""Headers of a stream; the second prevents nginx from buffering events."""


def wants_stream(accept: Sequence[str]) -> bool:
    """Return whether the values of the header Accept name the type of server-sent events."""
    if not accept:
        return False
    for choice in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in choice.split(";"))
        if media_type == "text/event-stream" and not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters):
            return True
    return False


def frame_event(data: bytes, *, name: str = "", place: str = "") -> bytes:
    """Return one event; `data` is one line, `name` its kind, and `place` the id by which a client resumes after it."""
    id_line = f"id: {place}\n" if place else ""
    name_line = f"event: {name}\n" if name else ""
    return f"{id_line}{name_line}data: ".encode() + data + b"\n\n"


async def send_stream(send: Send, events: AsyncGenerator[bytes, None]) -> None:
    """Send a whole answer that consists of framed events, each as it comes."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    async with aclosing(events):
        async for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


TargetT = TypeVar("TargetT")


class PathRoutes(Generic[TargetT]):
    """Finds what an address stands for; `hint` is the advice for requests of unknown paths."""

    def __init__(self, routes: Iterable[tuple[str, str, TargetT]], *, hint: str) -> None:
        # What has a verb at its end goes before a field that could hold it.
        ordered = sorted(routes, key=lambda route: ":" not in route[1])
        self._routes = [(_compile(template), verb, template, target) for verb, template, target in ordered]
        self._hint = hint

    def find(self, scope: Scope, exchange: Exchange) -> tuple[TargetT, dict[str, str]]:
        """Return what the address of a request stands for, and the fields in its path; its template is its route.

        Raises:
            RefusalError: there is nothing at the path, or it takes other methods.
        """
        # Undecoded: a field may hold a slash.
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        found = [
            (match, verb, template, target)
            for pattern, verb, template, target in self._routes
            if (match := pattern.fullmatch(path)) is not None
        ]
        if not found:
            raise RefusalError(404, f"there is nothing at this address; {self._hint}")
        exchange.route = found[0][2]
        for match, verb, template, target in found:
            if verb == scope["method"]:
                exchange.route = template
                return target, {name: unquote(text) for name, text in match.groupdict().items()}
        allowed = ", ".join(dict.fromkeys(verb for _, verb, *_ in found))
        raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})


def _compile(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))

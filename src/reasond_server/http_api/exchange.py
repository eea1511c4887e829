"""One HTTP request and its answer: what is known of it, how it is refused, how answers are sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.http_api.asgi import Scope, Send
    from reasond_server.http_api.headers import RequestHeaders

JSON_TYPE: Final = b"application/json"
TRANSPORT: Final = "http"
"""What metrics call the pages that are no JSON-RPC."""

_SCOPE_KEY: Final = "reasond.exchange"
PEER_URIS_KEY: Final = "reasond.peer_uris"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What is known of a request; the access log is written from it, so it holds no content.

    `peer_uris` are those that the client's verified certificate names; `route` is the path where something is served;
    `methods` are JSON-RPC methods, `code`, `reason` and `is_fault` those of the last error among its calls.
    """

    request_id: str
    headers: RequestHeaders
    peer_uris: Sequence[str] = ()
    route: str = ""
    methods: list[str] = field(default_factory=list)
    subject: str = ""
    code: int = 0
    reason: str = ""
    is_fault: bool = False
    status: int = 0


class RefusalError(Exception):
    """The request ends here with `status` and one sentence, before anything was run."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class ClientGoneError(Exception):
    """The client closed the connection; nobody is left to answer."""


def attach(scope: Scope, exchange: Exchange) -> None:
    """Make `exchange` the one of the request that `scope` describes."""
    scope[_SCOPE_KEY] = exchange


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of the request that `scope` describes."""
    exchange: Exchange = scope[_SCOPE_KEY]
    return exchange


async def send_answer(
    send: Send, status: int, body: bytes = b"", *, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole answer; a body is JSON."""
    about_body = [(b"content-type", JSON_TYPE), (b"content-length", b"%d" % len(body))] if body else []
    await send({"type": "http.response.start", "status": status, "headers": [*about_body, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refusal: RefusalError, request_id: str) -> None:
    """Send what was refused, as JSON: `{"error": ..., "request_id": ...}`."""
    content: dict[str, Any] = {"error": refusal.message, "request_id": request_id}
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in refusal.headers.items()]
    await send_answer(send, refusal.status, to_json(content), headers=headers)

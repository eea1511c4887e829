"""The outermost layer: adds a request id, safe headers, an answer to every failure, and one line in the access log.

Also which pages of other origins may call from a browser, as the operator names them (CORS, WHATWG Fetch, section 3.3).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from reasond_server.base.clock import CALL_ID_KEY, choose_call_id
from reasond_server.errors.base import INTERNAL_MESSAGE, show
from reasond_server.http_api.exchange import (
    ADMISSION_KEY,
    PEER_URIS_KEY,
    WHOLE_BODY_KEY,
    ClientGoneError,
    Exchange,
    RefusalError,
    RequestHeaders,
    always_admit,
    attach,
    find_exchange,
    send_answer,
    send_refusal,
)
from reasond_server.telemetry.logs import emit_line
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.propagation import TRACE_NAMES, read_trace_bytes
from reasond_server.telemetry.scope import Arrival, enter
from reasond_server.telemetry.scope import Scope as Work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from reasond_server.http_api.exchange import ASGIApp, Message, Receive, Scope, Send
    from reasond_server.telemetry.spans import OpenSpan, Tracing


QUIET_PATHS: Final = frozenset({"/healthz", "/metrics", "/readyz", "/api/v1/auth/check"})
"""Probes and scrapes come every few seconds, and a check of a token before each call; they are logged at DEBUG."""

_CLIENT_GONE: Final = 499
_BAD_REQUEST: Final = 400
_SERVER_ERROR: Final = 500
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_ID_NAME: Final = CALL_ID_KEY.encode("ascii")
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_HINT: Final = "JSON-RPC is at /api/v1/jsonrpc"
_log = logging.getLogger("reasond.http")


class Addresses:
    """The routes: `pages` for GET and HEAD, `endpoints` for POST, by their exact paths.

    `subtrees` serve their path, such as `/v1/`, and all below it, with any method. `hint` is the advice for requests of
    unknown paths.
    """

    def __init__(
        self,
        *,
        pages: Mapping[str, ASGIApp],
        endpoints: Mapping[str, ASGIApp],
        subtrees: Mapping[str, ASGIApp] | None = None,
        hint: str = _HINT,
    ) -> None:
        self._hint = hint
        self._subtrees = subtrees or {}
        self._served: dict[str, tuple[ASGIApp, Sequence[str]]] = {
            **{path: (page, ("GET", "HEAD")) for path, page in pages.items()},
            **{path: (endpoint, ("POST",)) for path, endpoint in endpoints.items()},
        }

    def find(self, scope: Scope) -> ASGIApp:
        """Return the application for the request; its path is its route.

        Raises:
            RefusalError: 404 for an unknown path, 405 if the path takes other methods.
        """
        path = scope["path"]
        found = self._served.get(path)
        if found is None:
            for root, subtree in self._subtrees.items():
                if f"{path}/".startswith(root):
                    return subtree
            raise RefusalError(404, f"there is nothing at this address; {self._hint}")
        find_exchange(scope).route = path
        app, methods = found
        if scope["method"] not in methods:
            allowed = ", ".join(methods)
            raise RefusalError(405, f"this address takes {allowed} only", headers={"allow": allowed})
        return app


class RequestMiddleware:
    """Serves each request with the result of `find`. `new_request_id` makes an id if the client sent no valid one.

    `in_flight` is the number of requests that are being served.
    """

    def __init__(
        self,
        find: Callable[[Scope], ASGIApp],
        *,
        new_call_id: Callable[[], str],
        monotonic: Callable[[], float] = time.monotonic,
        observer: Observer = UNOBSERVED,
        tracing: Tracing | None = None,
    ) -> None:
        self.in_flight = 0
        self._observer = observer
        self._find = find
        self._new_call_id = new_call_id
        self._monotonic = monotonic
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = self._exchange(scope)
        attach(scope, exchange)
        trace = read_trace_bytes(scope["headers"]) if exchange.headers.have(TRACE_NAMES) else None
        enter(work := Work(exchange.call_id, trace))
        arrival = None if self._tracing is None else _begin_arrival(self._tracing, scope, work)
        started = self._monotonic()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                call_id = (_ID_NAME, exchange.call_id.encode("ascii"))
                message = {**message, "headers": [*message.get("headers", ()), call_id, _NO_SNIFFING]}
            await send(message)

        self.in_flight += 1
        try:
            await self._serve_within(scope, receive, answer, exchange)
        finally:
            self.in_flight -= 1
            self._observer.http_answered(exchange.route or scope["path"], exchange.status)
            span = None if arrival is None else arrival.finish()
            _log_access(scope, exchange, self._monotonic() - started)
            if span is not None:
                _end(span, scope, exchange, work)

    async def _serve_within(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        """Serve the request; convert an error into an answer if no answer has begun."""
        try:
            await self._find(scope)(scope, receive, send)
        except ClientGoneError:
            exchange.status = _CLIENT_GONE
        except RefusalError as refusal:
            await send_refusal(send, refusal, exchange.call_id)
        except asyncio.CancelledError:
            if not exchange.status:
                going = RefusalError(503, "the server is shutting down", headers={"connection": "close"})
                await send_refusal(send, going, exchange.call_id)
            raise
        except Exception:
            _log.exception("%s failed", show(scope["path"]), extra={"call_id": exchange.call_id})
            if exchange.status:
                raise
            await send_refusal(send, RefusalError(500, INTERNAL_MESSAGE), exchange.call_id)

    def _exchange(self, scope: Scope) -> Exchange:
        headers = RequestHeaders(scope["headers"])
        given = headers.getlist(_ID_NAME)
        call_id = choose_call_id(given, new_call_id=self._new_call_id) if given else self._new_call_id()
        return Exchange(
            call_id=call_id,
            headers=headers,
            peer_uris=scope.get(PEER_URIS_KEY, ()),
            has_whole_body=WHOLE_BODY_KEY in scope,
            admit_connection=scope.get(ADMISSION_KEY, always_admit),
        )


def _begin_arrival(tracing: Tracing, scope: Scope, work: Work) -> Arrival | None:
    """Return the `Arrival` that begins the span of a request; None for probes."""
    if scope["path"] in QUIET_PATHS:
        return None
    method = _name_method(scope)
    attributes = {"http.request.method": method, "reasond.request.id": work.call_id}
    name = "HTTP" if method == "_OTHER" else method
    return Arrival(tracing=tracing, scope=work, name=name, attributes=attributes)


def _end(span: OpenSpan, scope: Scope, exchange: Exchange, work: Work) -> None:
    """End the span of a request with its outcome; names that callers invent do not become its name."""
    attributes: dict[str, Any] = {"http.response.status_code": exchange.status}
    if exchange.route:
        attributes["http.route"] = exchange.route
        span.rename(f"{_name_method(scope)} {exchange.route}")
    if exchange.methods:
        attributes |= {"rpc.system.name": exchange.rpc_system, "rpc.method": ",".join(exchange.methods)}
    if work.execution_id:
        attributes["reasond.execution.id"] = work.execution_id
    span.set(attributes)
    if exchange.reason or exchange.status >= _BAD_REQUEST:
        is_fault = exchange.status >= _SERVER_ERROR or exchange.is_fault
        span.fail(exchange.reason or str(exchange.status), is_fault=is_fault)
    span.end()


def _name_method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "_OTHER"


def _log_access(scope: Scope, exchange: Exchange, duration_s: float) -> None:
    """Write the access log line: caller, method and outcome, but no content."""
    level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
    fields = {
        "http_method": scope["method"],
        "method": ",".join(exchange.methods),
        "status": exchange.status,
        "code": exchange.code,
        "reason": exchange.reason,
        "duration_ms": round(duration_s * 1000, 3),
        "call_id": exchange.call_id,
        "subject": exchange.subject,
    }
    path = fields["method"] or show(scope["path"])
    emit_line(_log, level, "%s %s %d", scope["method"], path, exchange.status, fields=fields)


_METHODS_OF_PAGES: Final = b"GET, POST, PUT, DELETE"
_KEPT_S: Final = 600
_VARY: Final = (b"vary", b"origin")


class CrossOriginApp:
    """Lets pages of `origins` read the answers of `app`, and send it what browsers ask for first.

    Cookies are neither read nor allowed: a page sends its token in a header of its own.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; that of another origin is served as any other, and its browser keeps the answer."""
        headers = RequestHeaders(scope["headers"])
        (origin, *others) = [value for name, value in scope["headers"] if name == b"origin"] or [b""]
        if others or origin not in self._origins:
            await self._app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", origin), _VARY]
        if scope["method"] == "OPTIONS" and headers.getlist(b"access-control-request-method"):
            asked = ", ".join(headers.getlist(b"access-control-request-headers")).encode("latin-1")
            allowed += [
                (b"access-control-allow-methods", _METHODS_OF_PAGES),
                (b"access-control-max-age", b"%d" % _KEPT_S),
                *([(b"access-control-allow-headers", asked)] if asked else []),
            ]
            await send_answer(send, 204, headers=allowed)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = message.get("headers", ())
                # All that are sent, such as the id of the request and the time to retry.
                shown = b", ".join(sorted({bytes(name) for name, _ in own}))
                message = {**message, "headers": [*own, *allowed, (b"access-control-expose-headers", shown)]}
            await send(message)

        await self._app(scope, receive, answer)

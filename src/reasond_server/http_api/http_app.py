"""The ASGI application: routes requests, serves JSON-RPC, and exchanges secrets of agents for tokens (seed 001).

The JSON-RPC endpoint checks media types, bounds bodies, sends answers or server-sent events. A stream has the same
events as that of its RPC and is resumed by Last-Event-ID. Each event is `id: <id of the log>:<sequence>` (logged events
only), `event:` its kind and one line of JSON as `data:`. The last one is `completed`, or `error` with a JSON-RPC error
object; a failed run sends both. Source: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from reasond_server.access import audit
from reasond_server.access.agent_secrets import MAX_SECRET_CHARACTERS, AgentTokens
from reasond_server.access.permissions import Operation
from reasond_server.errors.access import AccessError, IssuerUnavailableError, TokenInvalidError
from reasond_server.errors.base import DEFAULT_RETRY_S, ReasondError
from reasond_server.errors.limits import LimitError, OverloadedError
from reasond_server.errors.request import InvalidJsonRpcError, ParseError
from reasond_server.http_api.body_reader import BodyReader, read_call_body, require_plain
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import (
    NO_STORE,
    TRANSPORT,
    RefusalError,
    find_exchange,
    find_host,
    frame_event,
    send_answer,
    send_stream,
    wants_stream,
)
from reasond_server.http_api.http_calls import Call, Calls, Gate, Methods, convert_failure
from reasond_server.http_api.json_mapping import build_event_json, is_logged, name_event
from reasond_server.http_api.jsonrpc import MAX_BATCH, RpcParams, RpcRequest, dispatch, parse, read_request, unread
from reasond_server.http_api.page_gate import CHECK_PATH, METRICS_PATH, CheckPage, MetricsPage
from reasond_server.http_api.request_middleware import Addresses, RequestMiddleware
from reasond_server.http_api.rest_endpoint import OPENAPI_PATH, read_description
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from reasond_server.access.peers import Peers
    from reasond_server.agents.directory import CardView
    from reasond_server.http_api.exchange import ASGIApp, Exchange, Receive, Scope, Send
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.types import Principal, StreamEvent

_TURNED_AWAY: Final = (NO_STORE, (b"www-authenticate", b"Bearer"), (b"connection", b"close"))
_UNAVAILABLE: Final = (NO_STORE, (b"retry-after", b"1"), (b"connection", b"close"))


@value
class JsonRpcEndpoint:
    """Answers POST: 200 with a JSON-RPC answer, 204 if there is none, or a stream if the client accepts one.

    When a client leaves, its calls are cancelled. If the token in the header is invalid, a large body is not read and
    the answer is 401.
    """

    methods: Methods
    gate: Gate
    body_reader: BodyReader
    max_batch: int
    observer: Observer = UNOBSERVED

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        calls = Calls(self.methods, self.gate, exchange, self.observer)
        try:
            body = await read_call_body(
                exchange, receive, gate=self.gate, body_reader=self.body_reader, host=find_host(scope)
            )
        except (AccessError, OverloadedError) as error:
            # The validity of the token is unknown after an outage: the client should retry with it.
            is_outage = isinstance(error, IssuerUnavailableError | OverloadedError)
            status, about = (503, _UNAVAILABLE) if is_outage else (401, _TURNED_AWAY)
            await send_answer(send, status, unread(error, calls), headers=about)
            return
        disconnect = find_disconnect(scope)
        try:
            request = self._find_streamable(exchange, body)
            if request is not None:
                last_event_id = exchange.headers.first(b"last-event-id")
                events = frames(calls.open(request.method), request.params, last_event_id)
                await run_unless_disconnected(send_stream(send, events), disconnect)
                return
            answer = await run_unless_disconnected(dispatch(body, calls, max_batch=self.max_batch), disconnect)
        finally:
            self.body_reader.release(body)
        await send_answer(send, 204 if answer is None else 200, answer or b"", headers=[NO_STORE])

    def _find_streamable(self, exchange: Exchange, body: bytearray) -> RpcRequest | None:
        """Return the call of `body` if the client accepts a stream and the method can stream; else None."""
        if not wants_stream(exchange.headers.getlist(b"accept")):
            return None
        try:
            request = read_request(parse(body))
        except (ParseError, InvalidJsonRpcError):
            # `dispatch` parses the same body again and answers with the error.
            return None
        method = self.methods.get(request.method)
        return request if method is not None and method.streaming is not None and not request.is_notification else None


async def frames(call: Call, params: RpcParams, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the framed events of `call`; with `last_event_id`, those after it. Closing it ends the subscription."""
    try:
        async with aclosing(call.events(params, last_event_id)) as events:
            async for event in events:
                yield frame(event, id_name=call.id_name)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        yield _frame("error", await call.explain(convert_failure(error)))


def frame(event: StreamEvent, *, id_name: str = "execution_id") -> bytes:
    """Return one event as server-sent event; `id_name` is the key of its log's id."""
    place = f"{event.execution_id}:{event.sequence}" if is_logged(event) else ""
    return _frame(name_event(event), build_event_json(event, id_name=id_name), place=place)


def _frame(name: str, data: Mapping[str, Any], *, place: str = "") -> bytes:
    return frame_event(to_json(data, inf_nan_mode="null"), name=name, place=place)


TOKEN_PATH: Final = "/api/v1/auth/token"  # noqa: S105 - a path, not a password
_MAX_AGENT_ID_CHARACTERS = 256
_OPERATION: Final = Operation("IssueToken")
_HEADERS: Final = ((b"cache-control", b"no-store"), (b"pragma", b"no-cache"))


class TokenBody(BaseModel):
    """The request body of an agent."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)

    agent_id: str = Field(min_length=1, max_length=_MAX_AGENT_ID_CHARACTERS)
    secret: str = Field(min_length=1, max_length=MAX_SECRET_CHARACTERS)


class TokenEndpoint:
    """Answers 200 with `access_token`, `token_type` and `expires_in`; 400, 401, 415, 429 or 503 with an `error`."""

    def __init__(self, *, issuer: AgentTokens, body_reader: BodyReader, observer: Observer = UNOBSERVED) -> None:
        self._issuer = issuer
        self._observer = observer
        self._body_reader = body_reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = find_exchange(scope)
        exchange.methods.append("auth.token")
        if not exchange.headers.accepts_json():
            raise RefusalError(415, "send agent_id and secret as 'Content-Type: application/json'")
        require_plain(exchange.headers)
        host = find_host(scope)
        declared, has_arrived = exchange.headers.declared_bytes(), exchange.has_whole_body
        body = await self._body_reader.read(declared, receive, has_arrived=has_arrived, host=host)
        try:
            wanted = _read_token_body(body)
        finally:
            self._body_reader.release(body)
        try:
            issued = await self._issuer.issue(agent_id=wanted.agent_id, secret=wanted.secret, address=host)
        except (TokenInvalidError, LimitError) as error:
            exchange.reason = error.reason
            audit.log_denied(_OPERATION, error, call_id=exchange.call_id)
            self._observer.call_failed(TRANSPORT, error.reason)
            raise _refuse_token(error) from None
        exchange.subject = issued.principal.subject
        audit.log_allowed(_OPERATION, principal=issued.principal, call_id=exchange.call_id)
        answer = {"access_token": issued.token, "token_type": "Bearer", "expires_in": issued.lifetime_s}
        await send_answer(send, 200, to_json(answer), headers=_HEADERS)


async def refuse_agents(*_: object) -> NoReturn:
    """Answer in place of a `TokenEndpoint` if no agent has a secret.

    Raises:
        RefusalError: 404, always.
    """
    raise RefusalError(
        404,
        "no agent has a secret on this server; add a table [auth.agents.NAME] with a secret_hash (reasond secret-hash "
        "makes one), or send a token of your own, such as the one that reasond serve --dev prints",
    )


def _read_token_body(body: bytearray) -> TokenBody:
    """Parse the body of the agent; errors do not quote it."""
    try:
        found: Any = json.loads(body)
        return TokenBody.model_validate(found)
    except (ValidationError, ValueError, RecursionError):
        message = (
            f"send a JSON object with agent_id (1-{_MAX_AGENT_ID_CHARACTERS} characters) and secret "
            f"(1-{MAX_SECRET_CHARACTERS} characters), and nothing else"
        )
        raise RefusalError(400, message) from None


def _refuse_token(error: ReasondError) -> RefusalError:
    """Return the refusal for an agent that gets no token."""
    if isinstance(error, TokenInvalidError):
        return RefusalError(401, error.full_message, headers={"www-authenticate": "Bearer"})
    headers = {"retry-after": str(math.ceil(error.retry_after_s or DEFAULT_RETRY_S))}
    return RefusalError(429 if error.reason == "RATE_LIMITED" else 503, error.full_message, headers=headers)


JSONRPC_PATH: Final = "/api/v1/jsonrpc"
CARD_PATH: Final = "/.well-known/agent-card.json"
PATHS: Final = (JSONRPC_PATH, OPENAPI_PATH, CARD_PATH, "/healthz", "/readyz", METRICS_PATH, TOKEN_PATH, CHECK_PATH)
"""All paths that may be served."""

_HELD_BODIES: Final = 16
_STRANGER_BODIES: Final = 4
_TOKEN_BODIES: Final = 128
_TOKEN_BODY_BYTES: Final = 8 * 1024


@value
class HttpLimits:
    """Limits of requests.

    All bodies in progress together hold at most 16 times `max_body_bytes`, those of callers that have not shown a valid
    token 4 times.
    """

    max_body_bytes: int = 8 * 1024 * 1024
    max_batch: int = MAX_BATCH
    max_requests: int = 1000
    body_timeout_s: float = 30.0


Interface: TypeAlias = "Callable[[Gate, BodyReader, Observer], ASGIApp]"
"""Makes the application of another protocol from the gate, the intake and the observer of the listener."""


class HttpApp(RequestMiddleware):
    """The application.

    `methods` are those of all services; `card` returns the public card of the server. `authenticate` converts a token
    into a principal, and `require` rejects one that lacks the permission for an operation. Health is neither limited
    nor authenticated. `metrics` are served if they are given. `interfaces` are further protocols by the root of their
    paths; they share the gate and the limits of bodies. `further_pages` are pages by their paths.
    """

    def __init__(
        self,
        *,
        methods: Methods,
        card: Callable[[], CardView],
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, Operation], None],
        is_ready: Callable[[], bool],
        new_call_id: Callable[[], str],
        limits: HttpLimits,
        agent_tokens: AgentTokens | None = None,
        peers: Peers | None = None,
        observer: Observer = UNOBSERVED,
        metrics: MetricsPage | None = None,
        tracing: Tracing | None = None,
        interfaces: Mapping[str, Interface] | None = None,
        further_pages: Mapping[str, ASGIApp] | None = None,
    ) -> None:
        gate = Gate(authenticate=authenticate, require=require, peers=peers)
        body_reader = BodyReader(
            max_body_bytes=limits.max_body_bytes,
            max_held_bytes=_HELD_BODIES * limits.max_body_bytes,
            max_stranger_bytes=_STRANGER_BODIES * limits.max_body_bytes,
            max_requests=limits.max_requests,
            body_timeout_s=limits.body_timeout_s,
        )
        rpc = JsonRpcEndpoint(
            methods=methods, gate=gate, body_reader=body_reader, max_batch=limits.max_batch, observer=observer
        )
        pages: dict[str, ASGIApp] = {
            CARD_PATH: DocumentPage(partial(_read_card, card)),
            OPENAPI_PATH: DocumentPage(read_description),
            "/healthz": HealthPage(),
            "/readyz": ReadinessPage(is_ready),
            **({} if metrics is None else {METRICS_PATH: metrics}),
            **(further_pages or {}),
        }
        endpoints: dict[str, ASGIApp] = {JSONRPC_PATH: rpc, TOKEN_PATH: refuse_agents}
        if agent_tokens is not None:
            endpoints[TOKEN_PATH] = TokenEndpoint(
                issuer=agent_tokens,
                body_reader=BodyReader(
                    max_body_bytes=_TOKEN_BODY_BYTES,
                    max_held_bytes=2 * _TOKEN_BODIES * _TOKEN_BODY_BYTES,
                    max_stranger_bytes=_TOKEN_BODIES * _TOKEN_BODY_BYTES,
                    max_requests=_TOKEN_BODIES,
                    body_timeout_s=limits.body_timeout_s,
                ),
                observer=observer,
            )
        check = CheckPage(authenticate=authenticate, peers=peers, observer=observer)
        doors: dict[str, ASGIApp] = {f"{CHECK_PATH}/": check}
        doors |= {root: build(gate, body_reader, observer) for root, build in (interfaces or {}).items()}
        addresses = Addresses(pages=pages, endpoints=endpoints, subtrees=doors)
        super().__init__(addresses.find, new_call_id=new_call_id, observer=observer, tracing=tracing)


_DOCUMENT_AGE_S: Final = 300


def _read_card(card: Callable[[], CardView]) -> tuple[str, str]:
    view = card()
    return view.card_json, view.etag


class DocumentPage:
    """A document of JSON that needs no token, with a strong ETag; `read` returns its present text and that ETag."""

    def __init__(self, read: Callable[[], tuple[str, str]]) -> None:
        self._read = read
        # What it tells changes only with the configuration.
        self._since = (b"last-modified", formatdate(usegmt=True).encode("ascii"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the document, or 304 if the client has it."""
        del receive
        text, digest = self._read()
        etag = f'"{digest}"'
        age = (b"cache-control", b"public, max-age=%d" % _DOCUMENT_AGE_S)
        headers = [(b"etag", etag.encode("ascii")), age, self._since]
        if is_known(find_exchange(scope).headers.getlist(b"if-none-match"), etag):
            await send_answer(send, 304, headers=headers)
        else:
            await send_answer(send, 200, text.encode(), headers=headers)


class HealthPage:
    """Answers 200 while the event loop runs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send 200."""
        del scope, receive
        await send_answer(send, 200, b'{"status":"ok"}', headers=[NO_STORE])


class ReadinessPage:
    """Answers 200 while `is_ready()` is true, else 503, so that load balancers send no new requests."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send whether new work is accepted."""
        del scope, receive
        if self._is_ready():
            await send_answer(send, 200, b'{"status":"ready"}', headers=[NO_STORE])
        else:
            await send_answer(send, 503, b'{"status":"not ready"}', headers=[NO_STORE])


def is_known(if_none_match: list[str], etag: str) -> bool:
    """Return whether the client's copy is current (RFC 9110, section 13.1.2: weak comparison)."""
    tags = {tag.strip().removeprefix("W/") for value in if_none_match for tag in value.split(",")}
    return bool(tags & {"*", etag})

"""The ASGI application: its routes, with the agent card, health and readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from reasond_server.http_api.body_reader import BodyReader
from reasond_server.http_api.endpoint import JsonRpcEndpoint
from reasond_server.http_api.exchange import NO_STORE, find_exchange, send_answer
from reasond_server.http_api.http_calls import Gate
from reasond_server.http_api.jsonrpc import MAX_BATCH
from reasond_server.http_api.metrics_page import METRICS_PATH
from reasond_server.http_api.page_gate import CHECK_PATH, CheckPage
from reasond_server.http_api.request_middleware import Addresses, RequestMiddleware
from reasond_server.http_api.token_endpoint import TOKEN_PATH, TokenEndpoint, refuse_agents
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reasond_server.access.agent_secrets import AgentTokens
    from reasond_server.access.peers import Peers
    from reasond_server.access.permissions import Operation
    from reasond_server.agents.agent_service import CardView
    from reasond_server.http_api.exchange import ASGIApp, Receive, Scope, Send
    from reasond_server.http_api.http_calls import Methods
    from reasond_server.http_api.metrics_page import MetricsPage
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.types import Principal


JSONRPC_PATH: Final = "/api/v1/jsonrpc"
CARD_PATH: Final = "/.well-known/agent-card.json"
PATHS: Final = (JSONRPC_PATH, CARD_PATH, "/healthz", "/readyz", METRICS_PATH, TOKEN_PATH, CHECK_PATH)
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


Interface: TypeAlias = "Callable[[Gate, BodyReader, CallObserver], ASGIApp]"
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
        observer: CallObserver = UNOBSERVED,
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
            CARD_PATH: AgentCardPage(card),
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
        doors = {root: build(gate, body_reader, observer) for root, build in (interfaces or {}).items()}
        doors[f"{CHECK_PATH}/"] = CheckPage(authenticate=authenticate, peers=peers, observer=observer)
        addresses = Addresses(pages=pages, endpoints=endpoints, subtrees=doors)
        super().__init__(addresses.find, new_call_id=new_call_id, observer=observer, tracing=tracing)


_CARD_AGE_S: Final = 300


class AgentCardPage:
    """This server's A2A card, with a strong ETag over its bytes; `card` returns the current one."""

    def __init__(self, card: Callable[[], CardView]) -> None:
        self._card = card

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the card, or 304 if the client has it."""
        del receive
        view = self._card()
        etag = f'"{view.etag}"'
        headers = [(b"etag", etag.encode("ascii")), (b"cache-control", b"public, max-age=%d" % _CARD_AGE_S)]
        if is_known(find_exchange(scope).headers.getlist(b"if-none-match"), etag):
            await send_answer(send, 304, headers=headers)
        else:
            await send_answer(send, 200, view.card_json.encode(), headers=headers)


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

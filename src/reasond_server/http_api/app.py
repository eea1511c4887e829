"""The ASGI application: what is served at which address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.http_api.calls import Gate
from reasond_server.http_api.endpoint import JsonRpcEndpoint
from reasond_server.http_api.intake import Intake
from reasond_server.http_api.jsonrpc import MAX_BATCH
from reasond_server.http_api.metrics_page import METRICS_PATH
from reasond_server.http_api.pages import Addresses, AgentCardPage, HealthPage, ReadinessPage
from reasond_server.http_api.reception import Reception
from reasond_server.http_api.token_endpoint import TOKEN_PATH, TokenEndpoint
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.access.agent_secrets import AgentTokens
    from reasond_server.access.peers import Peers
    from reasond_server.access.permissions import Operation
    from reasond_server.agents.service import CardView
    from reasond_server.http_api.asgi import ASGIApp
    from reasond_server.http_api.methods import Methods
    from reasond_server.http_api.metrics_page import MetricsPage
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.types import Principal

JSONRPC_PATH: Final = "/api/v1/jsonrpc"
CARD_PATH: Final = "/.well-known/agent-card.json"
PATHS: Final = (JSONRPC_PATH, CARD_PATH, "/healthz", "/readyz", METRICS_PATH, TOKEN_PATH)
"""All that may be served."""

_HELD_BODIES: Final = 16
_TOKEN_BODY_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What is accepted. Bodies in progress together hold at most 16 times `max_body_bytes`."""

    max_body_bytes: int = 8 * 1024 * 1024
    max_batch: int = MAX_BATCH
    max_requests: int = 1000
    body_timeout_s: float = 30.0


class HttpApp(Reception):
    """The application.

    `methods` are those of all services, `card` returns what is public about the server. `authenticate` turns a token
    into a principal and `require` refuses one that lacks the permission for an operation. Health is neither limited
    nor authenticated. `metrics` are served where they are given.
    """

    def __init__(
        self,
        *,
        methods: Methods,
        card: Callable[[], CardView],
        authenticate: Callable[[str], Awaitable[Principal]],
        require: Callable[[Principal, Operation], None],
        is_ready: Callable[[], bool],
        new_request_id: Callable[[], str],
        limits: HttpLimits,
        agent_tokens: AgentTokens | None = None,
        peers: Peers | None = None,
        observer: CallObserver = UNOBSERVED,
        metrics: MetricsPage | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        rpc = JsonRpcEndpoint(
            methods=methods,
            gate=Gate(authenticate=authenticate, require=require, peers=peers),
            intake=Intake(
                max_body_bytes=limits.max_body_bytes,
                max_held_bytes=_HELD_BODIES * limits.max_body_bytes,
                max_requests=limits.max_requests,
                body_timeout_s=limits.body_timeout_s,
            ),
            max_batch=limits.max_batch,
            observer=observer,
        )
        pages: dict[str, ASGIApp] = {
            CARD_PATH: AgentCardPage(card),
            "/healthz": HealthPage(),
            "/readyz": ReadinessPage(is_ready),
            **({} if metrics is None else {METRICS_PATH: metrics}),
        }
        endpoints: dict[str, ASGIApp] = {JSONRPC_PATH: rpc}
        if agent_tokens is not None:
            endpoints[TOKEN_PATH] = TokenEndpoint(
                issuer=agent_tokens,
                intake=Intake(
                    max_body_bytes=_TOKEN_BODY_BYTES,
                    max_held_bytes=_HELD_BODIES * _TOKEN_BODY_BYTES,
                    max_requests=_HELD_BODIES,
                    body_timeout_s=limits.body_timeout_s,
                ),
                observer=observer,
            )
        addresses = Addresses(pages=pages, endpoints=endpoints)
        super().__init__(addresses.find, new_request_id=new_request_id, observer=observer, tracing=tracing)

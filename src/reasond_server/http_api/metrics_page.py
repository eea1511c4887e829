"""The metrics for Prometheus: on the main listener for permitted tokens, or on a listener of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.access import audit
from reasond_server.access.permissions import Operation, require_metrics
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.errors import AccessError, IssuerUnavailableError
from reasond_server.http_api.exchange import TRANSPORT, RefusalError, exchange_of
from reasond_server.http_api.reception import Addresses, Reception
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.access.peers import Peers
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.telemetry.exposition import Scrape
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import Principal

METRICS_PATH: Final = "/metrics"
_OPERATION: Final = Operation("metrics")
_HINT: Final = "Send 'Authorization: Bearer <token>'"
_NO_STORE: Final = (b"cache-control", b"no-store")


class ReaderGate:
    """Admits callers whose token, or else client certificate, has the permission metrics:read."""

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        peers: Peers | None = None,
        observer: CallObserver = UNOBSERVED,
    ) -> None:
        self._authenticate = authenticate
        self._observer = observer
        self._peers = peers

    async def check(self, exchange: Exchange) -> None:
        """Return if the request may read.

        Raises:
            RefusalError: 401 without a valid token, 403 without the permission, 503 if the token cannot be
                verified now.
        """
        principal: Principal | None = None
        try:
            headers = exchange.headers.getlist(b"authorization")
            if headers:
                principal = await self._authenticate(parse_bearer_token(headers))
            elif self._peers is not None:
                principal = self._peers.recognise(exchange.peer_uris)
            if principal is None:
                raise build_missing_token_error(_HINT)
            exchange.subject = principal.subject
            require_metrics(principal)
        except AccessError as error:
            audit.log_denied(_OPERATION, error, principal=principal, call_id=exchange.call_id)
            self._observer.call_failed(TRANSPORT, error.reason)
            exchange.reason = error.reason
            if isinstance(error, IssuerUnavailableError):
                raise RefusalError(503, error.message, headers={"retry-after": "1"}) from None
            challenge = {} if principal else {"www-authenticate": "Bearer"}
            raise RefusalError(403 if principal else 401, error.message, headers=challenge) from None


class MetricsPage:
    """Sends the output of `scrape` for the values of the header Accept; without a `gate`, to every caller."""

    def __init__(self, scrape: Callable[[Sequence[str]], Awaitable[Scrape]], *, gate: ReaderGate | None = None) -> None:
        self._scrape = scrape
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scrape."""
        del receive
        exchange = exchange_of(scope)
        if self._gate is not None:
            await self._gate.check(exchange)
        scraped = await self._scrape(exchange.headers.getlist(b"accept"))
        headers = [
            (b"content-type", scraped.content_type.encode("ascii")),
            (b"content-length", b"%d" % len(scraped.body)),
            (b"vary", b"accept"),
            _NO_STORE,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": scraped.body})


class MetricsApp(Reception):
    """The application of a listener that serves only metrics."""

    def __init__(self, page: MetricsPage, *, new_call_id: Callable[[], str]) -> None:
        addresses = Addresses(pages={METRICS_PATH: page}, endpoints={}, hint="the metrics are at /metrics")
        super().__init__(addresses.find, new_call_id=new_call_id)

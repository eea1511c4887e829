"""Who may open a page: callers with a good token, or else a known certificate; and the pages that only ask for that.

One says that it needs a token, one has the metrics for Prometheus: on the main listener, or on a listener of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic_core import to_json

from reasond_server.access import audit
from reasond_server.access.permissions import Operation, require_metrics
from reasond_server.access.tokens import build_missing_token_error, parse_bearer_token
from reasond_server.errors.access import AccessError, IssuerUnavailableError
from reasond_server.http_api.exchange import NO_STORE, TRANSPORT, RefusalError, find_exchange, send_answer
from reasond_server.http_api.request_middleware import Addresses, RequestMiddleware
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.access.peers import Peers
    from reasond_server.http_api.exchange import Exchange, Receive, Scope, Send
    from reasond_server.telemetry.exposition import Scrape
    from reasond_server.types import Principal

CHECK_PATH: Final = "/api/v1/auth/check"
_METRICS: Final = Operation("metrics")
_CHECK: Final = Operation("CheckToken")
_HINT: Final = "Send 'Authorization: Bearer <token>'"


@value
class PageGate:
    """Admits callers whose token, or else client certificate, is good and passes `require`.

    The audit log has a line of `operation` for each refusal, and none for those who may.
    """

    authenticate: Callable[[str], Awaitable[Principal]]
    peers: Peers | None = None
    observer: Observer = UNOBSERVED
    operation: Operation = _METRICS
    require: Callable[[Principal], None] = require_metrics

    async def check(self, exchange: Exchange) -> Principal:
        """Return the caller if the request may have the page.

        Raises:
            RefusalError: 401 without a valid token, 403 without the permission, 503 if the token cannot be
                verified now.
        """
        principal: Principal | None = None
        try:
            headers = exchange.headers.getlist(b"authorization")
            if headers:
                principal = await self.authenticate(parse_bearer_token(headers))
            elif self.peers is not None:
                principal = self.peers.recognise(exchange.peer_uris)
            if principal is None:
                raise build_missing_token_error(_HINT)
            exchange.subject = principal.subject
            self.require(principal)
        except AccessError as error:
            audit.log_denied(self.operation, error, principal=principal, call_id=exchange.call_id)
            self.observer.call_failed(TRANSPORT, error.reason)
            exchange.reason = error.reason
            if isinstance(error, IssuerUnavailableError):
                raise RefusalError(503, error.message, headers={"retry-after": "1"}) from None
            challenge = {} if principal else {"www-authenticate": "Bearer"}
            raise RefusalError(403 if principal else 401, error.message, headers=challenge) from None
        return principal


class CheckPage:
    """Answers 200 if the token of a request is good: Envoy's ext_authz and nginx's auth_request ask here.

    Proxies ask with the method, and some with the path, of the request that they hold back, so that any method and any
    path below CHECK_PATH is answered. Permissions are not checked here but by the call itself.
    """

    def __init__(
        self,
        *,
        authenticate: Callable[[str], Awaitable[Principal]],
        peers: Peers | None = None,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._gate = PageGate(
            authenticate=authenticate, peers=peers, observer=observer, operation=_CHECK, require=lambda _: None
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send who calls, or refuse."""
        del receive
        exchange = find_exchange(scope)
        exchange.route = CHECK_PATH
        caller = await self._gate.check(exchange)
        await send_answer(send, 200, to_json({"subject": caller.subject, "tenant": caller.tenant}), headers=[NO_STORE])


METRICS_PATH: Final = "/metrics"


class MetricsPage:
    """Sends the output of `scrape` for the values of the header Accept; without a `gate`, to every caller."""

    def __init__(self, scrape: Callable[[Sequence[str]], Awaitable[Scrape]], *, gate: PageGate | None = None) -> None:
        self._scrape = scrape
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scrape."""
        del receive
        exchange = find_exchange(scope)
        if self._gate is not None:
            await self._gate.check(exchange)
        scraped = await self._scrape(exchange.headers.getlist(b"accept"))
        headers = [
            (b"content-type", scraped.content_type.encode("ascii")),
            (b"content-length", b"%d" % len(scraped.body)),
            (b"vary", b"accept"),
            NO_STORE,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": scraped.body})


class MetricsApp(RequestMiddleware):
    """The application of a listener that serves only metrics."""

    def __init__(self, page: MetricsPage, *, new_call_id: Callable[[], str]) -> None:
        addresses = Addresses(pages={METRICS_PATH: page}, endpoints={}, hint="the metrics are at /metrics")
        super().__init__(addresses.find, new_call_id=new_call_id)

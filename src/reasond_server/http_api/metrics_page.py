"""The metrics for Prometheus: on the main listener for permitted tokens, or on a listener of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.http_api.exchange import NO_STORE, find_exchange
from reasond_server.http_api.request_middleware import Addresses, RequestMiddleware

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.http_api.exchange import Receive, Scope, Send
    from reasond_server.http_api.page_gate import PageGate
    from reasond_server.telemetry.exposition import Scrape

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

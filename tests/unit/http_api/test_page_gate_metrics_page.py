"""Who may read the metrics, and in which form."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from reasond_server.access.peers import Peers
from reasond_server.http_api.http_server import HttpServer
from reasond_server.http_api.page_gate import MetricsApp, MetricsPage, PageGate
from reasond_server.telemetry.exposition import Exposition
from reasond_server.telemetry.observers import ServerSnapshot
from tests.http_clients import make_http_client
from tests.unit.http_api.parts import Site, verifier
from tests.unit.telemetry.parts import metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import httpx


def exposition() -> Exposition:
    counted = metrics()
    return Exposition(registry=counted.registry, before=lambda: counted.sample(ServerSnapshot()))


@asynccontextmanager
async def listening(*, gate: PageGate | None = None) -> AsyncIterator[httpx.AsyncClient]:
    app = MetricsApp(MetricsPage(exposition().scrape, gate=gate), new_call_id=lambda: "minted")
    server = HttpServer(app=app, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with make_http_client(base_url=f"http://127.0.0.1:{server.port}") as client:
            yield client
    finally:
        await server.stop(0)


def tokens_of_the_tests() -> PageGate:
    return PageGate(authenticate=verifier().verify, peers=Peers())


async def test_without_a_gate_everybody_may_read() -> None:
    async with listening() as client:
        answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert "reasond_ready 0.0\n" in answer.text
        openly = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert openly.text.endswith("# EOF\n")
        assert (await client.head("/metrics")).text == ""


async def test_nothing_else_is_served_there() -> None:
    async with listening() as client:
        missing = await client.get("/api/v1/jsonrpc")
        assert missing.status_code == 404
        assert missing.json()["error"] == "there is nothing at this address; the metrics are at /metrics"
        assert (await client.post("/metrics")).status_code == 405


@pytest.mark.parametrize(
    ("make_headers", "status"),  # made in the test: a token made at collection may have expired
    [
        (dict, 401),
        (lambda: {"authorization": "Bearer nonsense"}, 401),
        (lambda: {"authorization": "Basic YTpi"}, 401),
        (lambda: {"authorization": f"Bearer {Site.token('reasoning:execute')}"}, 403),
        (lambda: {"authorization": f"Bearer {Site.token('metrics:read')}"}, 200),
        (lambda: {"authorization": f"Bearer {Site.token('admin')}"}, 200),
    ],
)
async def test_behind_a_gate_a_token_with_the_permission_is_needed(
    make_headers: Callable[[], dict[str, str]], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="reasond.audit"):
        async with listening(gate=tokens_of_the_tests()) as client:
            answer = await client.get("/metrics", headers=make_headers())
    assert answer.status_code == status
    assert ("reasond_ready" in answer.text) is (status == 200)
    assert ("www-authenticate" in answer.headers) is (status == 401)
    denials = [record for record in caplog.records if record.message == "metrics denied"]
    assert len(denials) == (status != 200)

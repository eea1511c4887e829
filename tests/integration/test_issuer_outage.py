"""Whole servers with a key set that cannot be fetched, so that no token can be verified."""

from __future__ import annotations

import logging
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest

from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.testing import running_server
from tests.http_clients import make_http_client
from tests.unit.access.parts import claims
from tests.unit.access.test_token_keys import PRIVATE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx

    from reasond_server.assembly.app import Listening

TOKEN = jwt.encode(claims(), PRIVATE["RS256"], algorithm="RS256", headers={"kid": "theirs"})
BEARER = f"Bearer {TOKEN}"


@asynccontextmanager
async def serve_without_issuer(**environ: str) -> AsyncGenerator[Listening, None]:
    """Serve with a key set at an occupied port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/keys"
        async with running_server(environ={"REASOND__AUTH__JWKS_URL": url, **environ}) as listening:
            yield listening


async def post(listening: Listening, *, query: str = "What is 6 times 7?") -> httpx.Response:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {"query": query}}
    async with make_http_client(base_url=listening.http, timeout=180) as client:
        return await client.post("/api/v1/jsonrpc", json=body, headers={"authorization": BEARER})


async def test_over_grpc_it_is_unavailable() -> None:
    async with serve_without_issuer() as listening, grpc.aio.insecure_channel(listening.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListStrategies(
                reasoning_service_pb2.ListStrategiesRequest(), metadata=(("authorization", BEARER),), timeout=180
            )
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "keys of the token's issuer" in str(caught.value.details())


async def test_over_json_rpc_it_is_unavailable() -> None:
    async with serve_without_issuer() as listening:
        error = (await post(listening)).json()["error"]
    assert (error["data"]["reason"], error["data"]["grpc_code"]) == ("ISSUER_UNAVAILABLE", "UNAVAILABLE")
    assert error["data"]["retry_after_ms"] > 0


async def test_a_large_body_is_not_read_and_answered_503(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="reasond.audit"):
        async with serve_without_issuer() as listening:
            answer = await post(listening, query="x" * 90_000)
    assert answer.status_code == 503
    assert "www-authenticate" not in answer.headers
    assert answer.json()["error"]["data"]["reason"] == "ISSUER_UNAVAILABLE"
    assert "Unread unavailable" in caplog.messages


async def test_the_metrics_are_answered_503() -> None:
    async with (
        serve_without_issuer() as listening,
        make_http_client(base_url=listening.http, timeout=180) as client,
    ):
        answer = await client.get("/metrics", headers={"authorization": BEARER})
    assert answer.status_code == 503
    assert "www-authenticate" not in answer.headers

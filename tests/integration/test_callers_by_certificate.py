"""Callers that show a client certificate, over real TLS on both sides of a whole server."""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.testing import running_server
from tests.unit.grpc_api.certificates import Authority, Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reasond_server.app import Listening

WORKER = "spiffe://example.org/ns/prod/sa/worker"
READER = "spiffe://example.org/ns/prod/sa/reader"
PEERS = (
    '[{ path = "/ns/prod/sa/worker", permissions = ["reasoning:execute", "executions:read"], tenant = "acme" },'
    ' { path = "/ns/prod/sa/reader", permissions = ["executions:read"], tenant = "acme" }]'
)


class Secured:
    """A server that asks for certificates, and those who sign them."""

    def __init__(self, folder: Path, listening: Listening, ours: Authority, clients: Authority) -> None:
        self.folder = folder
        self.listening = listening
        self.ours = ours
        self.clients = clients

    async def reason(self, identity: Identity, token: str = "") -> Any:
        """Ask over gRPC."""
        credentials = grpc.ssl_channel_credentials(self.ours.certificate, identity.private_key, identity.certificate)
        target = self.listening.grpc.replace("127.0.0.1", "localhost")
        async with grpc.aio.secure_channel(target, credentials) as channel:
            stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
            task = execution_pb2.ReasoningTask(query="What is 6 times 7?", strategy="chain_of_thought")
            metadata = [("authorization", f"Bearer {token}")] if token else []
            return await stub.Reason(reasoning_service_pb2.ReasonRequest(task=task), metadata=metadata, timeout=20)

    async def execute(self, identity: Identity, **params: str) -> Any:
        """Ask over JSON-RPC."""
        files = {"certificate": identity.certificate, "key": identity.private_key, "ours": self.ours.certificate}
        for name, content in files.items():
            (self.folder / f"client-{name}.pem").write_bytes(content)
        context = ssl.create_default_context(cafile=str(self.folder / "client-ours.pem"))
        context.load_cert_chain(self.folder / "client-certificate.pem", self.folder / "client-key.pem")
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "reasoning.execute",
            "params": {"query": "What is 6 times 7?", "strategy": "chain_of_thought", **params},
        }
        async with httpx.AsyncClient(verify=context, base_url=self.listening.http) as client:
            return (await client.post("/api/v1/jsonrpc", json=call)).json()


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[Secured]:
    ours, clients = Authority("ours"), Authority("clients")
    server = ours.issue("server")
    files = {
        "tls_certificate": server.certificate,
        "tls_private_key": server.private_key,
        "tls_client_ca": clients.certificate,
    }
    environ = {"REASOND__SERVER__TLS": "files", "REASOND__AUTH__TRUST_DOMAIN": "example.org"}
    environ["REASOND__AUTH__PEERS"] = PEERS
    for name, content in files.items():
        (tmp_path / f"{name}.pem").write_bytes(content)
        environ[f"REASOND__SERVER__{name.upper()}"] = str(tmp_path / f"{name}.pem")
    async with running_server(environ=environ) as listening:
        yield Secured(tmp_path, listening, ours, clients)


async def test_a_certificate_says_who_calls_on_both_sides(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="reasond.audit")
    worker = secured.clients.issue("worker", WORKER)
    assert (await secured.reason(worker)).reasoning.answer == "42"
    assert (await secured.execute(worker))["result"]["answer"] == "42"
    lines = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    assert {(line["subject"], line["tenant"]) for line in lines} == {(WORKER, "acme")}


async def test_a_certificate_grants_what_its_rule_says_and_no_more(secured: Secured) -> None:
    reader = secured.clients.issue("reader", READER)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await secured.reason(reader)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert (await secured.execute(reader))["error"]["data"]["reason"] == "PERMISSION_MISSING"


async def test_a_certificate_that_says_nothing_here_needs_a_token(secured: Secured) -> None:
    stranger = secured.clients.issue("stranger", "spiffe://elsewhere.org/ns/prod/sa/worker")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await secured.reason(stranger)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await secured.execute(stranger))["error"]["data"]["reason"] == "TOKEN_MISSING"
    token = secured.listening.token
    assert (await secured.reason(stranger, token)).reasoning.answer == "42"
    assert (await secured.execute(stranger, auth_token=token))["result"]["answer"] == "42"


async def test_a_token_that_is_not_good_is_refused_whatever_the_certificate_says(secured: Secured) -> None:
    worker = secured.clients.issue("worker", WORKER)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await secured.reason(worker, "not.a.token")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await secured.execute(worker, auth_token="not.a.token"))["error"]["data"]["reason"] == "TOKEN_INVALID"

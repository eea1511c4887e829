"""Callers with a client certificate, over real TLS on both listeners of a whole server."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.testing import running_server
from tests.http_clients import make_http_client
from tests.unit.grpc_api.certificates import Authority, Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reasond_server.assembly.app import Listening

WORKER = "spiffe://example.org/ns/prod/sa/worker"
READER = "spiffe://example.org/ns/prod/sa/reader"
PEERS = (
    '[{ path = "/ns/prod/sa/worker", permissions = ["reasoning:execute", "executions:read"], tenant = "acme" },'
    ' { path = "/ns/prod/sa/reader", permissions = ["executions:read"], tenant = "acme" }]'
)


class Secured:
    """A server that asks for certificates, and the issuers of the certificates."""

    def __init__(self, folder: Path, listening: Listening, ours: Authority, clients: Authority) -> None:
        self.folder = folder
        self.listening = listening
        self.ours = ours
        self.clients = clients

    def channel(self, identity: Identity) -> grpc.aio.Channel:
        """Connect over gRPC."""
        credentials = grpc.ssl_channel_credentials(self.ours.certificate, identity.private_key, identity.certificate)
        return grpc.aio.secure_channel(self.listening.grpc.replace("127.0.0.1", "localhost"), credentials)

    async def reason(self, identity: Identity, token: str = "") -> Any:
        """Call Reason over gRPC."""
        async with self.channel(identity) as channel:
            stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
            task = execution_pb2.ReasoningTask(query="What is 6 times 7?", strategy="chain_of_thought")
            metadata = [("authorization", f"Bearer {token}")] if token else []
            return await stub.Reason(reasoning_service_pb2.ReasonRequest(task=task), metadata=metadata, timeout=180)

    async def execute(self, identity: Identity, **params: str) -> Any:
        """Call `reasoning.execute` over JSON-RPC."""
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
        async with make_http_client(verify=context, base_url=self.listening.http) as client:
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


async def test_a_certificate_that_matches_no_rule_needs_a_token(secured: Secured) -> None:
    stranger = secured.clients.issue("stranger", "spiffe://elsewhere.org/ns/prod/sa/worker")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await secured.reason(stranger)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await secured.execute(stranger))["error"]["data"]["reason"] == "TOKEN_MISSING"
    token = secured.listening.token
    assert (await secured.reason(stranger, token)).reasoning.answer == "42"
    assert (await secured.execute(stranger, auth_token=token))["result"]["answer"] == "42"


@pytest.mark.parametrize("uri", ["spiffe://elsewhere.org/ns/prod/sa/worker", READER])
async def test_whoever_a_certificate_does_not_let_in_is_refused_before_a_message_is_read(
    secured: Secured, uri: str
) -> None:
    identity = secured.clients.issue("stranger", uri)
    async with secured.channel(identity) as channel:
        call: Any = channel.stream_unary("/reasond.v1.ReasoningService/Reason")()
        # The client never sends a message: only a server that does not wait for one answers.
        code = await asyncio.wait_for(call.code(), 120)
    assert code is (grpc.StatusCode.PERMISSION_DENIED if uri == READER else grpc.StatusCode.UNAUTHENTICATED)


async def test_a_caller_by_certificate_gets_streams_and_is_told_of_faulty_messages(secured: Secured) -> None:
    worker = secured.clients.issue("worker", WORKER)
    async with secured.channel(worker) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        task = execution_pb2.ReasoningTask(query="What is 6 times 7?", strategy="chain_of_thought")
        events = stub.ReasonIterations(reasoning_service_pb2.ReasonIterationsRequest(task=task), timeout=180)
        assert [event.WhichOneof("event") async for event in events][-1] == "completed"
        ended: Any = channel.stream_unary("/reasond.v1.ReasoningService/Reason")(iter(()), timeout=180)
        assert await ended.code() is grpc.StatusCode.INVALID_ARGUMENT
        for message, code in ((b"\xff", "INVALID_ARGUMENT"), (bytes(5 * 1024 * 1024), "RESOURCE_EXHAUSTED")):
            call: Any = channel.unary_unary("/reasond.v1.ReasoningService/Reason")(message, timeout=180)  # type: ignore[arg-type]  # bytes pass as they are
            assert (await call.code()).name == code


async def test_an_invalid_token_is_refused_whatever_the_certificate_says(secured: Secured) -> None:
    worker = secured.clients.issue("worker", WORKER)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await secured.reason(worker, "not.a.token")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (await secured.execute(worker, auth_token="not.a.token"))["error"]["data"]["reason"] == "TOKEN_INVALID"

"""What Envoy adds in front of a real server by the other files of `deploy/envoy`: TLS, JSON, tokens, rate limits."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import jwt
import pytest
from aiohttp import test_utils, web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import reasond
from tests.http_clients import make_http_client
from tests.mesh.gated import MATERIAL, digest_of, gated_server
from tests.mesh.proxies import ROOT, Backends, running_proxy
from tests.mesh.tls_files import SYSTEM_ROOTS, write_tls_files
from tests.rest_calls import read_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    import httpx

    from tests.mesh.gated import GatedServer

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
REASON = "/api/v1/reasoning:execute"
STREAM = "/api/v1/reasoning:stream"
ISSUER = "https://login.example.org/"


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Envoy with one file of `deploy/envoy`, the server behind it, and the address of Envoy."""

    server: GatedServer
    address: str

    def client(self, token: str = "") -> reasond.AsyncClient:
        """Return a gRPC client with the token, or else that of the server."""
        return reasond.AsyncClient(self.address, token=token or self.server.listening.token)

    def web(self) -> httpx.AsyncClient:
        """Return an HTTP client."""
        return make_http_client(base_url=f"http://{self.address}", timeout=LIMIT_S)


@asynccontextmanager
async def edge(
    file: str, folder: Path, replacements: Mapping[str, str] | None = None, **settings: str
) -> AsyncGenerator[Edge, None]:
    """Run both inside the context."""
    async with (
        gated_server(**settings) as server,
        running_proxy("envoy", folder, server.backends, file=file, replacements=replacements) as proxy,
    ):
        yield Edge(server=server, address=proxy.grpc)


def task(query: str, **more: Any) -> dict[str, Any]:
    """Return a request in the JSON of the protos."""
    return {"task": {"query": query, "strategy": "gated", **more}}


async def test_tls_ends_at_envoy_for_grpc_and_http(tmp_path: Path) -> None:
    roots = write_tls_files(tmp_path / "tls")
    where = {"/etc/envoy/tls": str(tmp_path / "tls")}
    async with edge("tls.yaml", tmp_path, where, server__tls="terminated-upstream") as found:
        address, token = found.address.replace("127.0.0.1", "localhost"), found.server.listening.token
        tls = reasond.TlsOptions(root_certificates=roots.read_bytes())
        async with reasond.AsyncClient(address, token=token, tls=tls) as client:
            assert (await client.reason("0", strategy="gated")).answer == digest_of("")
        context = ssl.create_default_context(cafile=str(roots))
        async with make_http_client(verify=context, timeout=LIMIT_S) as web:
            assert (await web.get(f"https://{address}/.well-known/agent-card.json")).status_code == 200


@asynccontextmanager
async def transcoding(folder: Path) -> AsyncGenerator[tuple[Edge, httpx.AsyncClient], None]:
    """Run Envoy with the transcoder; yields an HTTP client with a token, too."""
    replacements = {"/etc/envoy/reasond.binpb": str(ROOT / "proto" / "reasond.binpb")}
    async with edge("transcoding.yaml", folder, replacements) as found, found.web() as web_client:
        web_client.headers.update(found.server.bearer)
        yield found, web_client


async def test_a_unary_call_is_json(tmp_path: Path) -> None:
    async with transcoding(tmp_path) as (_, web):
        answer = await web.post(REASON, json=task("0", material="a book"))
        assert answer.status_code == 200
        assert answer.json()["reasoning"]["answer"] == digest_of("a book")


async def test_two_megabytes_pass_as_json_too(tmp_path: Path) -> None:
    async with transcoding(tmp_path) as (_, web):
        answer = await web.post(REASON, json=task("0", material=MATERIAL))
        assert answer.status_code == 200, answer.text
        assert answer.json()["reasoning"]["answer"] == digest_of(MATERIAL)
        events = await web.post(STREAM, json=task("0", material=MATERIAL))
        assert digest_of(MATERIAL) in events.text


async def test_a_stream_is_server_sent_events_that_pass_one_by_one(tmp_path: Path) -> None:
    async with transcoding(tmp_path) as (found, web), web.stream("POST", STREAM, json=task("3")) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        sequences = []
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                sequences.append(json.loads(line.removeprefix("data: "))["sequence"])
                found.server.gated.releases.release()
        assert sequences == ["1", "2", "3", "4", "5"]


async def test_errors_are_json_with_their_reason_and_violations(tmp_path: Path) -> None:
    async with transcoding(tmp_path) as (_, web):
        refused = await web.post(REASON, json=task(""))
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/json"
        details = {each["@type"].rpartition(".")[2]: each for each in refused.json()["details"]}
        assert details["ErrorInfo"]["reason"] == "INVALID_REQUEST"
        assert details["BadRequest"]["field_violations"][0]["field"] == "task.query"
        unknown = await web.post(REASON, json=task("0"), headers={"authorization": "Bearer nonsense"})
        assert unknown.status_code == 401
        assert "TOKEN_INVALID" in unknown.text
        # This one is Envoy's own.
        assert (await web.post(REASON, json={"task": {"riddle": "?"}})).status_code == 400


async def test_the_server_itself_answers_what_the_transcoder_answers(tmp_path: Path) -> None:
    card = json.dumps({"capabilities": ["a"], "supported_methods": ["b"]})
    async with transcoding(tmp_path) as (found, web), make_http_client(base_url=found.server.listening.http) as own:
        own.headers.update(found.server.bearer)
        name = (await web.post(REASON, json=task("0"))).json()["reasoning"]["execution_id"]
        calls: list[tuple[str, str, dict[str, Any]]] = [
            ("GET", f"/api/v1/executions/{name}", {}),
            ("GET", f"/api/v1/executions/{name}", {"params": {"trace_view": "TRACE_VIEW_FULL"}}),
            ("GET", "/api/v1/executions?state=EXECUTION_STATE_SUCCEEDED&create_time_after=2026-01-01T00:00:00Z", {}),
            ("GET", "/api/v1/executions?page_size=-1", {}),
            ("GET", "/api/v1/executions/nobody", {}),
            ("GET", "/api/v1/turns/a%2Fb%20c/toolResults/d?range.offset=1", {}),
            ("GET", f"/api/v1/executions/{name}:follow", {}),
            ("GET", f"/api/v1/executions/{name}:follow?after_sequence=1&include_deltas=true", {}),
            ("GET", f"/api/v1/executions/{name}:follow?after_sequence=2", {}),
            ("GET", f"/api/v1/executions/{name}:follow?after_sequence=99", {}),
            ("POST", f"/api/v1/executions/{name}:cancel", {"json": {}}),
            ("POST", "/api/v1/executions/nobody:cancel", {"json": {}}),
            ("GET", "/api/v1/strategies", {}),
            ("GET", "/api/v1/card", {}),
            ("PUT", "/api/v1/agents/helper", {"json": {"card_json": card, "ttl": "60.5s"}}),
            ("GET", "/api/v1/agents?capabilities=a&capabilities=b", {}),
            ("DELETE", "/api/v1/agents/helper?etag=0", {}),
            ("POST", REASON, {"json": task("")}),
            ("POST", REASON, {"json": task("0"), "headers": {"authorization": "Bearer nonsense"}}),
            ("POST", REASON, {"json": {**task("0"), "request_id": "x" * 129}}),
            ("POST", STREAM, {"json": {"resume": {"execution_id": name, "after_sequence": "1"}}}),
            ("POST", STREAM, {"json": {"resume": {"execution_id": "nobody"}}}),
            ("GET", "/api/v1/nothing", {}),
            ("GET", REASON, {}),
            ("GET", "/openapi.json", {}),
        ]
        for verb, path, content in calls:
            through, direct = [await each.request(verb, path, **content) for each in (web, own)]
            assert (through.status_code, told_by(through)) == (direct.status_code, told_by(direct)), path
            # What the transcoder does not know, it lets through.
            is_unknown = path in {"/api/v1/nothing", "/openapi.json"} or (verb, path) == ("GET", REASON)
            assert ("x-content-type-options" in through.headers) == is_unknown, path


def told_by(answer: httpx.Response) -> Any:
    """Return what an answer or its events say, without what differs from call to call."""
    is_stream = answer.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(text) for text in ([] if is_stream else [answer.text])] or read_events(answer)
    return json.loads(re.sub(r'"(request_id|update_time|expire_time|etag)": "[^"]+"', '"": ""', json.dumps(told)))


async def test_grpc_and_json_rpc_go_through_the_transcoder_as_they_are(tmp_path: Path) -> None:
    async with transcoding(tmp_path) as (found, web), found.client() as client:
        assert (await client.reason("0", strategy="gated")).answer == digest_of("")
        body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": task("0")["task"]}
        assert (await web.post("/api/v1/jsonrpc", json=body)).json()["result"]["answer"] == digest_of("")


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """An identity provider with an Ed25519 key; `key_set` is what it publishes, and the server has the file."""

    key: Ed25519PrivateKey
    key_set: dict[str, Any]
    public_key_file: Path

    @classmethod
    def create(cls, folder: Path) -> Issuer:
        """Make a key and its file."""
        key = Ed25519PrivateKey.generate()
        public = key.public_key()
        told = json.loads(jwt.get_algorithm_by_name("EdDSA").to_jwk(public))
        public_key_file = folder / "public.pem"
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        public_key_file.write_bytes(pem)
        key_set = {"keys": [told | {"kid": "main", "alg": "EdDSA", "use": "sig"}]}
        return cls(key=key, key_set=key_set, public_key_file=public_key_file)

    @asynccontextmanager
    async def publish(self, folder: Path) -> AsyncGenerator[dict[str, str], None]:
        """Publish the key set over HTTPS; yields the replacements with which Envoy finds it."""
        roots = write_tls_files(folder / "tls")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "tls" / "tls.crt", folder / "tls" / "tls.key")

        async def answer(_: web.Request) -> web.Response:
            return web.json_response(self.key_set)

        site = web.Application()
        site.router.add_get("/.well-known/jwks.json", answer)
        server = test_utils.TestServer(site, host="127.0.0.1", scheme="https")
        await server.start_server(ssl=context)
        async with server:
            yield {
                "address: login.example.org, port_value: 443": f"address: 127.0.0.1, port_value: {server.port}",
                "sni: login.example.org": "sni: localhost",
                "exact: login.example.org": "exact: localhost",
                SYSTEM_ROOTS: str(roots),
            }

    def issue(self, *, issuer: str = ISSUER, lifetime_s: float = 600, **claims: Any) -> str:
        """Return a token with the claims."""
        now = time.time()
        own = {"iss": issuer, "aud": "reasond", "sub": "ann", "iat": now, "exp": now + lifetime_s, "jti": "1"}
        return jwt.encode(own | claims, self.key, algorithm="EdDSA", headers={"kid": "main"})


async def test_tokens_of_an_issuer_are_checked_by_envoy_and_again_by_the_server(tmp_path: Path) -> None:
    issuer = Issuer.create(tmp_path)
    settings = {
        "auth__issuer": ISSUER,
        "auth__keys": f'[{{ id = "main", algorithm = "EdDSA", public_key_file = "{issuer.public_key_file}" }}]',
    }
    async with issuer.publish(tmp_path) as where, edge("jwt.yaml", tmp_path, where, **settings) as found:
        good = issuer.issue(permissions=["reasoning:execute"])
        async with found.client(good) as client:
            assert (await client.reason("0", strategy="gated")).answer == digest_of("")
        async with found.client(issuer.issue(permissions=[])) as client:
            with pytest.raises(reasond.PermissionDeniedError) as refused:
                await client.reason("0", strategy="gated")
            assert refused.value.reason == "PERMISSION_MISSING"
        for bad in ("nonsense", issuer.issue(issuer="https://elsewhere.example/"), issuer.issue(lifetime_s=-600)):
            async with found.client(bad) as client:
                with pytest.raises(reasond.AuthenticationError) as unknown:
                    await client.reason("0", strategy="gated")
                # The status alone: it did not come from the server.
                assert unknown.value.reason == "UNAUTHENTICATED"
        async with found.web() as web:
            assert (await web.get("/.well-known/agent-card.json")).status_code == 200
            assert (await web.get("/v1/models")).status_code == 401
        await check_health(found.address)


async def check_health(address: str) -> None:
    """Ask for the health of the server over gRPC without a token."""
    async with grpc.aio.insecure_channel(address) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=LIMIT_S) == b"\x08\x01"


async def test_any_token_of_the_server_is_checked_before_a_call(tmp_path: Path) -> None:
    async with edge("ext-authz.yaml", tmp_path) as found:
        async with found.client() as client:
            assert (await client.reason("0", strategy="gated")).answer == digest_of("")
            stream = client.reason_iterations("2", strategy="gated")
            found.server.gated.releases.release()
            found.server.gated.releases.release()
            assert [event.sequence async for event in stream] == [1, 2, 3, 4]
        async with found.client("nonsense") as client:
            with pytest.raises(reasond.AuthenticationError) as unknown:
                await client.reason("0", strategy="gated")
            assert "nonsense" not in unknown.value.message
        async with found.web() as web:
            refused = await web.post("/api/v1/jsonrpc", json={})
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert (await web.get("/v1/models", headers=found.server.bearer)).status_code == 200
            assert (await web.get("/.well-known/agent-card.json")).status_code == 200
            # It reaches the server, which has no agents.
            assert (await web.post("/api/v1/auth/token", json={})).status_code == 404
        await check_health(found.address)


async def test_calls_are_unavailable_while_nobody_can_check_tokens(tmp_path: Path) -> None:
    async with gated_server() as server:
        nobody = Backends(grpc=server.backends.grpc, http=["127.0.0.1:1"])
        async with (
            running_proxy("envoy", tmp_path, nobody, file="ext-authz.yaml") as proxy,
            reasond.AsyncClient(proxy.grpc, token=server.listening.token) as client,
        ):
            with pytest.raises(reasond.UnavailableError):
                await client.reason("0", strategy="gated")


async def test_calls_above_the_rate_are_refused_as_the_server_refuses_them(tmp_path: Path) -> None:
    few = {"max_tokens: 200, tokens_per_fill: 50, fill_interval: 1s": "max_tokens: 5, fill_interval: 3600s"}
    async with edge("rate-limit.yaml", tmp_path, few) as found, found.client() as client:
        calls = [client.reason("0", strategy="gated") for _ in range(12)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, reasond.Reasoning) for each in ended) == 5
        assert sum(isinstance(each, reasond.ResourceExhaustedError) for each in ended) == 7
        async with found.web() as web:
            answer = await web.get("/readyz")
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")

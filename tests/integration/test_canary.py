"""Secrets are planted in a real server, every kind of failure is caused, and all output is searched for the secrets."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
import psycopg
import pytest
from redis.asyncio import Redis

from reasond.v1 import (
    execution_pb2,
    execution_service_pb2,
    execution_service_pb2_grpc,
    reasoning_service_pb2,
    reasoning_service_pb2_grpc,
)
from reasond_server.access.agent_secrets import hash_secret
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from tests.engines.postgres import postgres_program
from tests.engines.redis_server import running_redis
from tests.forking import ForkedProcess
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from pathlib import Path

ANSWER = "a heron at dusk"
START_LIMIT_S = 180.0


# A third-party strategy that fails with every secret it knows in its message and in its locals.
CRASHING = """
import os
from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig

class Crashing(ReasoningStrategy[StrategyConfig]):
    name = "crashing"
    description = "Fails."
    config_type = StrategyConfig

    async def run(self, task, context):
        token, key, question = os.environ["CANARY_TOKEN"], os.environ["CANARY_API_KEY"], task.query
        everything = dict(os.environ)
        if everything:
            raise RuntimeError(f"refused: {token} authorization: Bearer {token} api_key={key}" + "." * 8000 + token)
        yield None
"""


@dataclass(kw_only=True)
class Secrets:
    """The texts that must not appear anywhere; each is unique, so that no part of it occurs in other text."""

    signing_key: str = "cAnArY-hs256-Zk4qWm8xTt1v-Hr7sLp2yBd9"
    api_key: str = "sk-cAnArY-backend-Qe6uGn3wXc5j"
    agent_secret: str = "cAnArY-agent-Vb2hRf8kMs4z"
    wrong_secret: str = "cAnArY-guess-Jd9pYt6nUw1e"
    redis_password: str = "cAnArY-redis-Lx3cFa7gKo5i"
    tool_variable: str = "cAnArY-mcp-env-Nz8vSe2rTb6q"
    database_password: str = "cAnArY-postgres-Pf4xWq7yMv2d"
    collector_key: str = "cAnArY-otlp-Ub9kTz3hRs6e"
    question: str = "cAnArY question about Ty5wHm1oDk9u"
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, str]:
        named = {name: value for name, value in vars(self).items() if isinstance(value, str)}
        # The last part of a token alone is a secret, because it completes the token.
        signatures = {f"signature of {name}": token.rpartition(".")[2] for name, token in self.tokens.items()}
        return {**named, **self.tokens, **signatures}


def spellings(secret: str) -> Iterator[bytes]:
    """Yield the forms in which a text may appear: plain, quoted, escaped, and inside encoded text."""
    raw = secret.encode()
    yield raw
    yield urllib.parse.quote(secret, safe="").encode()
    yield json.dumps(secret)[1:-1].encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for coded in (base64.b64encode, base64.urlsafe_b64encode):
        # Inside a longer text it may begin at any of the three positions of a base64 group.
        for before in range(3):
            group = coded(b"\0" * before + raw)
            yield group[4 if before else 0 : len(group) // 4 * 4 - 4]


def leaks(secrets: Mapping[str, str], written: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return each found secret with the place where it was found."""
    return [
        (name, place)
        for name, secret in secrets.items()
        for place, content in written.items()
        if any(spelling in content for spelling in spellings(secret))
    ]


@pytest.mark.parametrize("code", ["plain", "quoted", "hex", "base64", "base64 within"])
def test_a_leak_is_found_however_it_is_spelt(code: str) -> None:
    secret = "cAnArY/of+this test"
    written = {
        "plain": secret.encode(),
        "quoted": urllib.parse.quote_plus(secret, safe="").replace("+", "%20").encode(),
        "hex": secret.encode().hex().encode(),
        "base64": base64.b64encode(secret.encode()),
        "base64 within": base64.urlsafe_b64encode(b"user:" + secret.encode() + b" and more"),
    }[code]

    assert leaks({"it": secret}, {"there": b"before " + written + b" after"}) == [("it", "there")]
    assert leaks({"it": secret}, {"there": b"nothing"}) == []


class Echoing(BaseHTTPRequestHandler):
    """A backend that answers well once, and then returns the caller's own headers and question."""

    answered = 0
    asked: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append(asked)
        type(self).answered += 1
        if self.answered == 1:
            message = {"role": "assistant", "content": f"<answer>{ANSWER}</answer>"}
            usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
            delta = {"choices": [{"index": 0, "delta": message, "finish_reason": "stop"}], "usage": usage}
            self._send(200, "text/event-stream", f"data: {json.dumps(delta)}\n\ndata: [DONE]\n\n".encode())
            return
        echo = f"no: {self.headers['authorization']} {self.headers} {asked.decode()}"
        status = (401, 400, 500, 403)[self.answered % 4]
        self._send(status, "application/json", json.dumps({"error": {"message": echo, "type": echo}}).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Do nothing."""


@pytest.fixture
def backend() -> Iterator[str]:
    Echoing.answered = 0
    Echoing.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Echoing) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@contextmanager
def collecting() -> Iterator[tuple[list[bytes], str]]:
    """Receive spans like an OTLP receiver; yield the received bytes, and the address."""
    exported: list[bytes] = []

    def export(request: bytes, _context: object) -> bytes:
        exported.append(request)
        return b""

    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers: dict[str, Any] = {"Export": grpc.unary_unary_rpc_method_handler(export)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield exported, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def install(folder: Path) -> None:
    """Install the failing strategy for every process that has `folder` on its path."""
    info = folder / "crashing-1.dist-info"
    info.mkdir(parents=True)
    (folder / "crashing.py").write_text(CRASHING, "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crashing\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("[reasond.strategies]\ncrashing = crashing:Crashing\n", "utf-8")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The store of the executions, and a function that returns its whole content."""

    url: str
    dump: Callable[[], bytes]


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Stored:
    if request.param == "sqlite":
        return Stored(url="", dump=lambda: "\n".join(dumped_sqlite(tmp_path / "data" / "reasond.db")).encode())
    database = str(request.getfixturevalue("postgres_url"))
    user = "canary_" + os.urandom(4).hex()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{Secrets().database_password}'")
    place = urllib.parse.urlsplit(database)
    url = f"postgresql://{user}:{Secrets().database_password}@{place.hostname}:{place.port}{place.path}"
    program = postgres_program("pg_dump")
    assert program is not None

    def dump() -> bytes:
        return subprocess.run([program, "--dbname", database], capture_output=True, check=True, timeout=180).stdout

    return Stored(url=url, dump=dump)


def dumped_sqlite(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def settings(secrets: Secrets, *, backend: str, redis_port: int, store: str, collector: str) -> str:
    return f"""
[logs]
level = "debug"
[tracing]
endpoint = "{collector}"
[reasoning]
enabled_strategies = ["chain_of_thought", "crashing"]
[server]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
drain_delay_s = 0
drain_grace_s = 1
[llm]
provider = "openai"
model = "heron"
base_url = "{backend}"
api_key_env = "CANARY_API_KEY"
max_attempts = 1
[auth]
keys = [{{ id = "main", secret_file = "main.key" }}]
[auth.agents.crawler]
secret_hash = "{hash_secret(secrets.agent_secret)}"
permissions = ["reasoning:execute"]
[limits]
requests_per_minute = 1000
concurrent_requests = 50
tokens_per_minute = 1000000
storage = "redis"
redis_url = "redis://:{secrets.redis_password}@127.0.0.1:{redis_port}/0"
[store]
url = "{store}"
data_dir = "data"
record_content = false
[tools.mcp.broken]
command = "{sys.executable}"
args = ["-c", "raise SystemExit(3)"]
env = {{ CANARY_TOOL = "{secrets.tool_variable}" }}
"""


def mint_tokens(secrets: Secrets) -> None:
    """Make the tokens of the run: one valid token and several invalid ones."""

    def token(*, key: str = secrets.signing_key, audience: str = "reasond", ago_s: int = 0) -> str:
        minter = TokenMinter(
            key=SigningKey(id="main", secret=key.encode()), issuer="reasond", audience=audience, max_lifetime_s=3600
        )
        now = datetime.now(UTC) - timedelta(seconds=ago_s)
        return minter.mint(subject="ann", permissions=["admin"], lifetime_s=900, now=now)

    secrets.tokens |= {
        "good token": token(),
        "token of another audience": token(audience="elsewhere"),
        "expired token": token(ago_s=7200),
        "forged token": token(key="another-key-that-is-long-enough-for-hs256"),
    }


@dataclass(kw_only=True)
class Running:
    """The server, and the answers that callers received."""

    grpc: str
    http: str
    told: list[str] = field(default_factory=list)


@asynccontextmanager
async def serving(folder: Path, secrets: Secrets, plugin: Path) -> AsyncGenerator[Running, None]:
    """Run `reasond serve` in `folder`, to which it writes all its files."""
    (folder / "tmp").mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder / "tmp"), "TERM": "dumb"}
    environ |= {"CANARY_API_KEY": secrets.api_key, "PYTHONFAULTHANDLER": "1", "PYTHONASYNCIODEBUG": "1"}
    environ |= {"CANARY_TOKEN": secrets.tokens["good token"], "PYTHONPATH": str(plugin)}
    environ["OTEL_EXPORTER_OTLP_HEADERS"] = f"x-key={secrets.collector_key}"
    process = ForkedProcess(
        *("serve", "--config", "config.toml", "--ready-file", "ready.json"),
        environ=environ,
        folder=folder,
        stdout=folder / "stdout",
        stderr=folder / "stderr",
        ends_interpreter=True,
    )
    try:
        async with asyncio.timeout(START_LIMIT_S):
            while not (folder / "ready.json").exists():
                assert process.poll() is None, (folder / "stderr").read_text("utf-8")
                await asyncio.sleep(0.02)
        ready = json.loads((folder / "ready.json").read_text("utf-8"))
        (folder / "ready.copy").write_text(json.dumps(ready), encoding="utf-8")
        yield Running(grpc=ready["grpc"], http=f"http://{ready['http']}")
        # The write-ahead log is deleted when the server ends.
        for part in (folder / "data").glob("*"):
            (folder / f"live-{part.name}").write_bytes(part.read_bytes())
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, START_LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


async def call_over_grpc(running: Running, secrets: Secrets) -> None:
    """Call with every token, unary and as a stream."""
    task = execution_pb2.ReasoningTask(query=secrets.question, strategy="chain_of_thought")
    async with grpc.aio.insecure_channel(running.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        executions: Any = execution_service_pb2_grpc.ExecutionServiceStub(channel)
        for token in [*secrets.tokens.values(), f"{secrets.tokens['good token']}x", secrets.api_key]:
            metadata = [("authorization", f"Bearer {token}")]
            crash = execution_pb2.ReasoningTask(query=secrets.question, strategy="crashing")
            for call in (
                stub.Reason(reasoning_service_pb2.ReasonRequest(task=task), metadata=metadata),
                stub.Reason(reasoning_service_pb2.ReasonRequest(task=crash), metadata=metadata),
                executions.GetExecution(
                    execution_service_pb2.GetExecutionRequest(execution_id=token), metadata=metadata
                ),
                executions.ListExecutions(execution_service_pb2.ListExecutionsRequest(), metadata=metadata),
            ):
                try:
                    running.told.append(str(await call))
                except grpc.aio.AioRpcError as error:
                    # An error may repeat an id to the caller who sent it, so only the rest is searched.
                    said = f"{error.details()} {error.trailing_metadata()!s} {error.initial_metadata()!s}"
                    running.told.append(said.replace(token, "") if "Execution not found" in said else said)


async def call_over_http(running: Running, secrets: Secrets) -> None:
    """Call with every token in both places, and request tokens with valid and invalid secrets."""
    async with make_http_client(base_url=running.http, timeout=180) as client:
        for token in secrets.tokens.values():
            params = {"query": secrets.question, "strategy": "chain_of_thought", "auth_token": token}
            body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
            accepts = {"accept": "text/event-stream"}
            answers = [
                await client.post("/api/v1/jsonrpc", json=body),
                await client.post("/api/v1/jsonrpc", json=body, headers=accepts),
                await client.post("/api/v1/jsonrpc", json=body, headers={"authorization": f"Bearer {token}x"}),
                await client.post("/api/v1/jsonrpc", json={**body, "params": {**params, "max_tokens": token}}),
                await client.post("/api/v1/jsonrpc", content=json.dumps(body).encode()[:-3]),
                await client.get(f"/healthz?token={token}"),
            ]
            running.told += [f"{answer.headers!s} {answer.text}" for answer in answers]
        for secret in (secrets.wrong_secret, secrets.agent_secret):
            answer = await client.post("/api/v1/auth/token", json={"agent_id": "crawler", "secret": secret})
            found = answer.json()
            secrets.tokens.update({"token of the agent": found.pop("access_token")} if answer.is_success else {})
            running.told.append(f"{answer.headers!s} {found}")
        odd = await client.post("/api/v1/auth/token", json={"agent": "crawler", "secret": secrets.agent_secret})
        running.told.append(odd.text)


def files_in(folder: Path) -> dict[str, bytes]:
    """Return all files below `folder`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def everything_in(url: str, password: str) -> bytes:
    """Return all keys and values of a Redis."""
    async with Redis.from_url(url, password=password) as client:
        keys = [key async for key in client.scan_iter()]
        values = [await client.dump(key) for key in keys]
    return b"\n".join([*keys, *(value or b"" for value in values)])


async def fill_redis(running: Running, secrets: Secrets, url: str) -> bytes:
    """Send requests until Redis holds counts; a server that waits more than 50 ms counts in memory for a second."""
    async with asyncio.timeout(120):
        while b"{requests/" not in (found := await everything_in(url, secrets.redis_password)):
            await call_over_grpc(running, secrets)
    return found


async def metrics_of(running: Running, secrets: Secrets) -> str:
    """Return the scraped metrics."""
    async with make_http_client(base_url=running.http, timeout=180) as client:
        token = secrets.tokens["good token"]
        answer = await client.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert answer.is_success
    return answer.text


async def test_no_secret_of_a_run_in_which_everything_fails_is_written_or_told(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, backend: str, stored: Stored
) -> None:
    secrets = Secrets()
    mint_tokens(secrets)
    plugin = tmp_path_factory.mktemp("plugin")
    install(plugin)
    (tmp_path / "main.key").write_text(secrets.signing_key, encoding="ascii")
    with collecting() as (spans, collector):
        async with running_redis() as redis:
            async with Redis.from_url(redis.url) as client:
                await client.config_set("requirepass", secrets.redis_password)
            places: dict[str, Any] = {"redis_port": redis.port, "store": stored.url, "collector": collector}
            (tmp_path / "config.toml").write_text(settings(secrets, backend=backend, **places), encoding="utf-8")
            async with serving(tmp_path, secrets, plugin) as running:
                await call_over_grpc(running, secrets)
                await call_over_http(running, secrets)
                in_redis = await fill_redis(running, secrets, redis.url)
                metrics = await metrics_of(running, secrets)
                redis.kill()
                await call_over_http(running, secrets)
    for given in ("config.toml", "main.key"):
        (tmp_path / given).unlink()
    written = files_in(tmp_path)
    written |= {"Redis": in_redis, "answers": "\n".join(running.told).encode(), "metrics": metrics.encode()}
    written |= {"spans": b"".join(spans), "database": stored.dump()}

    assert leaks(secrets.all, written) == []
    # A model cannot reveal a secret that is in no prompt. The question must be found: the search works.
    prompts = {"prompts": b"".join(Echoing.asked)}
    assert leaks(secrets.all, prompts) == [("question", "prompts")]
    # The searched output must contain these texts: otherwise a run without any output would pass too.
    for said in (b"limits cannot be shared", b"TOKEN_EXPIRED", b"work failed", b"in run\\n", b'"debug"'):
        assert said in written["stderr"]
    assert ANSWER.encode() in written["answers"]
    assert b"{requests/" in written["Redis"]
    assert b"reasond_" in written["metrics"]
    assert b"invoke_workflow crashing" in written["spans"]
    assert b"chain_of_thought" in written["database"]

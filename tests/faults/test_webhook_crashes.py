"""Servers that are killed between the end of an execution and its webhook: the message comes, with the same id."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest
from standardwebhooks import Webhook

from tests.faults.server_process import ServerProcess
from tests.http_clients import make_http_client
from tests.receivers import SECRET, receiving, webhook_environ

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    started: list[ServerProcess] = []
    yield started
    for each in started:
        if each.is_alive:
            each.kill()


def find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def build_environ(request: pytest.FixtureRequest, kind: str, folder: Path, port: int) -> dict[str, str]:
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{folder}/r.db"
    hooks = webhook_environ(f"http://127.0.0.1:{port}/hooks")
    return {"REASOND__STORE__URL": url, "REASOND__LLM__PROVIDER": "demo", "REASOND__WEBHOOKS__TIMEOUT_S": "1"} | hooks


async def run_one(server: ServerProcess) -> Any:
    """Return the answer once it is committed, as it is for a request with an id."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "reasoning.execute",
        "params": {"query": json.dumps({"tag": "t", "steps": []}), "strategy": "listed", "request_id": "r1"},
    }
    async with make_http_client(base_url=server.http, headers={"authorization": f"Bearer {server.token}"}) as http:
        answer = (await http.post("/api/v1/jsonrpc", json=body)).json()
        assert "result" in answer, answer
        return answer["result"]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_server_killed_before_the_message_could_be_sent(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, servers: list[ServerProcess]
) -> None:
    port = find_free_port()
    environ = build_environ(request, kind, tmp_path, port)
    servers.append(await ServerProcess.start(tmp_path, "one", environ).until_ready())
    ended = await run_one(servers[0])
    servers[0].kill()
    async with receiving(port) as receiver:
        servers.append(await ServerProcess.start(tmp_path, "two", environ).until_ready())
        (message,) = await receiver.wait_for(1)
        told = Webhook(SECRET).verify(message.body, dict(message.headers))
        assert told["data"]["execution_id"] == ended["execution_id"]
        await servers[1].end()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_server_killed_before_it_heard_the_confirmation(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, servers: list[ServerProcess]
) -> None:
    async with receiving() as receiver:
        receiver.answers = [None]
        environ = build_environ(request, kind, tmp_path, receiver.port)
        servers.append(await ServerProcess.start(tmp_path, "one", environ).until_ready())
        await run_one(servers[0])
        await receiver.wait_for(1)
        servers[0].kill()
        servers.append(await ServerProcess.start(tmp_path, "two", environ).until_ready())
        first, second = await receiver.wait_for(2)
        assert first.id == second.id
        assert first.body == second.body
        await servers[1].end()

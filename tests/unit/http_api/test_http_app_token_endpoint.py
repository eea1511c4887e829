from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.access.agent_secrets import hash_secret
from reasond_server.testing import running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

SECRET = "the secret of the crawler"
ENVIRON = {
    "REASOND__AUTH__AGENTS__CRAWLER__SECRET_HASH": hash_secret(SECRET),
    "REASOND__AUTH__AGENTS__CRAWLER__ROLES": '["solver"]',
    "REASOND__AUTH__ROLES__SOLVER__PERMISSIONS": '["reasoning:execute"]',
    "REASOND__AUTH__ROLES__SOLVER__STRATEGIES": '["chain_of_thought"]',
}
PATH = "/api/v1/auth/token"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with AsyncExitStack() as stack:
        listening = await stack.enter_async_context(running_server(environ=ENVIRON))
        yield await stack.enter_async_context(make_http_client(base_url=listening.http))


async def execute(client: httpx.AsyncClient, token: str, strategy: str) -> Any:
    params = {"auth_token": token, "query": "What is 6 times 7?", "strategy": strategy}
    call = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    return (await client.post("/api/v1/jsonrpc", json=call)).json()


async def test_an_agent_gets_a_token_that_does_what_its_role_may(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATH, json={"agent_id": "crawler", "secret": SECRET})
    found = answer.json()
    assert (answer.status_code, found["token_type"], found["expires_in"]) == (200, "Bearer", 3600)
    assert answer.headers["cache-control"] == "no-store"
    result = await execute(client, found["access_token"], "chain_of_thought")
    assert result["result"]["answer"] == "42"
    refused = await execute(client, found["access_token"], "bounded_context")
    assert refused["error"]["data"]["reason"] == "PERMISSION_MISSING"
    assert "reasoning:execute:bounded_context" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"agent_id": "crawler", "secret": "wrong"}, 401, "agent_id or secret is wrong"),
        ({"agent_id": "nobody", "secret": SECRET}, 401, "agent_id or secret is wrong"),
        ({"agent_id": "crawler"}, 400, "agent_id (1-256 characters) and secret (1-1024 characters)"),
        ({"agent_id": "crawler", "secret": SECRET, "scope": "admin"}, 400, "nothing else"),
        ({"agent_id": 7, "secret": SECRET}, 400, "agent_id"),
        ({"agent_id": "a" * 257, "secret": SECRET}, 400, "agent_id"),
        ([], 400, "JSON object"),
    ],
)
async def test_what_is_wrong_is_said_without_repeating_it(
    client: httpx.AsyncClient, body: object, status: int, said: str
) -> None:
    answer = await client.post(PATH, json=body)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert SECRET not in answer.text


async def test_other_methods_types_and_sizes_are_refused(client: httpx.AsyncClient) -> None:
    assert (await client.get(PATH)).status_code == 405
    assert (await client.post(PATH, content=b"agent_id=crawler")).status_code == 415
    headers = {"content-type": "application/json"}
    assert (await client.post(PATH, content=b"x" * 8193, headers=headers)).status_code == 413
    for garbage in (b"", b"{", b"\xff", b"[" * 8000):
        assert (await client.post(PATH, content=garbage, headers=headers)).status_code == 400


async def test_guessing_is_answered_429_with_the_time_to_wait(client: httpx.AsyncClient) -> None:
    wrong = {"agent_id": "crawler", "secret": "wrong"}
    codes = [(await client.post(PATH, json=wrong)).status_code for _ in range(6)]
    assert codes == [401] * 5 + [429]
    answer = await client.post(PATH, json={"agent_id": "crawler", "secret": SECRET})
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60


async def test_without_agents_there_is_no_endpoint() -> None:
    async with running_server() as listening, make_http_client(base_url=listening.http) as client:
        answer = await client.post(PATH, json={"agent_id": "crawler", "secret": SECRET})
    assert answer.status_code == 404


async def test_decisions_are_in_the_audit_log_and_the_secret_is_nowhere(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await client.post(PATH, json={"agent_id": "crawler", "secret": "wrong"})
    found = (await client.post(PATH, json={"agent_id": "crawler", "secret": SECRET})).json()
    await execute(client, found["access_token"], "bounded_context")
    lines = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    assert [(line["operation"], line["outcome"], line["reason"], line["subject"]) for line in lines] == [
        ("IssueToken", "denied", "TOKEN_INVALID", ""),
        ("IssueToken", "allowed", "", "crawler"),
        ("Reason", "denied", "PERMISSION_MISSING", "crawler"),
    ]
    everything = json.dumps([{key: str(value) for key, value in vars(record).items()} for record in caplog.records])
    assert SECRET not in everything
    assert found["access_token"] not in everything


async def test_a_server_without_agents_says_what_to_add_and_which_token_there_is() -> None:
    async with running_server() as server, make_http_client(base_url=server.http) as client:
        answer = await client.post(PATH, json={"agent_id": "my-agent", "secret": "my-secret"})
    assert answer.status_code == 404
    assert "[auth.agents.NAME]" in answer.json()["error"]
    assert "--dev" in answer.json()["error"]

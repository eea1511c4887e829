"""Over both wires a call is one line of the audit log, with the id of the execution that it starts or uses."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.testing import running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from reasond_server.assembly.app import Listening

QUERY = "What is 6 times 7, said the walrus?"
UNKNOWN = "00000000-0000-4000-8000-000000000000"


def read_audit(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str, str]]:
    """Return the decisions since the last call."""
    lines: list[dict[str, Any]] = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    text = json.dumps([{name: str(value) for name, value in line.items()} for line in lines])
    assert "walrus" not in text
    assert all(line["call_id"] for line in lines if line["operation"] != "CallModel")
    caplog.clear()
    return [(line["operation"], line["outcome"], line["reason"], line["execution_id"]) for line in lines]


async def post(listening: Listening, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": listening.token}}
    async with make_http_client(base_url=listening.http) as client:
        return (await client.post("/api/v1/jsonrpc", json=body, timeout=180)).json()


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="reasond.audit")


async def test_starting_reading_and_deleting_over_grpc_name_the_execution(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server() as listening, reasond.AsyncClient(listening.grpc, token=listening.token) as client:
        done = await client.reason(QUERY)
        assert read_audit(caplog) == [("Reason", "allowed", "", done.execution_id)]
        async with client.reason_iterations(QUERY) as stream:
            ids = {event.execution_id async for event in stream}
        assert read_audit(caplog) == [("ReasonIterations", "allowed", "", ids.pop())]
        await client.get_execution(done.execution_id)
        await client.delete_execution(done.execution_id)
        with pytest.raises(reasond.NotFoundError):
            await client.get_execution(done.execution_id)

    assert read_audit(caplog) == [
        ("GetExecution", "allowed", "", done.execution_id),
        ("DeleteExecution", "allowed", "", done.execution_id),
        ("GetExecution", "denied", "EXECUTION_NOT_FOUND", done.execution_id),
    ]


async def test_starting_and_reading_over_jsonrpc_name_the_execution(caplog: pytest.LogCaptureFixture) -> None:
    async with running_server() as listening:
        done = (await post(listening, "reasoning.execute", query=QUERY))["result"]["execution_id"]
        await post(listening, "executions.get", execution_id=done)
        await post(listening, "executions.cancel", execution_id=UNKNOWN)
        await post(listening, "executions.list")
        await post(listening, "executions.get", execution_id=7)

    assert read_audit(caplog) == [
        ("Reason", "allowed", "", done),
        ("GetExecution", "allowed", "", done),
        ("CancelExecution", "denied", "EXECUTION_NOT_FOUND", UNKNOWN),
        ("ListExecutions", "allowed", "", ""),
        ("GetExecution", "allowed", "", ""),
    ]


async def test_a_request_that_is_sent_again_names_the_execution_that_it_began(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_server() as listening, reasond.AsyncClient(listening.grpc, token=listening.token) as client:
        first = await client.reason(QUERY, request_id="mine")
        again = await client.reason(QUERY, request_id="mine")

    assert first.execution_id == again.execution_id
    assert read_audit(caplog) == [("Reason", "allowed", "", first.execution_id)] * 2


async def test_an_unread_large_body_has_its_own_audit_line(caplog: pytest.LogCaptureFixture) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {"query": "walrus" * 20_000}}
    async with running_server() as listening, make_http_client(base_url=listening.http) as client:
        found = await client.post("/api/v1/jsonrpc", json=body, headers={"authorization": "Bearer not.a.token"})

    assert found.status_code == 401
    assert read_audit(caplog) == [("Unread", "denied", "TOKEN_INVALID", "")]


async def test_limits_are_denials_of_the_call_and_budgets_of_the_model_call(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"REASOND__LIMITS__REQUESTS_PER_MINUTE": "1", "REASOND__LIMITS__TOKENS_PER_DAY": "1"}
    async with running_server(environ=environ) as listening:
        broke = (await post(listening, "reasoning.execute", query=QUERY))["error"]["data"]
        await post(listening, "reasoning.execute", query=QUERY)
        async with reasond.AsyncClient(listening.grpc, token=listening.token) as client:
            with pytest.raises(reasond.ResourceExhaustedError):
                await client.reason(QUERY)

    (start, call, second, third) = read_audit(caplog)
    assert broke["reason"] == "TOKEN_BUDGET_EXHAUSTED"
    assert start[:3] == ("Reason", "allowed", "")
    assert call == ("CallModel", "denied", "TOKEN_BUDGET_EXHAUSTED", start[3])
    assert second == third == ("Reason", "denied", "RATE_LIMITED", "")

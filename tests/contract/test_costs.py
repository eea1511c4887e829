"""What a run cost, by the prices of the operator: in its steps, its result, lists and metrics, over both wires."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.testing import running_server
from tests.http_clients import make_http_client
from tests.unit.llm.openai.odd_server import Manners, odd_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.assembly.app import Listening

PRICES = {"REASOND__LLM__INPUT_PRICE_USD": "2.5", "REASOND__LLM__OUTPUT_PRICE_USD": "10"}


def environ_of(base_url: str, prices: Mapping[str, str]) -> Mapping[str, str]:
    return {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": "m",
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__API_KEY_ENV": "",
        **prices,
    }


async def post(server: Listening, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": server.token}}
    async with make_http_client(base_url=server.http, timeout=180) as client:
        return (await client.post("/api/v1/jsonrpc", json=body)).json()["result"]


async def test_a_run_tells_what_it_cost_wherever_it_tells_its_tokens() -> None:
    with odd_server(Manners(usage=True)) as base_url:
        async with (
            running_server(environ=environ_of(base_url, PRICES)) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.reason("How many words?", strategy="chain_of_thought", timeout_s=180)
            usage = result.metrics.usage
            wanted = (usage.input_tokens * 2.5 + usage.output_tokens * 10) / 1e6
            assert wanted > 0
            assert usage.cost_usd == pytest.approx(wanted)
            found = await post(server, "executions.get", execution_id=result.execution_id)
            (listed,) = (await post(server, "executions.list"))["executions"]
            async with make_http_client(base_url=server.http, timeout=180) as http:
                told = await http.get("/metrics", headers={"Authorization": f"Bearer {server.token}"})
    assert found["reasoning"]["metrics"]["usage"]["cost_usd"] == pytest.approx(wanted)
    assert listed["usage"]["cost_usd"] == pytest.approx(wanted)
    counted = re.search(r'reasond_cost_usd_total\{[^}]*model="m"[^}]*\} (\S+)', told.text)
    assert counted is not None
    assert float(counted[1]) == pytest.approx(wanted)


async def test_without_prices_the_cost_is_unknown_and_not_zero() -> None:
    with odd_server(Manners(usage=True)) as base_url:
        async with (
            running_server(environ=environ_of(base_url, {})) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            result = await client.reason("How many words?", strategy="chain_of_thought", timeout_s=180)
            (listed,) = (await post(server, "executions.list"))["executions"]
    assert not result.metrics.usage.HasField("cost_usd")
    assert listed["usage"]["cost_usd"] is None

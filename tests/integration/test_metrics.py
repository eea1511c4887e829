"""The metrics of a real server after real calls: each call is counted once, in the right place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reasond import AsyncClient, Budget, ReasondError
from reasond_server.access.agent_secrets import hash_secret
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from tests.faults.test_metrics_of_faults import until
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.assembly.app import Listening

OWN_LISTENER = {"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}
REASON = 'method="reasond.v1.ReasoningService/Reason",transport="grpc"'


async def scrape(listening: Listening) -> Mapping[str, float]:
    async with make_http_client() as client:
        text = (await client.get(listening.metrics)).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


async def post(listening: Listening, method: str, *, accept: str = "application/json", **params: object) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"authorization": f"Bearer {listening.token}", "accept": accept}
    async with make_http_client() as client:
        return (await client.post(f"{listening.http}/api/v1/jsonrpc", json=body, headers=headers)).text


async def test_a_unary_call_is_counted_in_every_room_once() -> None:
    model = ScriptedModel(["<answer>4</answer>"])
    async with running_server(model=model, environ=OWN_LISTENER) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            await client.reason("2 + 2?", strategy="chain_of_thought")
        found = await scrape(listening)
    ends = 'finish_reason="answered",strategy="chain_of_thought"'
    assert found[f'reasond_calls_total{{code="OK",{REASON}}}'] == 1
    assert found[f'reasond_call_duration_seconds_count{{code="OK",{REASON}}}'] == 1
    assert found[f"reasond_executions_total{{{ends}}}"] == 1
    assert found['reasond_execution_duration_seconds_count{strategy="chain_of_thought"}'] == 1
    assert found['reasond_steps_total{strategy="chain_of_thought"}'] == 1
    assert sum(value for name, value in found.items() if name.startswith("reasond_model_calls_total")) == 1
    tokens = [name for name in found if name.startswith("reasond_tokens_total")]
    assert len([name for name in tokens if f'model="{model.name}",strategy="chain_of_thought"' in name]) == 2
    assert found["reasond_executions_running"] == 0
    assert found["reasond_ready"] == 1


async def test_json_rpc_calls_are_counted_by_method_and_streams_when_they_end() -> None:
    model = FunctionModel(lambda _: "<answer>4</answer>")
    async with running_server(model=model, environ=OWN_LISTENER) as listening:
        await post(listening, "reasoning.execute", query="2 + 2?")
        await post(listening, "reasoning.execute", query="")
        await post(listening, "no.such.method")
        await post(listening, "reasoning.execute", accept="text/event-stream", query="2 + 2?")
        found = await scrape(listening)
    of = 'method="reasoning.execute",transport="jsonrpc"'
    assert found[f'reasond_calls_total{{code="OK",{of}}}'] == 2
    assert found[f'reasond_calls_total{{code="INVALID_ARGUMENT",{of}}}'] == 1
    assert found['reasond_calls_total{code="UNIMPLEMENTED",method="other",transport="jsonrpc"}'] == 1
    assert found['reasond_errors_total{reason="METHOD_NOT_FOUND",transport="jsonrpc"}'] == 1
    assert found['reasond_errors_total{reason="INVALID_REQUEST",transport="jsonrpc"}'] == 1
    assert found['reasond_streams_open{transport="jsonrpc"}'] == 0
    assert found['reasond_http_requests_total{route="/api/v1/jsonrpc",status="200"}'] == 4


async def test_a_stream_is_open_while_it_runs_and_its_place_is_taken() -> None:
    hold = asyncio.Event()
    model = ScriptedModel([Reply(text="<answer>4</answer>", hold=hold)])
    async with (
        running_server(model=model, environ=OWN_LISTENER) as listening,
        AsyncClient(listening.grpc, token=listening.token) as client,
    ):
        stream = aiter(client.reason_iterations("2 + 2?", strategy="chain_of_thought"))
        await anext(stream)
        during = await scrape(listening)
        hold.set()
        async for _ in stream:
            pass
        after = await scrape(listening)
    assert during['reasond_streams_open{transport="grpc"}'] == 1
    assert during['reasond_calls_in_flight{transport="grpc"}'] == 1
    assert during["reasond_executions_running"] == 1
    assert after['reasond_streams_open{transport="grpc"}'] == 0
    assert after["reasond_executions_running"] == 0


async def test_denials_are_counted_by_kind_and_nobody_is_named() -> None:
    limits = {"REASOND__LIMITS__REQUESTS_PER_HOUR": "1", "REASOND__LIMITS__TOKENS_PER_DAY": "1000000"}
    model = FunctionModel(lambda _: "<answer>4</answer>")
    async with running_server(model=model, environ={**OWN_LISTENER, **limits}) as listening:
        async with AsyncClient(listening.grpc, token="nonsense") as stranger:
            with pytest.raises(ReasondError):
                await stranger.reason("2 + 2?")
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            await client.reason("2 + 2?")
            with pytest.raises(ReasondError):
                await client.reason("3 + 3?", timeout_s=5)
        found = await scrape(listening)
    assert found['reasond_denials_total{kind="authentication"}'] == 1
    assert found['reasond_denials_total{kind="rate"}'] >= 1
    reserved, settled, refunded = (
        found[f'reasond_budget_tokens_total{{event="{event}"}}'] for event in ("reserved", "settled", "refunded")
    )
    assert reserved == settled + refunded > settled > 0
    assert not any("developer" in name for name in found)


async def test_waiting_and_refused_callers_are_counted_once() -> None:
    hold = asyncio.Event()
    model = ScriptedModel([Reply(text="<answer>4</answer>", hold=hold), "<answer>4</answer>"])
    places = {
        "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "1",
        "REASOND__REASONING__PERFORMANCE__MAX_QUEUED_REQUESTS": "1",
        "REASOND__REASONING__PERFORMANCE__QUEUE_TIMEOUT_MS": "60000",
    }
    async with running_server(model=model, environ={**OWN_LISTENER, **places}) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            two = [asyncio.create_task(client.reason("2 + 2?", strategy="chain_of_thought")) for _ in range(2)]
            async with asyncio.timeout(120):
                while not (during := await scrape(listening))["reasond_executions_queued"]:  # noqa: ASYNC110 - the state is visible only in a scrape
                    await asyncio.sleep(0.05)
            refused = await post(listening, "reasoning.execute", query="2 + 2?")
            hold.set()
            await asyncio.gather(*two)
        found = await scrape(listening)
    assert '"OVERLOADED"' in refused
    assert (during["reasond_executions_running"], during["reasond_execution_places"]) == (1, 1)
    assert found['reasond_queue_wait_seconds_count{outcome="admitted"}'] == 1
    assert found['reasond_denials_total{kind="overload"}'] == 1
    assert found['reasond_errors_total{reason="OVERLOADED",transport="jsonrpc"}'] == 1
    assert (found["reasond_executions_queued"], found["reasond_executions_running"]) == (0, 0)


async def test_refused_tokens_and_scrapes_count_as_denials() -> None:
    secret = {"REASOND__AUTH__AGENTS__CRAWLER__SECRET_HASH": hash_secret("the secret of the crawler")}
    async with running_server(environ={**OWN_LISTENER, **secret}) as listening:
        async with make_http_client(base_url=listening.http) as client:
            guess = {"agent_id": "crawler", "secret": "a guess"}
            assert (await client.post("/api/v1/auth/token", json=guess)).status_code == 401
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/metrics", headers={"authorization": "Bearer nonsense"})).status_code == 401
        found = await scrape(listening)
    assert found['reasond_denials_total{kind="authentication"}'] == 3
    assert found['reasond_errors_total{reason="TOKEN_INVALID",transport="http"}'] == 2
    assert found['reasond_errors_total{reason="TOKEN_MISSING",transport="http"}'] == 1


async def test_a_run_that_fails_counts_as_failed_with_its_reason() -> None:
    async with running_server(model=FunctionModel(lambda _: "x"), environ=OWN_LISTENER) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            with pytest.raises(ReasondError):
                await client.reason("2 + 2?", budget=Budget(max_total_tokens=1))
        refused = 'reasond_errors_total{reason="TOKEN_BUDGET_EXHAUSTED",transport="grpc"}'
        failed = 'reasond_executions_total{finish_reason="failed",strategy="chain_of_thought"}'
        found = await until(listening.metrics, lambda found: found.get(refused, 0) >= 1 and found.get(failed, 0) >= 1)
    assert (found[refused], found[failed]) == (1, 1)
    assert found['reasond_denials_total{kind="budget"}'] == 0


async def test_with_metrics_off_there_is_no_such_address() -> None:
    off = {**OWN_LISTENER, "REASOND__REASONING__PERFORMANCE__ENABLE_METRICS": "false"}
    async with running_server(environ=off) as listening, make_http_client() as client:
        assert listening.metrics == ""
        headers = {"authorization": f"Bearer {listening.token}"}
        assert (await client.get(f"{listening.http}/metrics", headers=headers)).status_code == 404


async def test_the_http_listener_serves_metrics_only_to_permitted_tokens() -> None:
    async with running_server() as listening, make_http_client() as client:
        headers = {"authorization": f"Bearer {listening.token}"}
        assert (await client.get(f"{listening.http}/metrics")).status_code == 401
        answer = await client.get(f"{listening.http}/metrics", headers=headers)
        assert answer.status_code == 200
        assert "reasond_ready 1.0" in answer.text

"""best_of_n with the schema of the answer as its verifier is the same over both wires."""

from __future__ import annotations

from typing import Any

import pytest

from reasond import AsyncClient, ReasondError
from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client

QUERY = "What is six times seven?"
CONFIG = {"verifier": "schema", "samples": 3}


class Guessing(FunctionModel):
    """Answers with a word, then with a number, and so on."""

    def __init__(self) -> None:
        super().__init__(lambda _: f"<answer>{('unknown', '42')[(len(self.requests) - 1) % 2]}</answer>")


async def test_the_first_answer_that_satisfies_the_schema_is_given_with_its_score_over_both_wires() -> None:
    schema = {"type": "integer"}
    async with running_server(model=Guessing()) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            over = await client.reason(QUERY, strategy="best_of_n", config=CONFIG, answer_schema=schema)
        params: dict[str, Any] = {"query": QUERY, "strategy": "best_of_n", "strategy_config": CONFIG}
        params |= {"answer_schema": schema, "auth_token": server.token}
        request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
        async with make_http_client(timeout=120) as http:
            told = (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).json()["result"]
    figures = told["metrics"]["strategy_specific"]
    assert over.answer == over.answer_json == told["answer"] == "42"
    assert told["answer_json"] == 42
    assert (figures["samples"], figures["answers"][0]) == (2, {"answer": "42", "votes": 1, "score": 1.0})
    assert over.metrics.best_of_n.answers[0].score == 1
    assert over.metrics.usage.model_calls == told["metrics"]["usage"]["model_calls"] == 2


async def test_a_task_without_a_schema_is_refused_before_a_call() -> None:
    model = Guessing()
    async with running_server(model=model) as server, AsyncClient(server.grpc, token=server.token) as client:
        with pytest.raises(ReasondError, match="which has none") as refused:
            await client.reason(QUERY, strategy="best_of_n", config=CONFIG)
    assert (refused.value.reason, model.requests) == ("INVALID_CONFIG", [])

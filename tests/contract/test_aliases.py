"""A JSON-RPC alias always stands for its strategy, whether the strategy is enabled or not."""

from __future__ import annotations

import pytest

from reasond_server.services.reasoning import DECLARATION
from reasond_server.testing import running_server
from tests.http_clients import make_http_client


@pytest.mark.parametrize(("name", "strategy"), sorted(DECLARATION.aliases.items()))
async def test_an_alias_whose_strategy_is_not_enabled_says_which_are(name: str, strategy: str) -> None:
    enabled = {"REASOND__REASONING__ENABLED_STRATEGIES": '["self_consistency"]'}
    async with running_server(environ=enabled) as server, make_http_client() as http:
        params = {"query": "What is six times seven?", "auth_token": server.token}
        request = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
        error = (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).json()["error"]
    assert (error["code"], error["message"]) == (-32001, f"Strategy not found: {strategy!r}")
    assert "'self_consistency'" in error["data"]["remedy"]

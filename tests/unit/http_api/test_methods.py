"""Every method over a real socket: its params, its result and its permissions."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.config import ReasoningSettings
from reasond_server.services import DECLARED
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Principal
from tests.unit.http_api.parts import methods_of

if TYPE_CHECKING:
    from reasond_server.access.permissions import Operation
    from tests.unit.http_api.parts import ServeSite, Site
METHODS = {name: rpc for service in DECLARED for name, rpc in service.methods.items()}
ALIASES = {name: strategy for service in DECLARED for name, strategy in service.aliases.items()}
SMALL_CARD = {"id": "helper", "capabilities": ["reasoning.strategy.chain_of_thought"], "supported_methods": []}


def test_every_declared_method_is_there(site: Site) -> None:
    table = methods_of(site.core.reasoning, site.agents)
    assert set(table.names) == set(METHODS)
    assert set(ALIASES) < set(METHODS)
    assert table.get("nope") is None


async def test_every_method_asks_for_the_permission_of_its_operation(serve_site: ServeSite) -> None:
    asked: list[str] = []

    def require(principal: Principal, operation: Operation) -> None:
        assert principal.subject == "alice"
        asked.append(operation.name)

    site = await serve_site(require_permission=require)
    for name, operation in METHODS.items():
        await site.call(name)
        assert asked == [operation], name
        asked.clear()


async def test_no_method_answers_without_a_token(site: Site) -> None:
    for name in METHODS:
        response = await site.post({"jsonrpc": "2.0", "method": name, "params": {"unknown": 1}, "id": 1})
        error = response.json()["error"]
        assert (error["code"], error["data"]["reason"]) == (-32603, "TOKEN_MISSING"), name


@pytest.mark.parametrize(("name", "strategy"), sorted(ALIASES.items()))
async def test_an_alias_executes_its_strategy(name: str, strategy: str, site: Site) -> None:
    answer = await site.call(name, {"query": "What is six times seven?"})
    assert answer["result"]["strategy_used"] == strategy
    assert answer["result"]["answer"] == "42"


async def test_strategies_are_listed_with_their_schemas_and_the_model(site: Site) -> None:
    result = (await site.call("reasoning.list_strategies"))["result"]
    names = list(ReasoningSettings().enabled_strategies)
    assert [each["name"] for each in result["strategies"]] == names
    chain = next(each for each in result["strategies"] if each["name"] == "chain_of_thought")
    assert chain["config_schema"]["properties"]["max_tokens"]["maximum"] == 32768
    assert (result["model"], result["warnings"]) == ("function", [])


async def test_an_execution_can_be_read_listed_and_forgotten(site: Site) -> None:
    done = (await site.call("reasoning.execute", {"query": "q", "request_id": "mine"}))["result"]
    named = {"execution_id": done["execution_id"]}
    got = (await site.call("executions.get", named))["result"]
    assert got["reasoning"] == done
    assert (got["execution"]["state"], got["execution"]["request_id"]) == ("succeeded", "mine")
    listed = (await site.call("executions.list", {"finish_reason": "answered", "page_size": 1}))["result"]
    assert listed == {"executions": [got["execution"]], "next_page_token": ""}
    assert (await site.call("executions.list", {"strategy": "bounded_context"}))["result"]["executions"] == []
    assert (await site.call("executions.cancel", named))["result"] == {"execution": got["execution"]}
    assert (await site.call("executions.delete", named))["result"] == {}
    error = (await site.call("executions.get", named))["error"]
    assert (error["code"], error["data"]["reason"]) == (-32603, "EXECUTION_NOT_FOUND")


async def test_the_same_request_id_is_the_same_execution(site: Site) -> None:
    first, again = [await site.call("reasoning.execute", {"query": "q", "request_id": "once"}) for _ in range(2)]
    assert first["result"] == again["result"]
    assert len(site.model.requests) == 1


async def test_a_running_execution_can_be_cancelled_by_another_call(serve_site: ServeSite) -> None:
    hold = asyncio.Event()
    site = await serve_site(FunctionModel(lambda _: Reply(text="never", hold=hold)))
    running = asyncio.create_task(site.call("reasoning.execute", {"query": "q"}))
    execution = await _only_execution(site)
    cancelled = (await site.call("executions.cancel", {"execution_id": execution["execution_id"]}))["result"]
    assert cancelled["execution"]["state"] == "cancelled"
    assert (await running)["result"]["finish_reason"] == "cancelled"


async def _only_execution(site: Site) -> dict[str, Any]:
    """Wait for the only execution and return it."""
    async with asyncio.timeout(120):
        while True:
            found = (await site.call("executions.list"))["result"]["executions"]
            if found:
                return dict(found[0])


async def test_another_tenants_execution_is_not_there(site: Site) -> None:
    done = (await site.call("reasoning.execute", {"query": "q"}))["result"]
    foreign = site.token(subject="mallory", tenant="elsewhere")
    answer = await site.call("executions.get", {"execution_id": done["execution_id"], "auth_token": foreign})
    assert answer["error"]["data"]["reason"] == "EXECUTION_NOT_FOUND"


async def test_the_servers_card_and_those_of_agents_can_be_read(site: Site) -> None:
    own = (await site.call("agent.get_card"))["result"]
    assert json.loads(own["card_json"]) == own["card"]
    assert set(own["supported_methods"]) == set(METHODS)
    assert "reasoning.strategy.bounded_context" in own["capabilities"]
    caller = Principal(subject="alice", tenant="sub:alice", permissions=frozenset())
    await site.agents.register(caller, card_json=json.dumps(SMALL_CARD))
    theirs = (await site.call("agent.get_card", {"agent_id": "helper"}))["result"]
    assert theirs["card_json"] == json.dumps(SMALL_CARD)
    listed = (await site.call("agent.list", {"capabilities": SMALL_CARD["capabilities"]}))["result"]
    assert [agent["agent_id"] for agent in listed["agents"]] == ["helper"]
    assert (await site.call("agent.list", {"capabilities": ["other"]}))["result"]["agents"] == []
    error = (await site.call("agent.get_card", {"agent_id": "nobody"}))["error"]
    assert error["data"]["reason"] == "AGENT_NOT_FOUND"


async def test_a_task_may_name_an_agent(site: Site) -> None:
    caller = Principal(subject="alice", tenant="sub:alice", permissions=frozenset())
    await site.agents.register(caller, card_json=json.dumps(SMALL_CARD))
    answer = await site.call("reasoning.execute", {"query": "q", "agent": "helper"})
    assert answer["result"]["strategy_source"] == "agent"
    refused = await site.call("reasoning.bounded_context", {"query": "q", "agent": "helper"})
    assert refused["error"]["code"] == -32002

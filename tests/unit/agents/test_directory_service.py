from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from reasond_server.agents.cards import build_server_card, compute_etag
from reasond_server.agents.directory import AgentDirectory, AgentService
from reasond_server.errors.request import AgentNotFoundError, InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.types import Principal

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset())
MALLORY = Principal(subject="mallory", tenant="evil", permissions=frozenset())
SMALL = '{"id": "small", "capabilities": ["reasoning.strategy.react"], "supported_methods": ["reasoning.execute"]}'


@pytest.fixture
def service() -> AgentService:
    card = build_server_card(
        name="reasond",
        version="0.1.0",
        grpc_url="127.0.0.1:1",
        jsonrpc_url="",
        strategies={"react": "Acts."},
        supported_methods=["executions.get"],
    )
    directory = AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=10, now=lambda: NOW)
    return AgentService(directory=directory, server_card=lambda: card, max_card_bytes=1024)


async def test_this_servers_card_is_served_without_an_id(service: AgentService) -> None:
    view = await service.get_card(ALICE)
    assert view == service.build_own_card()
    assert json.loads(view.card_json) == view.card
    assert view.etag == compute_etag(view.card_json)
    assert view.supported_methods == ("reasoning.execute", "executions.get")
    assert view.capabilities == ("reasoning.strategy.react",)


async def test_a_registered_card_is_served_byte_for_byte_to_its_tenant(service: AgentService) -> None:
    agent = await service.register(ALICE, card_json=SMALL)
    view = await service.get_card(ALICE, "small")
    assert view.card_json == SMALL
    assert view.etag == agent.etag
    assert view.supported_methods == ("reasoning.execute",)
    assert view.capabilities == ("reasoning.strategy.react",)
    with pytest.raises(AgentNotFoundError):
        await service.get_card(MALLORY, "small")
    assert not (await service.list(MALLORY)).agents
    assert [entry.agent_id for entry in (await service.list(ALICE)).agents] == ["small"]


async def test_an_id_may_be_given_twice_but_not_differently(service: AgentService) -> None:
    assert (await service.register(ALICE, card_json=SMALL, agent_id="small", ttl_s=1)).expire_time == (
        NOW + timedelta(seconds=1)
    )
    with pytest.raises(InvalidRequestError, match="agent_id is 'large', but the card says 'small'"):
        await service.register(ALICE, card_json=SMALL, agent_id="large")


@pytest.mark.parametrize("agent_id", ["-a", "a b", "a/b", "a" * 129, "a\n", "ä", "../x"])
async def test_an_id_of_another_form_is_refused_everywhere(service: AgentService, agent_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="agent_id must be"):
        await service.register(ALICE, card_json='{"capabilities": []}', agent_id=agent_id)
    with pytest.raises(InvalidRequestError, match="agent_id must be"):
        await service.get_card(ALICE, agent_id)
    with pytest.raises(InvalidRequestError, match="agent_id must be"):
        await service.delete(ALICE, agent_id)


async def test_an_agent_without_any_id_is_refused(service: AgentService) -> None:
    with pytest.raises(InvalidRequestError, match="agent_id must be"):
        await service.register(ALICE, card_json='{"capabilities": []}')


@pytest.mark.parametrize("ttl_s", [0, 0.99, -1, 2_592_001, float("nan"), float("inf")])
async def test_a_time_to_live_out_of_range_is_refused(service: AgentService, ttl_s: float) -> None:
    with pytest.raises(InvalidRequestError, match="ttl must be between 1 and 2592000 seconds"):
        await service.register(ALICE, card_json=SMALL, ttl_s=ttl_s)


async def test_a_card_over_the_limit_is_refused(service: AgentService) -> None:
    with pytest.raises(InvalidRequestError, match="must have at most 1024 bytes"):
        await service.register(ALICE, card_json=SMALL + " " * 1024)


@pytest.mark.parametrize("capabilities", [["x"] * 51, [""], ["x" * 257]])
async def test_a_filter_out_of_range_is_refused(service: AgentService, capabilities: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="capabilities must have at most 50 entries"):
        await service.list(ALICE, capabilities=capabilities)


async def test_an_agent_can_be_deleted_by_its_tenant_with_its_etag(service: AgentService) -> None:
    agent = await service.register(ALICE, card_json=SMALL)
    with pytest.raises(AgentNotFoundError):
        await service.delete(MALLORY, "small")
    with pytest.raises(EtagMismatchError):
        await service.delete(ALICE, "small", etag="old")
    await service.delete(ALICE, "small", etag=agent.etag)
    with pytest.raises(AgentNotFoundError):
        await service.get_card(ALICE, "small")

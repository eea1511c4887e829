from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from reasond_server.agents.cards import ParsedCard, parse_card
from reasond_server.agents.directory import AgentDirectory, AgentPage
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.request import AgentNotFoundError, InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError
from reasond_server.storage.postgres_pool import PostgresPool
from reasond_server.storage.sqlite_file import SqliteFile, open_memory
from reasond_server.storage.transactions import (
    MemoryTransactions,
    PostgresTransactions,
    SqliteTransactions,
    Transactions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that moves only when the test sets it."""

    def __init__(self) -> None:
        self.time = NOW

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def make_directory(
    request: pytest.FixtureRequest, clock: Clock, tmp_path: Path
) -> AsyncGenerator[Callable[..., AgentDirectory], None]:
    """A function that makes an empty directory; each test runs with every kind of directory."""
    place: SqliteFile | PostgresPool | None = None
    if request.param == "memory":
        rows: Transactions = MemoryTransactions(open_memory())
    elif request.param == "sqlite":
        place = await SqliteFile.open(tmp_path / "reasond.db")
        rows = SqliteTransactions(place)
    else:
        request.getfixturevalue("patient_pool")
        place = await PostgresPool.open(request.getfixturevalue("postgres_url"))
        rows = PostgresTransactions(place)
    yield lambda max_agents, per_tenant=None: AgentDirectory(
        rows=rows, max_agents=max_agents, max_agents_per_tenant=per_tenant, now=clock
    )
    if place is not None:
        await place.aclose()


@pytest.fixture
def directory(make_directory: Callable[..., AgentDirectory]) -> AgentDirectory:
    return make_directory(200)


def card(*strategies: str) -> ParsedCard:
    capabilities = ", ".join(f'"reasoning.strategy.{strategy}"' for strategy in strategies)
    return parse_card(f'{{"capabilities": [{capabilities}]}}', max_bytes=1024)


def ids(page: AgentPage) -> list[str]:
    return [agent.agent_id for agent in page.agents]


async def test_a_registered_agent_can_be_read(directory: AgentDirectory) -> None:
    agent = await directory.register(tenant="acme", agent_id="a", parsed=card("react"))
    assert await directory.get(tenant="acme", agent_id="a") == agent
    assert agent.strategies == ("react",)
    assert (agent.create_time, agent.update_time, agent.expire_time) == (NOW, NOW, None)


async def test_registering_again_replaces_the_card_and_keeps_the_birthday(
    directory: AgentDirectory, clock: Clock
) -> None:
    first = await directory.register(tenant="acme", agent_id="a", parsed=card("react"))
    clock.advance(5)
    second = await directory.register(tenant="acme", agent_id="a", parsed=card("tree_of_thought"), ttl_s=60)
    assert second.create_time == NOW
    assert second.update_time == NOW + timedelta(seconds=5)
    assert second.expire_time == NOW + timedelta(seconds=65)
    assert second.strategies == ("tree_of_thought",)
    assert second.etag != first.etag


async def test_a_card_that_comes_back_does_not_bring_its_etag_back(directory: AgentDirectory) -> None:
    etags = [(await directory.register(tenant="acme", agent_id="a", parsed=card(strategy))).etag for strategy in "xyx"]
    assert len(set(etags)) == 3


async def test_another_tenants_agent_is_not_there(directory: AgentDirectory) -> None:
    await directory.register(tenant="acme", agent_id="a", parsed=card())
    with pytest.raises(AgentNotFoundError, match="Agent not found: 'a'"):
        await directory.get(tenant="evil", agent_id="a")
    with pytest.raises(AgentNotFoundError):
        await directory.delete(tenant="evil", agent_id="a")
    assert ids(await directory.list(tenant="evil")) == []
    await directory.register(tenant="evil", agent_id="a", parsed=card("react"))
    assert (await directory.get(tenant="acme", agent_id="a")).strategies == ()


async def test_an_agent_lapses_with_its_time(directory: AgentDirectory, clock: Clock) -> None:
    await directory.register(tenant="acme", agent_id="a", parsed=card(), ttl_s=10)
    clock.advance(9.9)
    assert ids(await directory.list(tenant="acme")) == ["a"]
    clock.advance(0.1)
    assert ids(await directory.list(tenant="acme")) == []
    with pytest.raises(AgentNotFoundError):
        await directory.get(tenant="acme", agent_id="a")


async def test_a_lapsed_agent_that_returns_is_a_new_one(directory: AgentDirectory, clock: Clock) -> None:
    lapsed = await directory.register(tenant="acme", agent_id="a", parsed=card(), ttl_s=10)
    clock.advance(10)
    with pytest.raises(AgentNotFoundError):
        await directory.register(tenant="acme", agent_id="a", parsed=card(), etag=lapsed.etag)
    assert (await directory.register(tenant="acme", agent_id="a", parsed=card())).create_time == clock.time


async def test_an_etag_guards_updates_and_deletion(directory: AgentDirectory) -> None:
    old = await directory.register(tenant="acme", agent_id="a", parsed=card())
    new = await directory.register(tenant="acme", agent_id="a", parsed=card(), etag=old.etag)
    with pytest.raises(EtagMismatchError, match="has changed since"):
        await directory.register(tenant="acme", agent_id="a", parsed=card(), etag=old.etag)
    with pytest.raises(EtagMismatchError):
        await directory.delete(tenant="acme", agent_id="a", etag=old.etag)
    await directory.delete(tenant="acme", agent_id="a", etag=new.etag)
    with pytest.raises(AgentNotFoundError):
        await directory.delete(tenant="acme", agent_id="a")


async def test_an_etag_for_an_agent_that_never_was_is_refused(directory: AgentDirectory) -> None:
    with pytest.raises(AgentNotFoundError):
        await directory.register(tenant="acme", agent_id="a", parsed=card(), etag="x")


async def test_a_full_directory_refuses_new_agents_only(
    make_directory: Callable[..., AgentDirectory], clock: Clock
) -> None:
    directory = make_directory(2)
    await directory.register(tenant="acme", agent_id="a", parsed=card())
    await directory.register(tenant="acme", agent_id="b", parsed=card(), ttl_s=10)
    await directory.register(tenant="acme", agent_id="a", parsed=card())
    with pytest.raises(StoreFullError, match="holds 2 agents"):
        await directory.register(tenant="acme", agent_id="c", parsed=card())
    clock.advance(10)
    await directory.register(tenant="acme", agent_id="c", parsed=card())
    assert ids(await directory.list(tenant="acme")) == ["a", "c"]


async def test_a_tenant_that_registers_all_it_can_leaves_room_for_others(
    make_directory: Callable[..., AgentDirectory], clock: Clock
) -> None:
    directory = make_directory(3, 2)
    await directory.register(tenant="greedy", agent_id="a", parsed=card())
    await directory.register(tenant="greedy", agent_id="b", parsed=card(), ttl_s=10)
    with pytest.raises(StoreFullError, match="tenant has registered 2 agents") as refused:
        await directory.register(tenant="greedy", agent_id="c", parsed=card())
    assert "agents.max_agents_per_tenant" in refused.value.remedy
    await directory.register(tenant="acme", agent_id="a", parsed=card())
    await directory.register(tenant="greedy", agent_id="a", parsed=card())
    clock.advance(10)
    await directory.register(tenant="greedy", agent_id="c", parsed=card())


async def test_a_list_holds_agents_with_all_the_capabilities(directory: AgentDirectory) -> None:
    await directory.register(tenant="acme", agent_id="one", parsed=card("react"))
    await directory.register(tenant="acme", agent_id="both", parsed=card("react", "chain_of_thought"))
    wanted = ["reasoning.strategy.chain_of_thought", "reasoning.strategy.react"]
    assert ids(await directory.list(tenant="acme", capabilities=wanted)) == ["both"]
    assert ids(await directory.list(tenant="acme", capabilities=wanted[1:])) == ["both", "one"]
    assert ids(await directory.list(tenant="acme", capabilities=["fly"])) == []


@pytest.mark.parametrize(("page_size", "expected"), [(0, [50, 50, 20]), (100, [100, 20]), (1000, [100, 20])])
async def test_pages_hold_every_agent_once_in_order(
    directory: AgentDirectory, page_size: int, expected: list[int]
) -> None:
    names = [f"agent-{index:03}" for index in range(120)]
    for name in reversed(names):
        await directory.register(tenant="acme", agent_id=name, parsed=card("react"))
    seen, sizes, token = [], [], ""
    while True:
        page = await directory.list(
            tenant="acme", capabilities=["reasoning.strategy.react"], page_size=page_size, page_token=token
        )
        seen += ids(page)
        sizes.append(len(page.agents))
        token = page.next_page_token
        if not token:
            break
    assert seen == names
    assert sizes == expected


async def test_a_page_that_ends_with_the_last_agent_is_the_last_page(directory: AgentDirectory) -> None:
    for name in ("a", "b"):
        await directory.register(tenant="acme", agent_id=name, parsed=card())
    assert not (await directory.list(tenant="acme", page_size=2)).next_page_token


async def test_paging_goes_on_after_an_agent_that_was_deleted(directory: AgentDirectory) -> None:
    for name in ("a", "b", "c"):
        await directory.register(tenant="acme", agent_id=name, parsed=card())
    token = (await directory.list(tenant="acme", page_size=1)).next_page_token
    await directory.delete(tenant="acme", agent_id="a")
    assert ids(await directory.list(tenant="acme", page_token=token)) == ["b", "c"]


async def test_a_token_belongs_to_its_filter(directory: AgentDirectory) -> None:
    for name in ("a", "b"):
        await directory.register(tenant="acme", agent_id=name, parsed=card("react"))
    token = (await directory.list(tenant="acme", page_size=1)).next_page_token
    with pytest.raises(InvalidRequestError, match="page_token"):
        await directory.list(tenant="acme", capabilities=["reasoning.strategy.react"], page_token=token)


@pytest.mark.parametrize(
    "token",
    ["x", "!!!!", "YQ==", "\ud800", "é", "A" * 1000, base64.urlsafe_b64encode(b"\xff\xff").decode(), "Og=="],
)
async def test_a_token_that_we_did_not_make_is_refused(directory: AgentDirectory, token: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await directory.list(tenant="acme", page_token=token)
    assert [violation.field for violation in caught.value.violations] == ["page_token"]


async def test_a_negative_page_is_refused(directory: AgentDirectory) -> None:
    with pytest.raises(InvalidRequestError, match=r"page_size must be at least 0, got -1"):
        await directory.list(tenant="acme", page_size=-1)


async def test_one_of_many_holders_of_an_etag_wins(directory: AgentDirectory) -> None:
    old = await directory.register(tenant="acme", agent_id="a", parsed=card())

    async def update(strategy: str) -> bool:
        try:
            await directory.register(tenant="acme", agent_id="a", parsed=card(strategy), etag=old.etag)
        except EtagMismatchError:
            return False
        return True

    assert sum(await asyncio.gather(*(update(f"s{number}") for number in range(10)))) == 1


@pytest.mark.parametrize("agent_id", ["", "\x00", "\ud800", "a b", "x" * 500])
async def test_names_that_no_agent_has_are_not_found(directory: AgentDirectory, agent_id: str) -> None:
    with pytest.raises(AgentNotFoundError):
        await directory.get(tenant="acme", agent_id=agent_id)
    with pytest.raises(AgentNotFoundError):
        await directory.delete(tenant="acme", agent_id=agent_id)

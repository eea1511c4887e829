"""The directory of agents in the database of the event logs, over SQLite or PostgreSQL."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pydantic_core

from reasond_server.agents.directory import (
    AgentPage,
    DirectoryRoom,
    RegisteredAgent,
    build_agent,
    build_next_token,
    build_not_found_error,
    is_agent_id,
    read_list_bounds,
    require_etag,
)
from reasond_server.errors.base import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.agents.cards import ParsedCard
    from reasond_server.storage.transactions import Job, Rows, Transactions, Values

_VERSION = 1
_TRIES = 3
_ALIVE = "(expire_time IS NULL OR expire_time > :now)"
_FIND = f"SELECT body FROM agents WHERE tenant = :tenant AND agent_id = :agent_id AND {_ALIVE}"  # noqa: S608 - constants
_PAGE = f"""
SELECT body FROM agents WHERE tenant = :tenant AND agent_id > :after AND {_ALIVE} ORDER BY agent_id LIMIT :size
"""  # noqa: S608 - constants
_COUNT = f"""
SELECT count(*), count(CASE WHEN tenant = :tenant THEN 1 END) FROM agents WHERE {_ALIVE}
"""  # noqa: S608 - constants
# A statement changes nothing if its caller read an older state; the caller then reads again.
_INSERT = """
INSERT INTO agents (tenant, agent_id, etag, body, expire_time) VALUES (:tenant, :agent_id, :etag, :body, :expire_time)
ON CONFLICT (tenant, agent_id) DO UPDATE SET etag = excluded.etag, body = excluded.body,
    expire_time = excluded.expire_time WHERE agents.expire_time <= :now
RETURNING agent_id
"""
_UPDATE = """
UPDATE agents SET etag = :etag, body = :body, expire_time = :expire_time
WHERE tenant = :tenant AND agent_id = :agent_id AND etag = :known RETURNING agent_id
"""
_DELETE = "DELETE FROM agents WHERE tenant = :tenant AND agent_id = :agent_id AND etag = :known RETURNING agent_id"
_DROP_EXPIRED = "DELETE FROM agents WHERE expire_time <= :now RETURNING agent_id"


class StoredAgentDirectory:
    """An AgentDirectory over `rows`; `now` returns the time in UTC.

    It holds as many agents as `DirectoryRoom` allows; N processes that register at the same moment can exceed the
    limit by up to N agents.
    """

    def __init__(
        self,
        *,
        rows: Transactions,
        max_agents: int,
        now: Callable[[], datetime],
        max_agents_per_tenant: int | None = None,
    ) -> None:
        self._rows = rows
        self._room = DirectoryRoom(max_agents=max_agents, max_per_tenant=max_agents_per_tenant)
        self._now = now

    async def register(
        self, *, tenant: str, agent_id: str, parsed: ParsedCard, ttl_s: float | None = None, etag: str = ""
    ) -> RegisteredAgent:
        """See AgentDirectory."""
        for _ in range(_TRIES):
            now = self._now()
            known = await self._find(tenant, agent_id)
            if etag:
                require_etag(known, agent_id, etag)
            if known is None:
                await self._make_room(tenant, now)
            registration = uuid.uuid4().hex
            agent = build_agent(
                parsed, registration, tenant=tenant, agent_id=agent_id, known=known, now=now, ttl_s=ttl_s
            )
            values = {
                "tenant": tenant,
                "agent_id": agent_id,
                "etag": agent.etag,
                "body": _encode(agent),
                "expire_time": agent.expire_time.timestamp() if agent.expire_time else None,
                "now": now.timestamp(),
                "known": known.etag if known else "",
            }
            if await self._change(_UPDATE if known else _INSERT, values):
                return agent
        raise InternalError("an agent changed whenever it was to be registered")

    async def get(self, *, tenant: str, agent_id: str) -> RegisteredAgent:
        """See AgentDirectory."""
        agent = await self._find(tenant, agent_id)
        if agent is None:
            raise build_not_found_error(agent_id)
        return agent

    async def list(
        self, *, tenant: str, capabilities: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> AgentPage:
        """See AgentDirectory."""
        size, after = read_list_bounds(page_size, page_token, capabilities)
        wanted, found = set(capabilities), list[RegisteredAgent]()
        while len(found) <= size:
            values = {"tenant": tenant, "after": after, "now": self._now().timestamp(), "size": size + 1}
            agents = [_decode(body) for (body,) in await self._rows.select(_PAGE, values)]
            found += [agent for agent in agents if wanted.issubset(agent.capabilities)]
            if len(agents) <= size:
                break
            after = agents[-1].agent_id
        return AgentPage(agents=tuple(found[:size]), next_page_token=build_next_token(found, size, capabilities))

    async def delete(self, *, tenant: str, agent_id: str, etag: str = "") -> None:
        """See AgentDirectory."""
        for _ in range(_TRIES):
            known = await self.get(tenant=tenant, agent_id=agent_id)
            if etag:
                require_etag(known, agent_id, etag)
            values = {"tenant": tenant, "agent_id": agent_id, "known": known.etag}
            if await self._change(_DELETE, values):
                return
        raise InternalError("an agent changed whenever it was to be deleted")

    async def _find(self, tenant: str, agent_id: str) -> RegisteredAgent | None:
        """Return the agent; None if it does not exist or has expired."""
        if not is_agent_id(agent_id):
            return None
        values = {"tenant": tenant, "agent_id": agent_id, "now": self._now().timestamp()}
        rows = await self._rows.select(_FIND, values)
        return _decode(rows[0][0]) if rows else None

    async def _make_room(self, tenant: str, now: datetime) -> None:
        """Refuse another agent of `tenant` if there is no room for it; delete expired agents."""
        values = {"now": now.timestamp()}
        ((held, held_by_tenant),) = await self._rows.select(_COUNT, values | {"tenant": tenant})
        self._room.require(held=held, held_by_tenant=held_by_tenant)
        await self._change(_DROP_EXPIRED, values)

    async def _change(self, statement: str, values: Values) -> Rows:
        """Run a statement once and return its rows: told by them, its caller reads again and decides."""

        def run() -> Job[Rows]:
            return (yield statement, values)

        return await self._rows.change(run, repeats=False)


def _encode(agent: RegisteredAgent) -> str:
    return pydantic_core.to_json({"v": _VERSION, "agent": agent}).decode()


def _decode(text: str) -> RegisteredAgent:
    row = pydantic_core.from_json(text)
    if row["v"] != _VERSION:
        raise InternalError(
            f"a stored agent has version {row['v']}, this release reads {_VERSION}",
            remedy="Run the release that wrote it, or a later one.",
        )
    agent: dict[str, Any] = row["agent"]
    for name in ("create_time", "update_time", "expire_time"):
        agent[name] = agent[name] and datetime.fromisoformat(agent[name]).astimezone(UTC)
    for name in ("capabilities", "strategies", "supported_methods"):
        agent[name] = tuple(agent[name])
    return RegisteredAgent(**agent)

"""The directory of agents: the port and its implementation in memory. A tenant never sees the agents of another."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from reasond_server.agents.cards import compute_etag
from reasond_server.errors.base import Violation, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.request import AgentNotFoundError, InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.agents.cards import ParsedCard
    from reasond_server.types import Json

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 100

_AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_TOKEN_CHARACTERS = 512


@value
class RegisteredAgent:
    """An entry of the directory; with `expire_time` None it stays until it is deleted."""

    tenant: str
    agent_id: str
    card: Json
    card_json: str
    capabilities: Sequence[str]
    strategies: Sequence[str]
    supported_methods: Sequence[str]
    strategy_config: Mapping[str, Json]
    etag: str
    create_time: datetime
    update_time: datetime
    expire_time: datetime | None = None


@value
class AgentPage:
    """Agents ordered by id; the token is empty on the last page."""

    agents: Sequence[RegisteredAgent]
    next_page_token: str = ""


class AgentDirectory(Protocol):
    """Keeps agents by tenant and id."""

    async def register(
        self, *, tenant: str, agent_id: str, parsed: ParsedCard, ttl_s: float | None = None, etag: str = ""
    ) -> RegisteredAgent:
        """Store `parsed` under `agent_id`; it replaces an earlier card and expires after `ttl_s` seconds.

        Raises:
            AgentNotFoundError: `etag` is given and there is no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
            StoreFullError: there is no room for another agent.
        """
        ...

    async def get(self, *, tenant: str, agent_id: str) -> RegisteredAgent:
        """Return the agent.

        Raises:
            AgentNotFoundError: `tenant` has no such agent.
        """
        ...

    async def list(
        self, *, tenant: str, capabilities: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> AgentPage:
        """Return the agents of `tenant` that have all `capabilities`; `page_size` 0 means 50, more than 100 means 100.

        Raises:
            InvalidRequestError: the size is negative, or the token was not made for this list.
        """
        ...

    async def delete(self, *, tenant: str, agent_id: str, etag: str = "") -> None:
        """Remove the agent.

        Raises:
            AgentNotFoundError: `tenant` has no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
        """
        ...


class MemoryAgentDirectory:
    """Keeps as many agents in memory as `DirectoryRoom` allows; `now` returns the time in UTC."""

    def __init__(
        self, *, max_agents: int, now: Callable[[], datetime], max_agents_per_tenant: int | None = None
    ) -> None:
        self._room = DirectoryRoom(max_agents=max_agents, max_per_tenant=max_agents_per_tenant)
        self._now = now
        self._agents: dict[tuple[str, str], RegisteredAgent] = {}
        self._revision = 0

    async def register(
        self, *, tenant: str, agent_id: str, parsed: ParsedCard, ttl_s: float | None = None, etag: str = ""
    ) -> RegisteredAgent:
        """See AgentDirectory."""
        now = self._now()
        known = self._find(tenant, agent_id)
        if etag:
            require_etag(known, agent_id, etag)
        if known is None:
            self._make_room(tenant)
        self._revision += 1
        registration = str(self._revision)
        agent = build_agent(parsed, registration, tenant=tenant, agent_id=agent_id, known=known, now=now, ttl_s=ttl_s)
        self._agents[tenant, agent_id] = agent
        return agent

    async def get(self, *, tenant: str, agent_id: str) -> RegisteredAgent:
        """See AgentDirectory."""
        agent = self._find(tenant, agent_id)
        if agent is None:
            raise build_not_found_error(agent_id)
        return agent

    async def list(
        self, *, tenant: str, capabilities: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> AgentPage:
        """See AgentDirectory."""
        size, after = read_list_bounds(page_size, page_token, capabilities)
        wanted = set(capabilities)
        self._drop_expired()
        agents = sorted(
            (
                agent
                for (owner, agent_id), agent in self._agents.items()
                if owner == tenant and agent_id > after and wanted.issubset(agent.capabilities)
            ),
            key=lambda agent: agent.agent_id,
        )
        return AgentPage(agents=tuple(agents[:size]), next_page_token=build_next_token(agents, size, capabilities))

    async def delete(self, *, tenant: str, agent_id: str, etag: str = "") -> None:
        """See AgentDirectory."""
        known = await self.get(tenant=tenant, agent_id=agent_id)
        if etag:
            require_etag(known, agent_id, etag)
        del self._agents[tenant, agent_id]

    def _find(self, tenant: str, agent_id: str) -> RegisteredAgent | None:
        """Return the agent; None if it does not exist or has expired."""
        agent = self._agents.get((tenant, agent_id))
        if agent is not None and _has_lapsed(agent, self._now()):
            del self._agents[tenant, agent_id]
            return None
        return agent

    def _drop_expired(self) -> None:
        """Remove the expired agents."""
        now = self._now()
        self._agents = {key: agent for key, agent in self._agents.items() if not _has_lapsed(agent, now)}

    def _make_room(self, tenant: str) -> None:
        """Refuse another agent of `tenant` if there is no room for it."""
        self._drop_expired()
        self._room.require(held=len(self._agents), held_by_tenant=sum(owner == tenant for owner, _ in self._agents))


def build_agent(
    parsed: ParsedCard,
    registration: str,
    *,
    tenant: str,
    agent_id: str,
    known: RegisteredAgent | None,
    now: datetime,
    ttl_s: float | None,
) -> RegisteredAgent:
    """Return the entry of a card; `registration` is another one each time, so that the card gets a new tag."""
    return RegisteredAgent(
        tenant=tenant,
        agent_id=agent_id,
        card=parsed.card,
        card_json=parsed.card_json,
        capabilities=tuple(parsed.capabilities),
        strategies=tuple(parsed.strategies),
        supported_methods=tuple(parsed.supported_methods),
        strategy_config=parsed.strategy_config,
        etag=compute_etag(f"{registration}\n{parsed.card_json}"),
        create_time=known.create_time if known else now,
        update_time=now,
        expire_time=None if ttl_s is None else now + timedelta(seconds=ttl_s),
    )


def is_agent_id(text: str) -> bool:
    """Return whether `text` can name an agent."""
    return _AGENT_ID.fullmatch(text) is not None


@value
class DirectoryRoom:
    """Most agents of all tenants, and most agents of one tenant, so that no tenant can fill the directory."""

    max_agents: int
    max_per_tenant: int | None

    def require(self, *, held: int, held_by_tenant: int) -> None:
        """Require room for one more agent of a tenant.

        Raises:
            StoreFullError: the tenant or the directory has reached its limit.
        """
        if self.max_per_tenant is not None and held_by_tenant >= self.max_per_tenant:
            raise StoreFullError(
                f"The tenant has registered {held_by_tenant} agents, as many as one may",
                remedy="Delete agents, register with a ttl, or have agents.max_agents_per_tenant raised.",
            )
        if held >= self.max_agents:
            raise StoreFullError(
                f"The directory holds {held} agents, as many as it may",
                remedy="Delete agents, register with a ttl, or have agents.max_agents raised.",
            )


def read_list_bounds(page_size: int, page_token: str, capabilities: Sequence[str]) -> tuple[int, str]:
    """Return the number of agents on a page and the id after which the page starts.

    Raises:
        InvalidRequestError: the size is negative, or the token was not made for this list.
    """
    if page_size < 0:
        raise InvalidRequestError.of(Violation(field="page_size", description=f"must be at least 0, got {page_size}"))
    after = _read_page_token(page_token, capabilities) if page_token else ""
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE), after


def build_next_token(agents: Sequence[RegisteredAgent], size: int, capabilities: Sequence[str]) -> str:
    """Return the token of the page after the first `size` of `agents`; empty if there are no more agents."""
    return _build_page_token(agents[size - 1].agent_id, capabilities) if len(agents) > size else ""


def _has_lapsed(agent: RegisteredAgent, now: datetime) -> bool:
    """Return whether `agent` has expired."""
    return agent.expire_time is not None and agent.expire_time <= now


def require_etag(agent: RegisteredAgent | None, agent_id: str, etag: str) -> None:
    """Refuse a change if the agent has changed since the caller read it."""
    if agent is None:
        raise build_not_found_error(agent_id)
    if agent.etag != etag:
        raise EtagMismatchError(
            f"Agent {show(agent_id)} has changed since etag {show(etag)} was read",
            remedy="Read it again and decide anew.",
        )


def build_not_found_error(agent_id: str) -> AgentNotFoundError:
    """Return the error for an agent that the caller does not have."""
    return AgentNotFoundError(f"Agent not found: {show(agent_id)}", remedy="ListAgents names those that exist.")


def _build_page_token(last_id: str, capabilities: Sequence[str]) -> str:
    """Return the token of the page after `last_id`; it is valid only for these `capabilities`."""
    return base64.urlsafe_b64encode(f"{_hash_filter(capabilities)}:{last_id}".encode()).decode()


def _read_page_token(token: str, capabilities: Sequence[str]) -> str:
    """Return the id after which the page of `token` starts."""
    try:
        text = (
            base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
            if len(token) <= _MAX_TOKEN_CHARACTERS
            else ""
        )
    except ValueError:
        text = ""
    tag, _, last_id = text.partition(":")
    if tag != _hash_filter(capabilities) or not is_agent_id(last_id):
        description = "must be the next_page_token of a list with the same capabilities"
        raise InvalidRequestError.of(Violation(field="page_token", description=description))
    return last_id


def _hash_filter(capabilities: Sequence[str]) -> str:
    """Return a short hash of the filter."""
    joined = "\n".join(sorted(set(capabilities)))
    return hashlib.sha256(joined.encode(errors="replace")).hexdigest()[:16]

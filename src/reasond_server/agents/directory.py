"""The directory of agents in the database of the event logs, and the service of agents for both transports.

A tenant never sees the agents of another. The transports check permissions before they call the service.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pydantic_core

from reasond_server.agents.cards import EXTENSION, ParsedCard, compute_etag, encode_card, parse_card
from reasond_server.errors.base import InternalError, show
from reasond_server.errors.limits import StoreFullError
from reasond_server.errors.request import AgentNotFoundError, InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError
from reasond_server.types import Json  # noqa: TC001 - cards are written by their types
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.storage.transactions import Job, Rows, Transactions, Values
    from reasond_server.types import Principal

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 100

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

_AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_TOKEN_CHARACTERS = 512
_MIN_TTL_S = 1
_MAX_TTL_S = 30 * 86_400
_MAX_CAPABILITIES = 50
_MAX_CAPABILITY_CHARACTERS = 256


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


@value
class AgentDirectory:
    """Keeps agents by tenant and id over `rows`; `now` returns the time in UTC.

    It holds `max_agents` of all tenants, and `max_agents_per_tenant` of each, so that no tenant can fill it (None: no
    limit); N processes that register at the same moment can exceed the limit by up to N agents.
    """

    rows: Transactions
    max_agents: int
    now: Callable[[], datetime]
    max_agents_per_tenant: int | None = None

    async def register(
        self, *, tenant: str, agent_id: str, parsed: ParsedCard, ttl_s: float | None = None, etag: str = ""
    ) -> RegisteredAgent:
        """Store `parsed` under `agent_id`; it replaces an earlier card and expires after `ttl_s` seconds.

        Raises:
            AgentNotFoundError: `etag` is given and there is no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
            StoreFullError: there is no room for another agent.
        """
        for _ in range(_TRIES):
            now = self.now()
            known = await self._find(tenant, agent_id)
            if etag:
                _require_etag(known, agent_id, etag)
            if known is None:
                await self._make_room(tenant, now)
            registration = uuid.uuid4().hex
            agent = _build_agent(
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
        """Return the agent.

        Raises:
            AgentNotFoundError: `tenant` has no such agent.
        """
        agent = await self._find(tenant, agent_id)
        if agent is None:
            raise _build_not_found_error(agent_id)
        return agent

    async def list(
        self, *, tenant: str, capabilities: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> AgentPage:
        """Return the agents of `tenant` that have all `capabilities`; `page_size` 0 means 50, more than 100 means 100.

        Raises:
            InvalidRequestError: the size is negative, or the token was not made for this list.
        """
        size, after = _read_list_bounds(page_size, page_token, capabilities)
        wanted, found = set(capabilities), list[RegisteredAgent]()
        while len(found) <= size:
            values = {"tenant": tenant, "after": after, "now": self.now().timestamp(), "size": size + 1}
            agents = [_decode(body) for (body,) in await self.rows.select(_PAGE, values)]
            found += [agent for agent in agents if wanted.issubset(agent.capabilities)]
            if len(agents) <= size:
                break
            after = agents[-1].agent_id
        return AgentPage(agents=tuple(found[:size]), next_page_token=_build_next_token(found, size, capabilities))

    async def delete(self, *, tenant: str, agent_id: str, etag: str = "") -> None:
        """Remove the agent.

        Raises:
            AgentNotFoundError: `tenant` has no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
        """
        for _ in range(_TRIES):
            known = await self.get(tenant=tenant, agent_id=agent_id)
            if etag:
                _require_etag(known, agent_id, etag)
            values = {"tenant": tenant, "agent_id": agent_id, "known": known.etag}
            if await self._change(_DELETE, values):
                return
        raise InternalError("an agent changed whenever it was to be deleted")

    async def _find(self, tenant: str, agent_id: str) -> RegisteredAgent | None:
        """Return the agent; None if it does not exist or has expired."""
        if not is_agent_id(agent_id):
            return None
        values = {"tenant": tenant, "agent_id": agent_id, "now": self.now().timestamp()}
        rows = await self.rows.select(_FIND, values)
        return _decode(rows[0][0]) if rows else None

    async def _make_room(self, tenant: str, now: datetime) -> None:
        """Refuse another agent of `tenant` if there is no room for it; delete expired agents."""
        values = {"now": now.timestamp()}
        ((held, held_by_tenant),) = await self.rows.select(_COUNT, values | {"tenant": tenant})
        if self.max_agents_per_tenant is not None and held_by_tenant >= self.max_agents_per_tenant:
            raise StoreFullError(
                f"The tenant has registered {held_by_tenant} agents, as many as one may",
                remedy="Delete agents, register with a ttl, or have agents.max_agents_per_tenant raised.",
            )
        if held >= self.max_agents:
            raise StoreFullError(
                f"The directory holds {held} agents, as many as it may",
                remedy="Delete agents, register with a ttl, or have agents.max_agents raised.",
            )
        await self._change(_DROP_EXPIRED, values)

    async def _change(self, statement: str, values: Values) -> Rows:
        """Run a statement once and return its rows: told by them, its caller reads again and decides."""

        def run() -> Job[Rows]:
            return (yield statement, values)

        return await self.rows.change(run, repeats=False)


def _build_agent(
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


def _read_list_bounds(page_size: int, page_token: str, capabilities: Sequence[str]) -> tuple[int, str]:
    """Return the number of agents on a page and the id after which the page starts.

    Raises:
        InvalidRequestError: the size is negative, or the token was not made for this list.
    """
    if page_size < 0:
        raise InvalidRequestError.at("page_size", f"must be at least 0, got {page_size}")
    after = _read_page_token(page_token, capabilities) if page_token else ""
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE), after


def _build_next_token(agents: Sequence[RegisteredAgent], size: int, capabilities: Sequence[str]) -> str:
    """Return the token of the page after the first `size` of `agents`; empty if there are no more agents."""
    return _build_page_token(agents[size - 1].agent_id, capabilities) if len(agents) > size else ""


def _require_etag(agent: RegisteredAgent | None, agent_id: str, etag: str) -> None:
    """Refuse a change if the agent has changed since the caller read it."""
    if agent is None:
        raise _build_not_found_error(agent_id)
    if agent.etag != etag:
        raise EtagMismatchError(
            f"Agent {show(agent_id)} has changed since etag {show(etag)} was read",
            remedy="Read it again and decide anew.",
        )


def _build_not_found_error(agent_id: str) -> AgentNotFoundError:
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
        raise InvalidRequestError.at("page_token", "must be the next_page_token of a list with the same capabilities")
    return last_id


def _hash_filter(capabilities: Sequence[str]) -> str:
    """Return a short hash of the filter."""
    joined = "\n".join(sorted(set(capabilities)))
    return hashlib.sha256(joined.encode(errors="replace")).hexdigest()[:16]


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


@value
class CardView:
    """A card as it is served: `card_json` byte for byte, and its declarations about reasoning."""

    card: Json
    card_json: str
    etag: str
    supported_methods: Sequence[str]
    capabilities: Sequence[str]


class AgentService:
    """This server's card and the directory of agents.

    `server_card` returns the card of this server, which may change while the server runs. A registered card may have
    at most `max_card_bytes` bytes.
    """

    def __init__(self, *, directory: AgentDirectory, server_card: Callable[[], Json], max_card_bytes: int) -> None:
        self._directory = directory
        self._server_card = server_card
        self._max_card_bytes = max_card_bytes

    def build_own_card(self) -> CardView:
        """Return the card of this server, which is public."""
        card = self._server_card()
        card_json = encode_card(card)
        params = next(
            extension["params"] for extension in card["capabilities"]["extensions"] if extension["uri"] == EXTENSION
        )
        return CardView(
            card=card,
            card_json=card_json,
            etag=compute_etag(card_json),
            supported_methods=tuple(params["supported_methods"]),
            capabilities=tuple(params["capabilities"]),
        )

    async def get_card(self, caller: Principal, agent_id: str = "") -> CardView:
        """Return the card of a registered agent, or of this server if `agent_id` is empty.

        Raises:
            InvalidRequestError: `agent_id` cannot name an agent.
            AgentNotFoundError: the caller has no such agent.
        """
        if not agent_id:
            return self.build_own_card()
        agent = await self._directory.get(tenant=caller.tenant, agent_id=_require_id(agent_id))
        return CardView(
            card=agent.card,
            card_json=agent.card_json,
            etag=agent.etag,
            supported_methods=agent.supported_methods,
            capabilities=agent.capabilities,
        )

    async def list(
        self, caller: Principal, *, capabilities: Sequence[str] = (), page_size: int = 0, page_token: str = ""
    ) -> AgentPage:
        """Return the caller's agents that have all `capabilities`, ordered by id.

        Raises:
            InvalidRequestError: a field is out of range.
        """
        if len(capabilities) > _MAX_CAPABILITIES or any(
            not 0 < len(one) <= _MAX_CAPABILITY_CHARACTERS for one in capabilities
        ):
            description = f"must have at most {_MAX_CAPABILITIES} entries of 1-{_MAX_CAPABILITY_CHARACTERS} characters"
            raise InvalidRequestError.at("capabilities", description)
        return await self._directory.list(
            tenant=caller.tenant, capabilities=capabilities, page_size=page_size, page_token=page_token
        )

    async def register(
        self, caller: Principal, *, card_json: str, agent_id: str = "", ttl_s: float | None = None, etag: str = ""
    ) -> RegisteredAgent:
        """Register an agent or replace its card; a small card may contain the id.

        Raises:
            InvalidRequestError: the card or a field is not valid.
            AgentNotFoundError: `etag` is given and there is no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
            StoreFullError: there is no room for another agent.
        """
        parsed = parse_card(card_json, max_bytes=self._max_card_bytes)
        if agent_id and parsed.agent_id and agent_id != parsed.agent_id:
            description = f"is {show(agent_id)}, but the card says {show(parsed.agent_id)}"
            raise InvalidRequestError.at("agent_id", description)
        if ttl_s is not None and not _MIN_TTL_S <= ttl_s <= _MAX_TTL_S:
            raise InvalidRequestError.at("ttl", f"must be between {_MIN_TTL_S} and {_MAX_TTL_S} seconds")
        return await self._directory.register(
            tenant=caller.tenant,
            agent_id=_require_id(agent_id or parsed.agent_id or ""),
            parsed=parsed,
            ttl_s=ttl_s,
            etag=etag,
        )

    async def delete(self, caller: Principal, agent_id: str, *, etag: str = "") -> None:
        """Remove an agent.

        Raises:
            InvalidRequestError: `agent_id` cannot name an agent.
            AgentNotFoundError: the caller has no such agent.
            EtagMismatchError: `etag` is given and the agent has another.
        """
        await self._directory.delete(tenant=caller.tenant, agent_id=_require_id(agent_id), etag=etag)


def _require_id(agent_id: str) -> str:
    """Return `agent_id` if it can name an agent."""
    if not is_agent_id(agent_id):
        description = "must be 1-128 letters, digits, '.', '_' and '-', the first a letter or digit"
        raise InvalidRequestError.at("agent_id", description)
    return agent_id

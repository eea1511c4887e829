"""The service of agents for both transports; the transports check permissions before they call it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reasond_server.agents.cards import EXTENSION, compute_etag, encode_card, parse_card
from reasond_server.agents.directory import AgentDirectory, AgentPage, RegisteredAgent, is_agent_id
from reasond_server.errors.base import show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types import Json  # noqa: TC001 - as above
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.types import Principal

_MIN_TTL_S = 1
_MAX_TTL_S = 30 * 86_400
_MAX_CAPABILITIES = 50
_MAX_CAPABILITY_CHARACTERS = 256


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

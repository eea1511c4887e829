"""Tokens for agents that prove themselves by a secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.access.claims import own_tenant
from reasond_server.types import Principal

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.access.agent_secrets import AgentSecrets
    from reasond_server.access.tokens import TokenMinter


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A token, whom it stands for, and the seconds that it lives."""

    token: str
    principal: Principal
    lifetime_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTokens:
    """Gives tokens that live `lifetime_s` seconds."""

    secrets: AgentSecrets
    minter: TokenMinter
    lifetime_s: int
    now: Callable[[], datetime]

    async def issue(self, *, agent_id: str, secret: str, address: str) -> IssuedToken:
        """Return a token for the agent. Raises as `AgentSecrets.tell`."""
        account = await self.secrets.tell(agent_id=agent_id, secret=secret, address=address)
        token = self.minter.mint(
            subject=account.agent_id,
            permissions=account.permissions,
            roles=account.roles,
            tenant=account.tenant or None,
            lifetime_s=self.lifetime_s,
            now=self.now(),
        )
        principal = Principal(
            subject=account.agent_id,
            tenant=account.tenant or own_tenant(account.agent_id),
            permissions=frozenset(account.permissions),
        )
        return IssuedToken(token=token, principal=principal, lifetime_s=self.lifetime_s)

"""Agents that prove themselves by a secret: only its argon2 hash is known here (RFC 9106)."""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError

from reasond_server.access.turns import Turns
from reasond_server.errors import RateLimitedError, TokenInvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.access.throttle import Throttle

MIN_SECRET_CHARACTERS: Final = 16
MAX_SECRET_CHARACTERS: Final = 1024
# A verification takes some 20-60 ms of a core and 64 MiB: two at a time, and no long queue behind them.
_AT_ONCE = 2
_MOST_WAITING = 30
# What one subscriber is given of IPv6: who has one address there has all of them.
_IPV6_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAccount:
    """An agent of the configuration; the hash does not show in `repr`."""

    agent_id: str
    secret_hash: str = field(repr=False)
    permissions: Sequence[str] = ()
    roles: Sequence[str] = ()
    tenant: str = ""


def hash_secret(secret: str) -> str:
    """Return the argon2id hash of `secret`, in the form that the configuration takes."""
    return PasswordHasher(type=Type.ID).hash(secret)


def is_secret_hash(text: str) -> bool:
    """Return whether `text` is an argon2id hash that can be verified against."""
    try:
        PasswordHasher(type=Type.ID).check_needs_rehash(text)
    except (InvalidHashError, ValueError):
        return False
    return text.startswith("$argon2id$")


def matches(secret_hash: str, secret: str) -> bool:
    """Return whether `secret` has that hash; takes as long as the hash asks for."""
    try:
        return PasswordHasher(type=Type.ID).verify(secret_hash, secret)
    except (VerificationError, InvalidHashError, UnicodeError):
        return False


class AgentSecrets:
    """Tells agents by their secrets, in the same time whether or not there is such an agent.

    `by_agent` and `by_address` count failures, so that guessing gets nowhere; `verify` compares a secret with a hash.
    Addresses take turns at that, so that one that asks often does not keep the others waiting; of IPv6 a network of 64
    bits counts as one address.
    """

    def __init__(
        self,
        *,
        accounts: Mapping[str, AgentAccount],
        by_agent: Throttle,
        by_address: Throttle,
        verify: Callable[[str, str], bool] = matches,
    ) -> None:
        self._accounts = dict(accounts)
        self._by_agent = by_agent
        self._by_address = by_address
        self._verify = verify
        self._nobody = hash_secret("nobody has this secret")
        self._turns = Turns(at_once=_AT_ONCE, most_waiting=_MOST_WAITING)
        self._trials: set[asyncio.Task[AgentAccount]] = set()

    async def tell(self, *, agent_id: str, secret: str, address: str) -> AgentAccount:
        """Return the account of `agent_id`, which proved itself.

        Raises:
            TokenInvalidError: there is no such agent, or it has another secret; which of the two is not told.
            RateLimitedError: too many failed before.
            OverloadedError: too many wait to be verified.
        """
        address = _network_of(address)
        self._require_patience(agent_id, address)
        # Not the caller's own: one that leaves would free a place in which a thread works on, and count for nothing.
        trial = asyncio.create_task(self._tried(agent_id, secret, address), name="secret of an agent")
        self._trials.add(trial)
        trial.add_done_callback(self._note_end)
        return await asyncio.shield(trial)

    async def _tried(self, agent_id: str, secret: str, address: str) -> AgentAccount:
        """Verify once there is a place, beside the event loop. Raises as `tell`."""
        account = self._accounts.get(agent_id)
        async with self._turns.taken(address):
            # Again: of many tries at once the first ones may have failed since.
            self._require_patience(agent_id, address)
            secret_hash = self._nobody if account is None else account.secret_hash
            is_right = await asyncio.to_thread(self._verify, secret_hash, secret)
            if account is not None and is_right:
                self._by_agent.succeeded(agent_id)
                return account
            self._by_agent.failed(agent_id)
            self._by_address.failed(address)
        raise TokenInvalidError(
            "Authentication failed: agent_id or secret is wrong", remedy="Check both with the operator."
        )

    def _note_end(self, trial: asyncio.Task[AgentAccount]) -> None:
        self._trials.discard(trial)
        if not trial.cancelled():
            # Whoever left does not ask how it ended; asyncio would call that an error.
            trial.exception()

    def _require_patience(self, agent_id: str, address: str) -> None:
        """Refuse who failed too often.

        Raises:
            RateLimitedError: with the time to wait.
        """
        wait_s = max(self._by_agent.wait_s(agent_id), self._by_address.wait_s(address))
        if wait_s > 0:
            raise RateLimitedError(
                "Too many attempts with a wrong agent_id or secret",
                remedy="Wait for the time given; check the secret.",
                retry_after_s=wait_s,
            )


def _network_of(address: str) -> str:
    """Return what is counted as one address; what is none, such as that of a Unix socket, is itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found), _IPV6_NETWORK_BITS), strict=False))

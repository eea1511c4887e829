"""Agents that exchange a secret for a token; the server stores only the argon2 hash of the secret (RFC 9106)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import field
from typing import TYPE_CHECKING, Final

from reasond_server.access.tokens import TokenMinter, derive_own_tenant
from reasond_server.base.addresses import find_network
from reasond_server.base.asyncio_tasks import FairSemaphore
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.limits import RateLimitedError
from reasond_server.types import Principal
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from argon2 import PasswordHasher


MIN_SECRET_CHARACTERS: Final = 16
MAX_SECRET_CHARACTERS: Final = 1024
# A verification takes 20-60 ms of a core and 64 MiB.
_MOST_AT_ONCE: Final = 2
_MOST_WAITING: Final = 30


@value
class AgentAccount:
    """An agent of the configuration; `repr` does not show the hash."""

    agent_id: str
    secret_hash: str = field(repr=False)
    permissions: Sequence[str] = ()
    roles: Sequence[str] = ()
    tenant: str = ""


def _load_hasher() -> PasswordHasher:
    # Imported here because most servers have no agents with secrets.
    from argon2 import PasswordHasher, Type  # noqa: PLC0415 - as above

    return PasswordHasher(type=Type.ID)


def hash_secret(secret: str) -> str:
    """Return the argon2id hash of `secret` in the form of the configuration."""
    return _load_hasher().hash(secret)


def is_secret_hash(text: str) -> bool:
    """Return whether `text` is an argon2id hash that `has_hash` can compare with."""
    from argon2.exceptions import InvalidHashError  # noqa: PLC0415 - see `_load_hasher`

    try:
        _load_hasher().check_needs_rehash(text)
    except (InvalidHashError, ValueError):
        return False
    return text.startswith("$argon2id$")


def has_hash(secret_hash: str, secret: str) -> bool:
    """Return whether `secret` has the hash `secret_hash`; the parameters in the hash decide how long this takes."""
    from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - see `_load_hasher`

    try:
        return _load_hasher().verify(secret_hash, secret)
    except (VerificationError, InvalidHashError, UnicodeError):
        return False


class Throttle:
    """Allows `most` failures of a key in `window_s` seconds, then no attempt until the first failure is that old.

    It stores up to `most_keys` keys.
    """

    def __init__(self, *, most: int, window_s: float, monotonic: Callable[[], float], most_keys: int = 10_000) -> None:
        self._most = most
        self._window_s = window_s
        self._monotonic = monotonic
        self._most_keys = most_keys
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def compute_wait_s(self, key: str) -> float:
        """Return the seconds until `key` may try again; 0 if it may try now."""
        times = self._failures.get(key)
        if times is None:
            return 0.0
        now = self._monotonic()
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if not times:
            del self._failures[key]
        return times[0] + self._window_s - now if len(times) >= self._most else 0.0

    def note_failure(self, key: str) -> None:
        """Record a failure of `key` at this time."""
        times = self._failures.setdefault(key, deque(maxlen=self._most))
        times.append(self._monotonic())
        self._failures.move_to_end(key)
        while len(self._failures) > self._most_keys:
            self._failures.popitem(last=False)

    def forget_failures(self, key: str) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)


class AgentSecrets:
    """Authenticates agents by their secrets, in the same time for known and unknown agents.

    `by_agent` counts the failures of an address with one agent, `by_address` those with all agents. Failures from other
    addresses do not count, because anybody who knows the name of an agent could then lock it out. `verify` compares a
    secret with a hash. Addresses take turns at it, so that many requests from one do not delay the others. A /64
    network of IPv6 counts as one address.
    """

    def __init__(
        self,
        *,
        accounts: Mapping[str, AgentAccount],
        by_agent: Throttle,
        by_address: Throttle,
        verify: Callable[[str, str], bool] = has_hash,
    ) -> None:
        self._accounts = dict(accounts)
        self._by_agent = by_agent
        self._by_address = by_address
        self._verify = verify
        self._nobody = hash_secret("nobody has this secret")
        self._semaphore = FairSemaphore(
            permits=_MOST_AT_ONCE, most_waiting=_MOST_WAITING, waiters="agents that are to be verified"
        )
        self._trials: set[asyncio.Task[AgentAccount]] = set()

    async def authenticate(self, *, agent_id: str, secret: str, address: str) -> AgentAccount:
        """Return the account of `agent_id` if `secret` is right.

        Raises:
            TokenInvalidError: the agent is unknown or has another secret; the error does not say which.
            RateLimitedError: too many earlier attempts failed.
            OverloadedError: too many attempts wait for verification.
        """
        address = find_network(address)
        self._refuse_throttled(agent_id, address)
        # A separate task: if the caller is cancelled, the thread keeps its permit, and a failure still counts.
        trial = asyncio.create_task(self._try(agent_id, secret, address), name="secret of an agent")
        self._trials.add(trial)
        trial.add_done_callback(self._note_end)
        return await asyncio.shield(trial)

    async def _try(self, agent_id: str, secret: str, address: str) -> AgentAccount:
        """Wait for a permit and verify in a thread. Raises the same errors as `authenticate`."""
        account = self._accounts.get(agent_id)
        async with self._semaphore.acquire(address):
            # Check again: concurrent attempts may have failed during the wait.
            self._refuse_throttled(agent_id, address)
            secret_hash = self._nobody if account is None else account.secret_hash
            is_right = await asyncio.to_thread(self._verify, secret_hash, secret)
            if account is not None and is_right:
                self._by_agent.forget_failures(_join_key(agent_id, address))
                return account
            self._by_agent.note_failure(_join_key(agent_id, address))
            self._by_address.note_failure(address)
        raise TokenInvalidError(
            "Authentication failed: agent_id or secret is wrong", remedy="Check both with the operator."
        )

    def _note_end(self, trial: asyncio.Task[AgentAccount]) -> None:
        self._trials.discard(trial)
        if not trial.cancelled():
            # The caller may be cancelled, and asyncio would log an exception that is never retrieved.
            trial.exception()

    def _refuse_throttled(self, agent_id: str, address: str) -> None:
        """Refuse an address that failed too often, with this agent or with all agents.

        Raises:
            RateLimitedError: the address must wait; the error has the time.
        """
        with_agent_s = self._by_agent.compute_wait_s(_join_key(agent_id, address))
        wait_s = max(with_agent_s, self._by_address.compute_wait_s(address))
        if wait_s > 0:
            raise RateLimitedError(
                "Too many attempts with a wrong agent_id or secret",
                remedy="Wait for the time given; check the secret.",
                retry_after_s=wait_s,
            )


@value
class IssuedToken:
    """A token, its principal, and its lifetime in seconds."""

    token: str
    principal: Principal
    lifetime_s: int


@value
class AgentTokens:
    """Issues tokens with a lifetime of `lifetime_s` seconds to agents that authenticate."""

    secrets: AgentSecrets
    minter: TokenMinter
    lifetime_s: int
    now: Callable[[], datetime]

    async def issue(self, *, agent_id: str, secret: str, address: str) -> IssuedToken:
        """Return a token for the agent. Raises the same errors as `AgentSecrets.authenticate`."""
        account = await self.secrets.authenticate(agent_id=agent_id, secret=secret, address=address)
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
            tenant=account.tenant or derive_own_tenant(account.agent_id),
            permissions=frozenset(account.permissions),
        )
        return IssuedToken(token=token, principal=principal, lifetime_s=self.lifetime_s)


def _join_key(agent_id: str, address: str) -> str:
    """Return the key of an agent's failures from one address; an address has no spaces."""
    return f"{address} {agent_id}"

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from argon2 import PasswordHasher, Type

from reasond_server.access.agent_secrets import (
    AgentAccount,
    AgentSecrets,
    AgentTokens,
    Throttle,
    has_hash,
    hash_secret,
    is_secret_hash,
)
from reasond_server.access.tokens import TokenMinter
from reasond_server.errors.access import TokenInvalidError
from reasond_server.errors.limits import OverloadedError, RateLimitedError
from tests.unit.access.parts import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = PasswordHasher(type=Type.ID, time_cost=1, memory_cost=8, parallelism=1)
SECRET = "the secret of the crawler"
ACCOUNT = AgentAccount(
    agent_id="crawler", secret_hash=QUICK.hash(SECRET), permissions=("reasoning:execute",), roles=("solver",)
)


def secrets(verify: Callable[[str, str], bool] = has_hash, **limits: int) -> AgentSecrets:
    def throttle(most: int) -> Throttle:
        return Throttle(most=most, window_s=60, monotonic=lambda: 0.0)

    return AgentSecrets(
        accounts={"crawler": ACCOUNT},
        by_agent=throttle(limits.get("agent", 3)),
        by_address=throttle(limits.get("address", 10)),
        verify=verify,
    )


async def test_the_right_secret_tells_the_agent() -> None:
    assert await secrets().authenticate(agent_id="crawler", secret=SECRET, address="a") == ACCOUNT


@pytest.mark.parametrize(
    ("agent_id", "secret"), [("crawler", "wrong"), ("nobody", SECRET), ("", ""), ("crawler", "\ud800")]
)
async def test_what_was_wrong_is_not_told(agent_id: str, secret: str) -> None:
    with pytest.raises(TokenInvalidError) as caught:
        await secrets().authenticate(agent_id=agent_id, secret=secret, address="a")
    assert caught.value.message == "Authentication failed: agent_id or secret is wrong"


async def test_a_hash_is_computed_for_agents_that_do_not_exist_as_well() -> None:
    compared: list[str] = []

    def noting(secret_hash: str, _secret: str) -> bool:
        compared.append(secret_hash.split("$")[1])
        return False

    ours = secrets(verify=noting)
    for agent_id in ("crawler", "nobody"):
        with pytest.raises(TokenInvalidError):
            await ours.authenticate(agent_id=agent_id, secret="wrong", address="a")
    assert compared == ["argon2id", "argon2id"]


async def test_guessing_is_stopped_by_agent_and_by_address_and_says_when_to_come_back() -> None:
    ours = secrets(agent=2, address=3)
    for _ in range(2):
        with pytest.raises(TokenInvalidError):
            await ours.authenticate(agent_id="crawler", secret="wrong", address="a")
    with pytest.raises(RateLimitedError) as caught:
        await ours.authenticate(agent_id="crawler", secret=SECRET, address="a")
    assert caught.value.retry_after_s == 60
    with pytest.raises(TokenInvalidError):
        await ours.authenticate(agent_id="other", secret="wrong", address="a")
    with pytest.raises(RateLimitedError):
        await ours.authenticate(agent_id="third", secret="wrong", address="a")


async def test_wrong_secrets_from_elsewhere_lock_no_agent_out() -> None:
    ours = secrets(agent=2, address=100)
    for attacker in range(5):
        for _ in range(3):
            with pytest.raises((TokenInvalidError, RateLimitedError)):
                await ours.authenticate(agent_id="crawler", secret="wrong", address=f"192.0.2.{attacker}")
    assert await ours.authenticate(agent_id="crawler", secret=SECRET, address="192.0.2.99") == ACCOUNT


async def test_few_are_verified_at_once_and_not_many_wait() -> None:
    may_go, lock = threading.Event(), threading.Lock()
    running: list[int] = [0, 0]

    def slow(_hash: str, _secret: str) -> bool:
        with lock:
            running[:] = [running[0] + 1, max(running[1], running[0] + 1)]
        may_go.wait(180)
        with lock:
            running[0] -= 1
        return True

    ours = secrets(slow, agent=100, address=100)
    tries = [asyncio.create_task(ours.authenticate(agent_id="crawler", secret=SECRET, address="a")) for _ in range(40)]
    await asyncio.wait(tries, return_when=asyncio.FIRST_EXCEPTION)
    may_go.set()
    ends = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(end, OverloadedError) for end in ends) == 8
    assert running[1] <= 2


async def test_a_place_stays_taken_and_a_failure_counts_though_the_caller_has_left() -> None:
    begun, may_go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(_hash: str, _secret: str) -> bool:
        begun.set()
        may_go.wait(180)
        ended.set()
        return False

    ours = secrets(slow, agent=1)
    leaving = asyncio.create_task(ours.authenticate(agent_id="crawler", secret="wrong", address="a"))
    await asyncio.to_thread(begun.wait, 20)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert ours._semaphore.free == 1
    may_go.set()
    await asyncio.to_thread(ended.wait, 20)
    await asyncio.gather(*ours._trials, return_exceptions=True)
    assert ours._semaphore.free == 2
    with pytest.raises(RateLimitedError):
        await ours.authenticate(agent_id="crawler", secret=SECRET, address="a")


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ("2001:db8::1", "2001:db8:0:0:ffff::9", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
async def test_addresses_that_one_subscriber_has_count_as_one(first: str, second: str, is_one: bool) -> None:  # noqa: FBT001 - a case
    ours = secrets(agent=9, address=1)
    with pytest.raises(TokenInvalidError):
        await ours.authenticate(agent_id="crawler", secret="wrong", address=first)
    with pytest.raises(RateLimitedError if is_one else TokenInvalidError):
        await ours.authenticate(agent_id="crawler", secret="wrong", address=second)


async def test_an_agent_is_verified_next_though_another_address_fills_every_waiting_place() -> None:
    may_go, told = threading.Event(), []

    def slow(_hash: str, secret: str) -> bool:
        may_go.wait(180)
        told.append(secret)
        return secret == SECRET

    ours = secrets(slow, agent=100, address=100)
    attack = [
        asyncio.create_task(ours.authenticate(agent_id=f"guess {number}", secret="wrong", address="192.0.2.1"))
        for number in range(40)
    ]
    await asyncio.wait(attack, return_when=asyncio.FIRST_EXCEPTION)
    honest = asyncio.create_task(ours.authenticate(agent_id="crawler", secret=SECRET, address="192.0.2.9"))
    await asyncio.sleep(0)
    may_go.set()
    assert await honest == ACCOUNT
    # Two guesses were being verified when the honest secret arrived, and two more may end before it.
    assert told.index(SECRET) <= 4
    await asyncio.gather(*attack, return_exceptions=True)


async def test_tries_at_once_are_not_more_tries() -> None:
    compared: list[str] = []

    def noting(_hash: str, secret: str) -> bool:
        compared.append(secret)
        return False

    ours = secrets(noting, agent=3, address=100)
    tries = (ours.authenticate(agent_id="crawler", secret=f"guess {number}", address="a") for number in range(30))
    ends = await asyncio.gather(*tries, return_exceptions=True)
    # Two secrets are verified at a time, so one verification more than the limit may begin.
    assert 3 <= len(compared) <= 4
    assert sum(isinstance(end, RateLimitedError) for end in ends) == 30 - len(compared)


async def test_a_token_carries_what_the_account_has() -> None:
    minter = TokenMinter(key=MAIN, issuer="i", audience="a", max_lifetime_s=3600)
    tokens = AgentTokens(secrets=secrets(), minter=minter, lifetime_s=600, now=lambda: datetime.now(UTC))
    issued = await tokens.issue(agent_id="crawler", secret=SECRET, address="a")
    claims: dict[str, Any] = jwt.decode(issued.token, MAIN.secret, algorithms=["HS256"], audience="a", issuer="i")
    assert claims["exp"] - claims["iat"] == issued.lifetime_s == 600
    assert (claims["sub"], claims["permissions"], claims["roles"]) == ("crawler", ["reasoning:execute"], ["solver"])
    assert (issued.principal.subject, issued.principal.tenant) == ("crawler", "sub:crawler")


def test_hashes_are_known_by_their_form() -> None:
    assert is_secret_hash(hash_secret(SECRET))
    weak_kind = PasswordHasher(type=Type.D, time_cost=1, memory_cost=8, parallelism=1).hash(SECRET)
    for wrong in ("", "secret", "$argon2id$", "$2b$12$abc", weak_kind):
        assert not is_secret_hash(wrong)


def test_the_hash_does_not_show() -> None:
    assert "argon2" not in repr(ACCOUNT)


async def test_a_server_that_ends_while_a_secret_is_verified_leaves_no_error_behind() -> None:
    agents = secrets()
    trying = asyncio.create_task(agents.authenticate(agent_id="crawler", secret="guess", address="10.0.0.1"))
    await asyncio.sleep(0)
    (trial,) = agents._trials
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert not agents._trials


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_after_the_allowed_failures_a_key_waits_until_the_first_is_over() -> None:
    clock = Monotonic()
    throttle = Throttle(most=2, window_s=60, monotonic=clock)
    throttle.note_failure("crawler")
    assert throttle.compute_wait_s("crawler") == 0
    clock.now_s += 10
    throttle.note_failure("crawler")
    assert throttle.compute_wait_s("crawler") == 50
    assert throttle.compute_wait_s("other") == 0
    clock.now_s += 50
    assert throttle.compute_wait_s("crawler") == 0


def test_success_forgets_what_went_before() -> None:
    throttle = Throttle(most=1, window_s=60, monotonic=Monotonic())
    throttle.note_failure("crawler")
    throttle.forget_failures("crawler")
    assert throttle.compute_wait_s("crawler") == 0


def test_the_table_is_bounded_and_forgets_the_oldest_first() -> None:
    throttle = Throttle(most=1, window_s=60, monotonic=Monotonic(), most_keys=2)
    for key in ("one", "two", "one", "three"):
        throttle.note_failure(key)
    assert [throttle.compute_wait_s(key) > 0 for key in ("one", "two", "three")] == [True, False, True]


def test_a_key_whose_failures_are_over_is_forgotten() -> None:
    clock = Monotonic()
    throttle = Throttle(most=1, window_s=60, monotonic=clock, most_keys=1)
    throttle.note_failure("crawler")
    clock.now_s += 60
    assert throttle.compute_wait_s("crawler") == 0
    throttle.note_failure("other")
    assert throttle.compute_wait_s("other") == 60

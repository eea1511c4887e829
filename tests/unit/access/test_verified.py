from __future__ import annotations

import gc
import sys

from reasond_server.access.verified import Verified, VerifiedTokens
from reasond_server.types import Principal

PRINCIPAL = Principal(subject="alice", tenant="acme", permissions=frozenset())


def verified(ends: float = 10_000.0) -> Verified:
    return Verified(principal=PRINCIPAL, token_id="", ends=ends)


def test_a_token_is_known_for_its_time_and_no_longer() -> None:
    tokens = VerifiedTokens(kept_s=60)
    tokens.put("token", verified(), 1000.0)
    assert tokens.get("token", 1059.9) == verified()
    assert tokens.get("token", 1060.0) is None
    assert tokens.get("token", 1000.0) is None


def test_a_token_is_never_known_past_its_end() -> None:
    tokens = VerifiedTokens(kept_s=60)
    tokens.put("token", verified(ends=1010.0), 1000.0)
    assert tokens.get("token", 1009.9) is not None
    assert tokens.get("token", 1010.0) is None
    tokens.put("token", verified(ends=1000.0), 1000.0)
    assert tokens.get("token", 999.0) is None


def test_a_clock_that_is_set_back_prolongs_nothing() -> None:
    tokens = VerifiedTokens(kept_s=60)
    tokens.put("token", verified(), 1000.0)
    assert tokens.get("token", 900.0) is None


def test_nothing_is_kept_where_nothing_may_be() -> None:
    tokens = VerifiedTokens(kept_s=0)
    tokens.put("token", verified(), 1000.0)
    assert tokens.get("token", 1000.0) is None


def test_the_number_is_bounded_and_the_oldest_goes_first() -> None:
    tokens = VerifiedTokens(most=2)
    for name in ("one", "two", "three"):
        tokens.put(name, verified(), 1000.0)
    assert [tokens.get(name, 1000.0) is not None for name in ("one", "two", "three")] == [False, True, True]


def test_the_token_itself_is_not_kept() -> None:
    tokens = VerifiedTokens()
    token = str(object())
    before = sys.getrefcount(token)
    tokens.put(token, verified(), 1000.0)
    gc.collect()
    assert sys.getrefcount(token) == before
    assert token not in repr(vars(tokens))

"""The budget of a caller: the tokens that are reserved, used and refused are reported."""

from __future__ import annotations

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.limits.budgets import MemoryTokenLedger, TokenLimits
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from tests.unit.telemetry.parts import metrics, values


async def test_tokens_are_told_as_they_are_reserved_settled_release_slot_and_refused() -> None:
    counted = metrics()
    ledger = MemoryTokenLedger(limits=TokenLimits(per_day=100), monotonic=lambda: 0.0)
    limits = CallerLimits(gate=None, ledger=ledger, weights={}, observer=counted)
    refused: list[TokenBudgetExhaustedError] = []
    account = limits.open_account("acme", "alice", on_refused=refused.append)
    assert account is not None
    held = await account.reserve(least=1, most=80)
    await account.settle(held, used=30)
    with pytest.raises(TokenBudgetExhaustedError):
        await account.reserve(least=71, most=80)
    found = values(counted)
    events = ("reserved", "settled", "refunded", "overdrawn")
    assert [found[f"reasond_budget_tokens_total {event}"] for event in events] == [80, 30, 50, 0]
    assert found["reasond_denials_total budget"] == 1
    assert [error.metadata["needed"] for error in refused] == ["71"]
    assert (await account.reserve(least=70, most=100)).tokens == 70


def test_without_token_limits_nobody_has_an_account() -> None:
    assert NO_LIMITS.open_account("acme", "alice") is None

"""What is set aside, used and refused is told."""

from __future__ import annotations

import pytest

from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.limits.observing import ObservedLedger
from reasond_server.limits.tokens import MemoryTokenLedger, TokenLimits
from tests.unit.telemetry.parts import metrics, values


async def test_tokens_are_told_as_they_are_reserved_settled_given_back_and_refused() -> None:
    counted = metrics()
    inner = MemoryTokenLedger(limits=TokenLimits(per_day=100), monotonic=lambda: 0.0)
    ledger = ObservedLedger(ledger=inner, observer=counted)
    held = await ledger.reserve("alice", least=1, most=80)
    await ledger.settle(held, used=30)
    with pytest.raises(TokenBudgetExhaustedError):
        await ledger.reserve("alice", least=71, most=80)
    found = values(counted)
    events = ("reserved", "settled", "refunded", "overdrawn")
    assert [found[f"reasond_budget_tokens_total {event}"] for event in events] == [80, 30, 50, 0]
    assert found["reasond_denials_total budget"] == 1
    assert (await ledger.reserve("alice", least=70, most=100)).tokens == 70

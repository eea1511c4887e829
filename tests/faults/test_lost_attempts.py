"""An attempt without an answer may be billed: budgets count what was reserved for it, and reserve its repetition."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.limits.budgets import MemoryTokenLedger, TokenLimits
from reasond_server.limits.callers import CallerLimits
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.runs.run_journal import JournaledModel, RunJournal
from reasond_server.types import Budget
from tests.faults.backend import backend, request
from tests.faults.scripts import THRICE, abort_at_once
from tests.faults.upstream import GOOD, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.eventlog.store import Record
    from reasond_server.llm.model import ChatModel
    from tests.faults.upstream import Upstream

ASK = request()
USED = 12
"""Tokens of the good answer."""


@asynccontextmanager
async def meter(server: Upstream, *, budget: int | None = None, account: int = 0) -> AsyncIterator[MeteredModel]:
    """Yield a model that makes three attempts, within a budget or the account of a caller."""
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=account), monotonic=lambda: 0.0)
    limits = CallerLimits(gate=None, ledger=ledger, weights={})
    async with backend(server, retries=THRICE) as one:
        yield MeteredModel(
            model=one.model,
            budget=Budget(max_total_tokens=budget),
            account=limits.open_account("acme", "alice") if account else None,
        )


async def ask(model: ChatModel) -> None:
    async for _ in model.stream(ASK):
        pass


async def count_reserved() -> int:
    """Return what one attempt of the call reserves: the most for which a budget refuses it, and one more."""
    async with upstream(streaming(*GOOD)) as server:
        for tokens in range(ASK.max_tokens, 10_000):
            async with meter(server, budget=tokens) as model:
                await ask_quietly(model)
                if server.calls and server.conversations[-1].json["max_tokens"] == ASK.max_tokens:
                    return tokens
    raise AssertionError("no budget covers the call")


async def ask_quietly(model: MeteredModel) -> None:
    with suppress(TokenBudgetExhaustedError):
        await ask(model)


async def read_rest(model: MeteredModel) -> int:
    """Return the tokens that the caller may still spend."""
    account = model._account
    assert account is not None
    reservation = await account.reserve(least=1, most=10**9)
    await account.settle(reservation, used=0)
    return reservation.tokens


async def test_a_budget_that_does_not_cover_the_repetition_ends_the_call() -> None:
    reserved = await count_reserved()
    async with upstream(abort_at_once, streaming(*GOOD)) as server, meter(server, budget=2 * reserved - 1) as model:
        with pytest.raises(TokenBudgetExhaustedError):
            await ask(model)
        assert server.calls == 1
        assert model.usage.total_tokens == 0


async def test_a_repetition_is_paid_from_the_budget_beside_the_attempt_that_was_lost() -> None:
    reserved = await count_reserved()
    budget = 2 * reserved + USED - 1
    async with upstream(abort_at_once, streaming(*GOOD)) as server, meter(server, budget=budget) as model:
        await ask(model)
        assert (server.calls, model.usage.total_tokens) == (2, USED)
        await ask(model)
        assert server.conversations[-1].json["max_tokens"] == ASK.max_tokens - 1


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_the_account_of_a_caller_keeps_what_was_lost(lost: int) -> None:
    reserved = await count_reserved()
    scripts = (*[abort_at_once] * lost, streaming(*GOOD))
    async with upstream(*scripts) as server, meter(server, account=5 * reserved) as model:
        await ask(model)
        assert server.calls == lost + 1
        assert await read_rest(model) == (5 - lost) * reserved - USED


async def test_a_call_that_fails_at_last_costs_each_of_its_attempts() -> None:
    reserved = await count_reserved()
    async with upstream(abort_at_once) as server, meter(server, account=5 * reserved) as model:
        with pytest.raises(ModelUnavailableError):
            await ask(model)
        assert server.calls == 3
        assert await read_rest(model) == 2 * reserved


async def test_an_account_that_does_not_cover_the_repetition_ends_the_call() -> None:
    reserved = await count_reserved()
    async with upstream(abort_at_once, streaming(*GOOD)) as server, meter(server, account=2 * reserved - 1) as model:
        with pytest.raises(TokenBudgetExhaustedError):
            await ask(model)
        assert server.calls == 1
        assert await read_rest(model) == reserved - 1


async def test_without_a_budget_a_lost_attempt_is_only_told() -> None:
    async with upstream(abort_at_once, streaming(*GOOD)) as server, meter(server) as model:
        await ask(model)
        assert server.calls == 2
        assert any("may bill more" in each for each in model.warnings_of_calls)


class KeptRecords:
    """Where a journal keeps its records."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def open_journal(self) -> RunJournal:
        return RunJournal(records=tuple(self.records), write=self.records.append, sink=self)

    async def wait_for_room(self) -> None:
        """Return: there is room."""

    async def flush(self) -> None:
        """Return: all is kept."""


async def test_a_run_that_another_process_goes_on_with_remembers_what_was_lost() -> None:
    kept, budget = KeptRecords(), 100_000
    async with upstream(abort_at_once, streaming(*GOOD)) as server:
        for life in range(2):
            async with meter(server, budget=budget) as model:
                await ask(JournaledModel(model=model, journal=kept.open_journal()))
                assert (server.calls, model.usage.total_tokens) == (2, USED), life
                assert model.lost_tokens == await count_reserved()

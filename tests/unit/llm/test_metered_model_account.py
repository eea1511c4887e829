"""The budget of a caller, which all its runs share, seen from the model of one run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.limits.budgets import MemoryTokenLedger, Reservation, TokenLimits
from reasond_server.limits.callers import CallerLimits
from reasond_server.llm.counting import EstimatingCounter, WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, Role
from reasond_server.testing import FunctionModel, ScriptedModel
from reasond_server.types import Budget

ASK = ChatRequest(messages=[Message(role=Role.USER, content="why is it so?")], max_tokens=50)
PROMPT = WordPieceCounter().count_prompt(ASK.messages)


def build_bounded(model: ScriptedModel | FunctionModel, per_minute: int) -> tuple[MeteredModel, MemoryTokenLedger]:
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=per_minute), monotonic=lambda: 0.0)
    limits = CallerLimits(gate=None, ledger=ledger, weights={})
    return MeteredModel(model=model, budget=Budget(), account=limits.open_account("acme", "alice")), ledger


async def play(model: MeteredModel) -> list[ModelEvent]:
    async with aclosing(model.stream(ASK)) as events:
        return [event async for event in events]


async def read_rest(ledger: MemoryTokenLedger) -> int:
    """Return the tokens that the caller may still spend."""
    try:
        reservation = await ledger.reserve("s4:acmealice", least=1, most=10**9)
    except TokenBudgetExhaustedError:
        return 0
    await ledger.settle(reservation, used=0)
    return reservation.tokens


async def test_a_call_is_charged_to_its_caller_with_what_it_had() -> None:
    model, ledger = build_bounded(ScriptedModel(["because"]), 1000)
    *_, end = await play(model)
    assert isinstance(end, Finished)
    assert await read_rest(ledger) == 1000 - end.usage.total_tokens


async def test_a_call_is_shortened_to_what_its_caller_has_left() -> None:
    script = ScriptedModel(["because it is so and was never otherwise"])
    model, ledger = build_bounded(script, PROMPT + 3)
    await play(model)
    assert script.requests[0].max_tokens == 3
    assert model.is_clamped
    assert await read_rest(ledger) == 0


async def test_a_call_that_its_caller_cannot_pay_is_not_made_and_charged_with_nothing() -> None:
    script = ScriptedModel([])
    model, ledger = build_bounded(script, PROMPT)
    with pytest.raises(TokenBudgetExhaustedError):
        await play(model)
    assert script.requests == []
    assert model.usage.model_calls == 0
    assert await read_rest(ledger) == PROMPT


async def test_a_call_that_is_broken_off_gives_back_what_it_did_not_have() -> None:
    model, ledger = build_bounded(ScriptedModel(["one two three four five six"]), 1000)
    async with aclosing(model.stream(ASK)) as events:
        await anext(events)
    assert await read_rest(ledger) == 1000 - model.usage.total_tokens
    assert model.usage.output_tokens < 6


class Slow:
    """An account that reserves tokens when the test allows it."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.used: list[int] = []

    async def reserve(self, *, least: int, most: int) -> Reservation:
        del least
        self.is_asked.set()
        await self.may_answer.wait()
        return Reservation(id="1", caller="alice", tokens=most)

    async def settle(self, held: Reservation, *, used: int) -> None:
        del held
        self.used.append(used)


async def test_a_run_that_ended_while_tokens_were_set_aside_makes_no_call() -> None:
    script, account = ScriptedModel([]), Slow()
    model = MeteredModel(model=script, budget=Budget(), account=account)
    call = asyncio.create_task(play(model))
    await account.is_asked.wait()
    model.close()
    account.may_answer.set()
    with pytest.raises(InternalError, match="the run is over"):
        await call
    assert script.requests == []
    assert account.used == [0]
    assert model.usage.total_tokens == 0


async def test_where_tokens_are_estimated_the_server_is_asked_for_the_callers_sake() -> None:
    script = ScriptedModel(["because"], counter=EstimatingCounter())
    asked: list[int] = []

    async def count_exactly(messages: list[Message]) -> int:
        asked.append(len(messages))
        return 10

    script.count_exactly = count_exactly  # type: ignore[method-assign, assignment]  # a server that counts
    model, _ = build_bounded(script, 12)
    await play(model)
    assert asked == [1]
    assert script.requests[0].max_tokens == 2

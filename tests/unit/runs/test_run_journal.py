import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import NotResumableError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.eventlog.store import Record
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, Role, Text, ToolSpec
from reasond_server.reasoning.run_tools import JournaledToolbox
from reasond_server.runs.effects import Effects
from reasond_server.runs.recorded_calls import compute_texts_digest
from reasond_server.runs.run_journal import JournaledModel, RepeatedSteps, RunJournal
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import Budget, ToolCall, ToolResult, Usage

CALL = ToolCall(call_id="c1", name="pay", arguments_json='{"euro": 5}')


class Memory:
    """Keeps records, and notes each request for a flush."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.flushed: list[int] = []

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0)

    async def flush(self) -> None:
        self.flushed.append(len(self.records))

    def journal(self, records: Sequence[Record] = ()) -> RunJournal:
        return RunJournal(records=records, write=self.records.append, sink=self)


class Cash:
    """A tool that must not be called twice, unless `repeats` is set."""

    def __init__(self, error: ReasondError | None = None, *, repeats: bool = False) -> None:
        self.calls = 0
        self.keys: list[str] = []
        self.restored: list[ToolResult] = []
        self.error = error
        self.repeats = repeats

    @property
    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name="pay", description="Pays.", parameters={})]

    def is_idempotent(self, name: str) -> bool:
        return self.repeats and name == "pay"

    def restore(self, call: ToolCall, result: ToolResult) -> None:
        assert call.call_id == result.call_id
        self.restored.append(result)

    async def call(self, call: ToolCall, *, idempotency_key: str = "") -> ToolResult:
        self.calls += 1
        self.keys.append(idempotency_key)
        if self.error is not None:
            raise self.error
        return ToolResult(call_id=call.call_id, result_json=str(self.calls))


class Reserved(NamedTuple):
    """Tokens of a caller's budget."""

    tokens: int


def request(text: str = "why?", max_tokens: int = 50) -> ChatRequest:
    return ChatRequest(messages=[Message(role=Role.USER, content=text)], max_tokens=max_tokens)


def wrap(
    *replies: str | Reply, journal: RunJournal, budget: Budget | None = None
) -> tuple[JournaledModel, MeteredModel]:
    metered = MeteredModel(model=ScriptedModel(list(replies)), budget=budget or Budget())
    return JournaledModel(model=metered, journal=journal), metered


def journaled_tools(
    cash: Cash, journal: RunJournal, wait_for_lease: Callable[[], Awaitable[None]] | None = None
) -> JournaledToolbox:
    effects = Effects(nonce="n" * 28, tenant="acme", journal=journal, wait_for_lease=wait_for_lease)
    effects.is_replayed = True
    return JournaledToolbox(toolbox=cash, effects=effects)


async def hear_all(model: JournaledModel, asked: ChatRequest) -> list[ModelEvent]:
    async with aclosing(model.stream(asked)) as events:
        return [event async for event in events]


def text_of(events: Sequence[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


async def test_a_call_that_was_completed_is_answered_from_its_record_and_booked_again() -> None:
    memory = Memory()
    model, metered = wrap("one two three", journal=memory.journal())
    first = await hear_all(model, request())
    assert len(memory.records) == 1
    again, recalled = wrap(journal=memory.journal(memory.records))
    second = await hear_all(again, request())
    assert text_of(second) == text_of(first) == "one two three"
    assert second[-1] == first[-1]
    assert recalled.usage == metered.usage != Usage()
    assert len(memory.records) == 1


async def test_the_same_request_made_twice_has_two_answers_in_the_same_order() -> None:
    memory = Memory()
    model, _ = wrap("first", "second", journal=memory.journal())
    told = [text_of(await hear_all(model, request())) for _ in range(2)]
    again, _ = wrap("third", journal=memory.journal(memory.records))
    assert [text_of(await hear_all(again, request())) for _ in range(3)] == [*told, "third"]


async def test_what_was_recalled_is_held_no_longer() -> None:
    memory = Memory()
    model, _ = wrap("first", "second", journal=memory.journal())
    for _ in range(2):
        await hear_all(model, request())
    journal = memory.journal(memory.records)
    again, _ = wrap(journal=journal)
    await hear_all(again, request())
    assert [journal.take(record.key) is None for record in memory.records] == [True, False]


async def test_a_call_that_the_strategy_closed_is_complete_and_ends_where_it_was_closed() -> None:
    memory = Memory()
    model, metered = wrap(Reply(pieces=("one ", "two ", "three")), journal=memory.journal())
    async with aclosing(model.stream(request())) as events:
        assert isinstance(await anext(events), Text)
    journal = memory.journal(memory.records)
    again, recalled = wrap(journal=journal)
    async with aclosing(again.stream(request())) as events:
        assert await anext(events) == Text(text="one ")
        assert recalled.usage == metered.usage
        assert not journal.has_diverged
        assert await anext(events) == Finished(reason=ModelFinish.STOP, usage=metered.usage)
    assert journal.has_diverged
    assert recalled.usage == metered.usage


async def test_a_call_that_failed_fails_again_and_costs_the_same() -> None:
    memory = Memory()
    model, metered = wrap(
        Reply(text="half of it", error=ModelFailedError("broke off"), error_after=4), journal=memory.journal()
    )
    with pytest.raises(ModelFailedError):
        await hear_all(model, request())
    again, recalled = wrap(journal=memory.journal(memory.records))
    with pytest.raises(ModelFailedError, match="broke off"):
        await hear_all(again, request())
    assert recalled.usage == metered.usage
    assert recalled.usage.model_calls == 1


async def test_a_call_that_was_refused_by_the_budget_costs_nothing_and_is_no_other_calls_cost() -> None:
    memory = Memory()
    model, metered = wrap("yes", journal=memory.journal(), budget=Budget(max_model_calls=1))
    await hear_all(model, request())
    with pytest.raises(TokenBudgetExhaustedError):
        await hear_all(model, request("more?"))
    assert memory.journal(memory.records).spent == metered.usage


async def test_a_call_that_is_cancelled_or_ends_with_the_run_is_no_completed_call() -> None:
    memory = Memory()
    journal = memory.journal()
    model, _ = wrap(Reply(text="never", hold=asyncio.Event()), "late", journal=journal)
    task = asyncio.create_task(hear_all(model, request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with aclosing(model.stream(request())) as events:
        await anext(events)
        journal.close()
    assert memory.records == []


class SlowAccount:
    """A caller's budget whose store is slow to settle a call."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def reserve(self, *, least: int, most: int) -> Reserved:
        assert least <= most
        return Reserved(tokens=most)

    async def settle(self, reservation: Reserved, *, used: int) -> None:
        assert used <= reservation.tokens
        self.is_asked.set()
        await asyncio.Event().wait()


async def test_a_call_that_was_answered_whole_when_the_run_was_stopped_is_on_record() -> None:
    memory, account = Memory(), SlowAccount()
    journal = memory.journal()
    metered = MeteredModel(model=ScriptedModel(["yes"]), budget=Budget(), account=account)
    model = JournaledModel(model=metered, journal=journal)
    task = asyncio.create_task(hear_all(model, request()))
    await account.is_asked.wait()
    journal.begin_to_close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert memory.journal(memory.records).spent == metered.usage != Usage()
    again, recalled = wrap(journal=memory.journal(memory.records))
    await hear_all(again, request())
    assert recalled.usage == metered.usage


async def test_what_the_budget_shortened_is_known_after_a_recall() -> None:
    memory = Memory()
    model, metered = wrap("one two three four five", journal=memory.journal(), budget=Budget(max_total_tokens=12))
    await hear_all(model, request())
    assert metered.is_clamped
    again, recalled = wrap(journal=memory.journal(memory.records))
    await hear_all(again, request())
    assert recalled.is_clamped


async def test_exact_counts_are_answered_from_the_record() -> None:
    memory = Memory()
    model, _ = wrap(journal=memory.journal())
    messages = request("how many tokens?").messages
    count = await model.count_exactly(messages)
    assert count is not None
    kept = memory.records[0]
    changed = Record(key=kept.key, body=kept.body.replace(str(count), "99"))
    other, _ = wrap(journal=memory.journal([changed]))
    assert await other.count_exactly(messages) == 99


async def test_a_journaled_model_shows_what_the_model_is() -> None:
    model, metered = wrap(journal=Memory().journal())
    shown = (model.name, model.warnings, model.context_window, model.counter)
    assert shown == (metered.name, metered.warnings, metered.context_window, metered.counter)
    await model.aclose()


async def test_a_tool_call_is_on_record_before_it_has_an_effect_and_after() -> None:
    memory, cash = Memory(), Cash()
    tools = journaled_tools(cash, memory.journal())
    result = await tools.call(CALL)
    assert memory.flushed == [1, 2]
    assert [record.key.partition(":")[0] for record in memory.records] == ["tool-started", "tool-result"]
    again = Cash()
    assert await journaled_tools(again, memory.journal(memory.records)).call(CALL) == result
    assert (again.calls, again.restored) == (0, [result])


async def test_a_tool_call_whose_outcome_is_not_known_is_not_made_twice() -> None:
    memory, cash = Memory(), Cash()
    await journaled_tools(Cash(), memory.journal()).call(CALL)
    started = memory.records[:1]
    with pytest.raises(ToolOutcomeUnknownError, match="tool 'pay' was at work"):
        await journaled_tools(cash, memory.journal(started)).call(CALL)
    assert cash.calls == 0


async def test_a_tool_is_not_called_in_the_place_of_another_one_that_an_earlier_life_called() -> None:
    memory, cash = Memory(), Cash()
    await journaled_tools(Cash(), memory.journal()).call(CALL)
    other = replace(CALL, arguments_json='{"euro": 6}')
    with pytest.raises(NotResumableError, match="another effect of kind 'tool'"):
        await journaled_tools(cash, memory.journal(memory.records)).call(other)
    assert cash.calls == 0
    tools = journaled_tools(cash, memory.journal(memory.records))
    await tools.call(CALL)
    await tools.call(other)
    assert (cash.calls, len(cash.restored)) == (1, 1)


async def test_a_tool_that_may_be_repeated_is() -> None:
    memory, cash = Memory(), Cash(repeats=True)
    await journaled_tools(Cash(), memory.journal()).call(CALL)
    tools = journaled_tools(cash, memory.journal(memory.records[:1]))
    assert tools.is_idempotent("pay")
    assert [spec.name for spec in tools.specs] == ["pay"]
    assert (await tools.call(CALL)).result_json == "1"


async def test_a_tool_call_that_was_refused_is_refused_again() -> None:
    memory, cash = Memory(), Cash()
    refusing = journaled_tools(Cash(TokenBudgetExhaustedError("no more")), memory.journal())
    with pytest.raises(TokenBudgetExhaustedError):
        await refusing.call(CALL)
    with pytest.raises(TokenBudgetExhaustedError, match="no more"):
        await journaled_tools(cash, memory.journal(memory.records)).call(CALL)
    assert cash.calls == 0


async def test_a_run_that_is_over_calls_no_tools() -> None:
    journal, cash = Memory().journal(), Cash()
    journal.close()
    with pytest.raises(InternalError, match="the run is over"):
        await journaled_tools(cash, journal).call(CALL)
    assert cash.calls == 0


async def test_the_last_event_of_a_recalled_call_is_the_one_that_was_kept() -> None:
    memory = Memory()
    model, _ = wrap("a", journal=memory.journal())
    last = (await hear_all(model, request()))[-1]
    assert isinstance(last, Finished)
    assert memory.journal(memory.records).spent == last.usage


async def test_a_tool_call_is_held_before_it_is_on_record_and_again_before_it_is_made() -> None:
    memory, cash, told = Memory(), Cash(), list[str]()
    journal = memory.journal()

    async def hold() -> None:
        told.append(f"{len(memory.records)} on record, {cash.calls} made")

    await journaled_tools(cash, journal, hold).call(CALL)
    assert told == ["0 on record, 0 made", "1 on record, 0 made"]


async def test_a_run_that_ends_while_a_tool_call_is_held_does_not_make_it() -> None:
    journal, cash = Memory().journal(), Cash()

    async def hold() -> None:
        journal.close()

    with pytest.raises(InternalError, match="the run is over"):
        await journaled_tools(cash, journal, hold).call(CALL)
    assert cash.calls == 0


async def test_a_journal_knows_while_a_tool_is_at_work() -> None:
    journal = Memory().journal()
    assert not journal.is_acting
    seen = []

    def failing() -> None:
        with journal.act(), journal.act():
            seen.append(journal.is_acting)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert seen == [True]
    assert not journal.is_acting


async def test_calls_that_are_held_back_begin_when_they_are_released() -> None:
    memory, idle = Memory(), list[str]()
    journal = memory.journal()
    model, _ = wrap("because", journal=journal)
    tools = journaled_tools(Cash(), journal)
    journal.hold_calls(when_idle=lambda: idle.append("idle"))
    assert idle == ["idle"]
    calls = [asyncio.create_task(hear_all(model, request())), asyncio.create_task(tools.call(CALL))]
    await asyncio.wait(calls, timeout=0)
    await asyncio.sleep(0)
    assert memory.records == []
    journal.release_calls()
    await asyncio.gather(*calls)
    assert sorted(record.key.partition(":")[0] for record in memory.records) == ["model", "tool-result", "tool-started"]
    assert idle == ["idle"]


async def test_who_holds_calls_back_hears_when_the_last_one_under_way_is_on_record() -> None:
    memory, idle = Memory(), list[int]()
    journal = memory.journal()
    gates = asyncio.Event(), asyncio.Event()
    model, _ = wrap(*(Reply(text="because", hold=gate) for gate in gates), journal=journal)
    calls = [asyncio.create_task(hear_all(model, request(str(index)))) for index in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    journal.hold_calls(when_idle=lambda: idle.append(len(memory.records)))
    for gate in gates:
        assert idle == []
        gate.set()
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*calls)
    assert idle == [2]


async def test_a_call_that_fails_or_is_broken_off_is_no_longer_under_way() -> None:
    memory, idle = Memory(), list[int]()
    journal = memory.journal()
    model, _ = wrap(Reply(error=ModelFailedError("no")), Reply(text="late", hold=asyncio.Event()), journal=journal)
    with pytest.raises(ModelFailedError):
        await hear_all(model, request())
    call = asyncio.create_task(hear_all(model, request("again")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    journal.hold_calls(when_idle=lambda: idle.append(len(memory.records)))
    assert idle == []
    call.cancel()
    await asyncio.wait([call])
    assert idle == [1]


def test_effects_are_counted_exactly_however_many_there_were() -> None:
    journal = Memory().journal()
    for time in (1, 2):
        keys = [journal.next_effect("tool", f"call {number}") for number in range(2000)]
        assert keys == [f"call {number}:{time}" for number in range(2000)]


@given(asked=st.lists(st.integers(min_value=0, max_value=400), max_size=1200))
def test_no_two_alike_calls_have_one_key_and_the_same_askings_get_the_same_keys_again(asked: list[int]) -> None:
    lives = [Memory().journal(), Memory().journal()]
    first, second = ([life.next_key("model", compute_texts_digest(str(each))) for each in asked] for life in lives)
    assert first == second
    assert len(set(first)) == len(first)
    counted = Counter(asked)
    assert set(first) == {
        f"model:{compute_texts_digest(str(each))}:{number}"
        for each in counted
        for number in range(1, counted[each] + 1)
    }


async def test_a_call_with_other_bounds_but_the_same_words_is_not_paid_again_and_told() -> None:
    memory = Memory()
    model, _ = wrap("one two three", journal=memory.journal())
    told = text_of(await hear_all(model, request(max_tokens=5151)))
    journal = memory.journal(memory.records)
    again, _ = wrap(journal=journal)
    asked = replace(request(max_tokens=5061), temperature=0.2, stop=["</answer>"], seed=7, top_p=0.5)
    assert text_of(await hear_all(again, asked)) == told
    (warning,) = RepeatedSteps().list_changes(journal, execution_id="x")
    assert "max_tokens 5151, now 5061; temperature 0.7, now 0.2; top_p None, now 0.5" in warning


async def test_a_call_that_an_older_release_recorded_by_its_bounds_too_is_answered_while_they_are_the_same() -> None:
    # As written before words alone decided: the digest of the whole request, and a body without parameters.
    digest = "a974ce15996e05f50ace93ff2386397e"
    usage = '{"input_tokens":9,"output_tokens":1,"model_calls":1,"source":"reported"}'
    body = f'{{"v":1,"events":[["text","old"],["finished","stop",null,[],{usage},false]],"usage":{usage}}}'
    memory = Memory()
    records = [Record(key=f"model:{digest}:{number}", body=body.replace("old", f"old {number}")) for number in (1, 2)]
    journal = memory.journal(records)
    model, _ = wrap("new", "newer", journal=journal)
    told = [text_of(await hear_all(model, request(max_tokens=bound))) for bound in (5151, 5061, 5151, 5151)]
    assert told == ["old 1", "new", "old 2", "newer"]
    assert journal.other_settings == {}

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelFailedError, ModelUnavailableError
from reasond_server.limits.budgets import Reservation
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter, make_fork
from reasond_server.llm.counting.estimates import count_at_least
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import (
    LONG_TEXT_CHARACTERS,
    ChatModel,
    ChatRequest,
    Finished,
    Message,
    ModelEvent,
    ModelFinish,
    Role,
    Text,
    TokenCounter,
    ToolSpec,
)
from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.types import Budget, ToolCall, Usage, UsageSource
from tests.unit.llm.counting.tokenizer_samples import SAMPLES

ASK = ChatRequest(messages=[Message(role=Role.USER, content="why is it so?")], max_tokens=50)
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
PROMPT = WordPieceCounter().count_prompt(ASK.messages)


def meter(model: ChatModel, **budget: int) -> MeteredModel:
    return MeteredModel(model=model, budget=Budget(**budget))


async def play(model: MeteredModel, request: ChatRequest = ASK) -> list[ModelEvent]:
    async with aclosing(model.stream(request)) as events:
        return [event async for event in events]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


async def test_reported_usage_is_what_is_charged() -> None:
    usage = Usage(input_tokens=3, output_tokens=4, model_calls=1)
    model = meter(ScriptedModel([Reply(text="because", usage=usage)]))
    await play(model)
    assert model.usage == usage


async def test_usage_adds_up_over_calls_and_says_where_it_comes_from() -> None:
    model = meter(ScriptedModel(["a b c", Reply(text="d e f", error=ModelFailedError("cut"), error_after=3)]))
    await play(model)
    reported = model.usage
    with pytest.raises(ModelFailedError):
        await play(model)
    assert reported.source is UsageSource.REPORTED
    assert model.usage.source is UsageSource.PARTIAL
    assert model.usage.model_calls == 2
    assert model.usage.input_tokens == 2 * PROMPT
    assert model.usage.output_tokens > reported.output_tokens


async def test_a_call_that_is_broken_off_is_charged_with_what_came() -> None:
    model = meter(ScriptedModel(["one two three four"]))
    stream = model.stream(ASK)
    first = await anext(stream)
    await stream.aclose()
    assert isinstance(first, Text)
    assert model.usage == Usage(
        input_tokens=PROMPT,
        output_tokens=WordPieceCounter().count_text(first.text),
        model_calls=1,
        source=UsageSource.ESTIMATED,
    )


@pytest.mark.parametrize("kind", UNSPENT)
async def test_a_call_that_is_refused_before_any_text_costs_nothing(kind: type[ReasondError]) -> None:
    model = meter(ScriptedModel([Reply(error=kind("not now")), "yes"]), max_model_calls=1)
    with pytest.raises(kind):
        await play(model)
    assert model.usage == Usage()
    assert text_of(await play(model)) == "yes"
    assert model.usage.model_calls == 1


async def test_a_call_that_fails_after_some_text_is_charged() -> None:
    model = meter(ScriptedModel([Reply(text="one two", error=ModelUnavailableError("gone"), error_after=3)]))
    with pytest.raises(ModelUnavailableError):
        await play(model)
    assert (model.usage.input_tokens, model.usage.output_tokens, model.usage.model_calls) == (PROMPT, 1, 1)


async def test_a_call_in_progress_counts_already() -> None:
    model = meter(ScriptedModel(["one two three"]))
    async with aclosing(model.stream(ASK)) as stream:
        await anext(stream)
        assert model.usage.model_calls == 1
        assert model.usage.input_tokens == PROMPT


async def test_the_budget_shortens_the_last_call_that_fits() -> None:
    inner = ScriptedModel(["word " * 60])
    model = meter(inner, max_total_tokens=PROMPT + 5)
    events = await play(model)
    assert inner.requests[0].max_tokens == 5
    assert model.is_clamped
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is ModelFinish.LENGTH
    assert model.usage.total_tokens <= PROMPT + 5


async def test_a_budget_that_covers_the_call_changes_nothing() -> None:
    inner = ScriptedModel(["yes"])
    model = meter(inner, max_total_tokens=PROMPT + 50)
    await play(model)
    assert inner.requests[0].max_tokens == 50
    assert not model.is_clamped


@pytest.mark.parametrize("left", [0, -3])
async def test_a_call_that_does_not_fit_is_refused_before_it_is_made(left: int) -> None:
    inner = ScriptedModel([])
    with pytest.raises(TokenBudgetExhaustedError, match=f"max_total_tokens is {PROMPT + left}") as refused:
        await play(meter(inner, max_total_tokens=PROMPT + left))
    assert refused.value.metadata["needed"] == str(PROMPT + 1)
    assert f"to at least {PROMPT + 1}" in str(refused.value.remedy)
    assert "byte" not in refused.value.message
    assert inner.requests == []


async def test_a_budget_is_refused_with_the_least_that_would_do_and_with_that_it_does() -> None:
    def build() -> FunctionModel:
        return FunctionModel(lambda _: "x", counter=EstimatingCounter())

    with pytest.raises(TokenBudgetExhaustedError, match="one for each byte of the prompt") as refused:
        await play_longer(meter(build(), max_total_tokens=20), tools=[TOOL])
    needed = int(refused.value.metadata["needed"])
    model = build()
    await play_longer(meter(model, max_total_tokens=needed), tools=[TOOL])
    assert [request.max_tokens for request in model.requests] == [1]


async def test_the_number_of_calls_is_bounded() -> None:
    model = meter(ScriptedModel(["a"]), max_model_calls=1)
    await play(model)
    with pytest.raises(TokenBudgetExhaustedError, match="max_model_calls is 1, 1 are spent"):
        await play(model)


async def test_concurrent_calls_reserve_before_they_spend() -> None:
    hold = asyncio.Event()
    model = meter(ScriptedModel([Reply(text="a", hold=hold), "b"]), max_total_tokens=PROMPT + 50)
    first = asyncio.create_task(play(model))
    await asyncio.sleep(0)
    with pytest.raises(TokenBudgetExhaustedError, match=f"{PROMPT + 50} are spent or reserved"):
        await play(model)
    hold.set()
    await first


async def test_where_tokens_are_only_estimated_bytes_are_reserved() -> None:
    inner = ScriptedModel([], counter=ByteCounter(message_overhead=0, prompt_overhead=0))
    with pytest.raises(TokenBudgetExhaustedError):
        await play(meter(inner, max_total_tokens=len(ASK.messages[0].content) + 10))


class Unbounded:
    """A model that ignores `max_tokens`, as some servers do."""

    def __init__(self, text: str) -> None:
        self.inner = FunctionModel(lambda _request: text)
        self.name = "unbounded"
        self.warnings: tuple[str, ...] = ()
        self.context_window: int | None = None
        self.counter: TokenCounter = WordPieceCounter()
        self.text = text

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        return

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        assert request.max_tokens
        for start in range(0, len(self.text), 7):
            yield Text(text=self.text[start : start + 7])
        usage = Usage(input_tokens=1, output_tokens=10**6, model_calls=1)
        yield Finished(reason=ModelFinish.STOP, usage=usage)


@given(text=st.text(min_size=1, max_size=400), limit=st.integers(1, 40))
async def test_a_model_that_ignores_its_limit_is_closed_there(text: str, limit: int) -> None:
    model = meter(Unbounded(text))
    events = await play(model, ChatRequest(messages=ASK.messages, max_tokens=limit))
    came = text_of(events)
    counter = WordPieceCounter()
    assert text.startswith(came)
    assert counter.count_text(came) <= limit
    assert isinstance(events[-1], Finished)
    if came != text:
        assert events[-1].reason is ModelFinish.LENGTH
        # What had come when it was closed is charged, the rest of its last piece included.
        assert limit < model.usage.output_tokens <= counter.count_text(text)


@pytest.mark.parametrize("counter", [EstimatingCounter(), ByteCounter()], ids=["estimate", "bytes"])
@pytest.mark.parametrize("script", SAMPLES)
async def test_a_reply_within_its_limit_is_never_cut_by_an_estimate(script: str, counter: TokenCounter) -> None:
    sample = SAMPLES[script]
    inner = Unbounded(8 * sample.text)
    inner.counter = counter
    events = await play(meter(inner), ChatRequest(messages=ASK.messages, max_tokens=8 * sample.fewest))
    assert text_of(events) == 8 * sample.text
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is ModelFinish.STOP


def test_it_shows_the_model_behind_it() -> None:
    inner = ScriptedModel([], name="inner", context_window=99)
    model = meter(inner)
    assert (model.name, model.context_window, model.warnings) == ("inner", 99, inner.warnings)
    assert model.counter is inner.counter


class Counting(FunctionModel):
    """A model whose server counts 7 tokens for any prompt."""

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return 7 if messages else None


async def play_longer(model: MeteredModel, **changes: Any) -> list[ModelEvent]:
    """Play a call with a longer prompt."""
    messages = [Message(role=Role.USER, content="Why? " * 30)]
    return await play(model, ChatRequest(**{"messages": messages, "max_tokens": 50, **changes}))


async def test_a_budget_is_reserved_by_the_servers_count_where_the_counter_estimates() -> None:
    model = Counting(lambda _: "x", counter=EstimatingCounter())
    await play_longer(meter(model, max_total_tokens=20))
    assert model.requests[0].max_tokens == 13
    with pytest.raises(TokenBudgetExhaustedError):
        await play_longer(meter(model, max_total_tokens=20), tools=[TOOL])


async def test_counters_learn_from_reported_usage_of_plain_calls_only() -> None:
    counter = EstimatingCounter()
    reported = Usage(input_tokens=60, output_tokens=1, model_calls=1)
    usages = [reported, reported, reported, replace(reported, source=UsageSource.PARTIAL)]
    model = FunctionModel(lambda _: Reply(text="x", usage=usages.pop(0)), counter=counter)
    bounded = meter(model)
    await play_longer(bounded)
    assert counter.calibration.reports == 1
    await play_longer(bounded, tools=[TOOL])
    await play_longer(bounded, json_schema={"type": "object"})
    await play_longer(bounded)
    assert counter.calibration.reports == 1


async def test_by_an_estimate_a_call_is_closed_only_where_even_a_lower_one_passes_the_limit() -> None:
    counter = EstimatingCounter()
    inner = FunctionModel(lambda _: "word " * 400, counter=ByteCounter())

    class Ignoring(FunctionModel):
        async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
            async with aclosing(inner.stream(replace(request, max_tokens=9999))) as events:
                async for event in events:
                    yield event

    events = await play_longer(meter(Ignoring(lambda _: "", counter=counter)), max_tokens=100)
    text = text_of(events)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason is ModelFinish.LENGTH
    assert 100 <= count_at_least(text) < 110 < counter.count_text(text)
    assert events[-1].usage.output_tokens >= counter.count_text(text)


async def test_half_a_character_from_a_model_becomes_one_that_every_wire_can_carry() -> None:
    model = meter(ScriptedModel([Reply(pieces=["yes \ud800", "and \udfff no"])]))
    assert text_of(await play(model)) == "yes ?and ? no"


async def test_a_run_that_is_over_ends_the_open_call_and_makes_no_other() -> None:
    model = meter(scripted := ScriptedModel(["one two three", "never"]))
    async with aclosing(model.stream(ASK)) as stream:
        await anext(stream)
        model.close()
        assert [event async for event in stream] == []
    assert scripted.closed == 1
    with pytest.raises(InternalError, match="makes no more calls"):
        await play(model)
    assert model.usage.model_calls == 1


async def test_a_long_prompt_is_counted_beside_the_event_loop() -> None:
    threads = []

    class Counter(WordPieceCounter):
        def count_prompt(self, messages: Sequence[Message]) -> int:
            threads.append(threading.current_thread())
            return super().count_prompt(messages)

    model = meter(FunctionModel(lambda _: "yes", counter=Counter()))
    long = ChatRequest(messages=[Message(role=Role.USER, content="x" * 50_001)], max_tokens=5)
    assert text_of(await play(model, long)) == "yes"
    assert text_of(await play(model)) == "yes"
    first, *_, last = threads
    assert first is not threading.main_thread()
    assert last is threading.main_thread()


async def test_a_recalled_call_is_spent_as_if_it_had_been_made() -> None:
    spent = Usage(input_tokens=PROMPT, output_tokens=20, cached_input_tokens=3, model_calls=1)
    made = meter(ScriptedModel([Reply(text="x", usage=spent), "y"]), max_total_tokens=2 * PROMPT + 30)
    again = meter(ScriptedModel(["y"]), max_total_tokens=2 * PROMPT + 30)
    await play(made)
    again.recall(spent)
    assert again.usage == made.usage == spent
    await play(made)
    await play(again)
    assert again.is_clamped is made.is_clamped is True
    assert again.usage == made.usage


async def test_calls_at_one_time_whose_prompts_are_long_share_the_bound_of_calls() -> None:
    long = replace(ASK, messages=[Message(role=Role.USER, content="why " * LONG_TEXT_CHARACTERS)])
    model = meter(ScriptedModel(["a", "b", "c"]), max_model_calls=1)
    told = await asyncio.gather(*(play(model, long) for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(one, TokenBudgetExhaustedError) for one in told) == 2
    assert model.usage.model_calls == 1


async def test_recalled_calls_count_towards_the_bound_of_calls_and_are_not_refused_by_it() -> None:
    model = meter(ScriptedModel([]), max_model_calls=1, max_total_tokens=5)
    for _ in range(2):
        model.recall(Usage(input_tokens=90, output_tokens=9, model_calls=1))
    assert model.usage.total_tokens == 198
    with pytest.raises(TokenBudgetExhaustedError) as refused:
        await play(model)
    assert refused.value.metadata["limit"] == "max_model_calls"


def test_recalled_warnings_are_told_once_and_a_recalled_clamp_stays() -> None:
    model = meter(ScriptedModel([]))
    model.recall(Usage(model_calls=1), ("cut", "seed left out"), is_clamped=True)
    model.recall(Usage(model_calls=1), ["seed left out", "late"])
    assert list(model.warnings_of_calls) == ["cut", "seed left out", "late"]
    assert model.is_clamped


def test_a_run_that_is_over_recalls_nothing() -> None:
    model = meter(ScriptedModel([]))
    model.close()
    with pytest.raises(InternalError):
        model.recall(Usage(model_calls=1))
    assert model.usage == Usage()


async def test_a_run_counts_with_its_own_counter_and_learns_the_same_from_recalled_calls() -> None:
    shared = EstimatingCounter()
    reported = Usage(input_tokens=PROMPT + 50, output_tokens=1, model_calls=1)
    model = FunctionModel(lambda _: Reply(text="x", usage=reported), counter=shared)
    first, second = (MeteredModel(model=model, budget=Budget(), counter=make_fork(shared)) for _ in range(2))
    untaught = shared.snapshot()
    await play(first)
    assert second.counter.count_prompt(ASK.messages) != first.counter.count_prompt(ASK.messages)
    assert shared.snapshot() != untaught
    second.recall(reported, request=replace(ASK, tools=[TOOL]))
    second.recall(replace(reported, source=UsageSource.ESTIMATED), request=ASK)
    assert second.counter.count_prompt(ASK.messages) != first.counter.count_prompt(ASK.messages)
    second.recall(reported, request=ASK)
    assert second.counter.count_prompt(ASK.messages) == first.counter.count_prompt(ASK.messages)


async def test_tools_and_calls_are_reserved_for_though_no_counter_of_messages_sees_them() -> None:
    tool = ToolSpec(name="look", description="Looks. " * 40, parameters={"type": "object"})
    call = ToolCall(call_id="c1", name="look", arguments_json='{"at": "' + "wall " * 60 + '"}')
    plain = ChatRequest(messages=(Message(role=Role.USER, content="hi"),), max_tokens=10)
    with_tools = replace(plain, tools=(tool,))
    with_calls = replace(
        plain, messages=(*plain.messages, Message(role=Role.ASSISTANT, content="", tool_calls=(call,)))
    )
    for request, is_covered in ((plain, True), (with_tools, False), (with_calls, False)):
        metered = MeteredModel(model=ScriptedModel(["ok"]), budget=Budget(max_total_tokens=100))
        if is_covered:
            assert [event async for event in metered.stream(request)]
        else:
            with pytest.raises(TokenBudgetExhaustedError):
                await anext(metered.stream(request))


async def test_a_call_that_breaks_off_is_charged_with_its_tools_and_with_the_calls_that_came() -> None:
    tool = ToolSpec(name="look", description="Looks. " * 300, parameters={"type": "object"})
    called = ToolCall(call_id="c1", name="look", arguments_json='{"at": "' + "wall " * 20 + '"}')
    for reply, least in ((Reply(tool_calls=(called,)), 20), (Reply(text="so it is"), 1)):
        model = meter(ScriptedModel([reply]))
        stream = model.stream(replace(ASK, tools=(tool,)))
        await anext(stream)
        await stream.aclose()
        assert model.usage.input_tokens >= PROMPT + 300
        assert least <= model.usage.output_tokens <= ASK.max_tokens


class SlowAccount:
    """A budget whose settlements take the given times."""

    def __init__(self, *waits_s: float) -> None:
        self._waits_s = [*waits_s]

    async def reserve(self, *, least: int, most: int) -> Reservation:
        del least
        return Reservation(id="one", caller="anna", tokens=most)

    async def settle(self, held: Reservation, *, used: int) -> None:
        del held, used
        await asyncio.sleep(self._waits_s.pop(0))


async def test_each_of_two_calls_at_once_is_told_what_it_was_charged_with() -> None:
    usages = [Usage(input_tokens=number, output_tokens=1, model_calls=1) for number in (3, 5)]
    script = ScriptedModel([Reply(text="because", usage=usage) for usage in usages])
    model = MeteredModel(model=script, budget=Budget(), account=SlowAccount(0.02, 0.01))

    async def play_and_charge() -> Usage:
        await play(model)
        return model.last_call

    assert [*await asyncio.gather(play_and_charge(), play_and_charge())] == usages


async def test_of_two_calls_at_once_that_are_alike_each_is_closed_itself() -> None:
    model = meter(ScriptedModel(["because it is", "because it is"]))
    first, second = model.stream(ASK), model.stream(ASK)
    for call in (first, second):
        await anext(call)
    # Both calls are at the same event. The one that began later ends first.
    await second.aclose()
    heard = [event async for event in first]
    assert isinstance(heard[-1], Finished)
    assert model.usage.model_calls == 2


async def test_a_call_is_made_once_it_may_be_and_costs_nothing_where_the_run_ends_before() -> None:
    allowed = asyncio.Event()
    script = ScriptedModel(["because"])

    async def hold() -> None:
        await allowed.wait()

    model = MeteredModel(model=script, budget=Budget(), wait_for_lease=hold)
    given_up, made = (asyncio.create_task(play(model)) for _ in range(2))
    await asyncio.sleep(0)
    assert model.usage == Usage(), "what waits is not charged, also not in the log of a run that ends meanwhile"
    given_up.cancel()
    await asyncio.wait([given_up])
    assert not script.requests
    allowed.set()
    assert text_of(await made) == "because"
    assert model.usage.model_calls == 1


async def test_a_call_that_was_held_until_the_run_was_over_is_not_made() -> None:
    script = ScriptedModel([])

    async def hold() -> None:
        model.close()

    model = MeteredModel(model=script, budget=Budget(), wait_for_lease=hold)
    with pytest.raises(InternalError, match="the run is over"):
        await play(model)
    assert model.usage == Usage()

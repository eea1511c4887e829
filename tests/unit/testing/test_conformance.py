"""The models of the package pass the conformance checks, and each check fails for a model that violates it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.demo import DemoModel
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import Finished, Message, ModelFinish, Text
from reasond_server.testing import ConformanceError, FunctionModel, Reply, ScriptedModel
from reasond_server.types import Budget, ToolCall, Usage
from tests.model_conformance import ModelConformance

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest, ModelEvent, TokenCounter

REPLY = "The wall has four gates, one for each wind."
MODELS: dict[str, Callable[[], ChatModel]] = {
    "demo": DemoModel,
    "scripted": lambda: ScriptedModel([REPLY] * 20, context_window=500),
    "function": lambda: FunctionModel(lambda _: Reply(text=REPLY), context_window=500),
    "reasoning": lambda: FunctionModel(lambda _: Reply(text=REPLY, reasoning="Which walls? Hm.")),
    "estimating": lambda: FunctionModel(lambda _: REPLY, counter=ByteCounter()),
    "metered": lambda: MeteredModel(model=DemoModel(), budget=Budget()),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("check", ModelConformance.CHECKS)
async def test_the_models_of_this_package_conform(model: str, check: str) -> None:
    subject = MODELS[model]()

    async def open_calls() -> int:
        return subject.open_calls if isinstance(subject, FunctionModel | ScriptedModel) else 0

    reason = await ModelConformance(subject, open_calls=open_calls).check(check)
    assert not reason or (check, model) in {
        ("names_context_overflow", "reasoning"),
        ("names_context_overflow", "estimating"),
        ("counts_exactly_where_it_says_so", "estimating"),
        *(("takes_tools_where_it_says_so", name) for name in MODELS if not subject.has_native_tools),
    }


async def test_all_checks_can_be_run_at_once_and_say_what_does_not_apply() -> None:
    model = FunctionModel(lambda _: REPLY, counter=ByteCounter())
    skipped = await ModelConformance(model, is_deterministic=False).verify()
    assert set(skipped) == {
        "counts_exactly_where_it_says_so",
        "names_context_overflow",
        "repeats_itself_at_temperature_0",
        "takes_tools_where_it_says_so",
    }


class Bad(FunctionModel):
    """A model that alters the events of a correct model."""

    def __init__(
        self,
        *,
        alter: Callable[[Sequence[ModelEvent]], Sequence[ModelEvent]] = lambda events: events,
        ask: Callable[[ChatRequest], ChatRequest] = lambda request: request,
        reply: Callable[[ChatRequest], str] = lambda _: REPLY,
        counter: TokenCounter | None = None,
        name: str = "bad",
        window: int | None = None,
        counted: int | None = None,
    ) -> None:
        super().__init__(reply, name=name, counter=counter)
        self.alter, self.ask, self.window, self.counted = alter, ask, window, counted

    @property
    def context_window(self) -> int | None:
        return self.window

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self.counted or await super().count_exactly(messages)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        for event in self.alter([event async for event in super().stream(self.ask(request))]):
            yield event


def with_usage(**changes: Any) -> Callable[[Sequence[ModelEvent]], Sequence[ModelEvent]]:
    def alter(events: Sequence[ModelEvent]) -> Sequence[ModelEvent]:
        *rest, end = events
        assert isinstance(end, Finished)
        return [*rest, replace(end, usage=replace(end.usage, **changes))]

    return alter


def ending(**changes: Any) -> Callable[[Sequence[ModelEvent]], Sequence[ModelEvent]]:
    return lambda events: [*events[:-1], replace(events[-1], **changes)]


class Miscounting(WordPieceCounter):
    def head(self, text: str, tokens: int) -> str:
        return super().head(text, tokens + 1)


END = Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=9, output_tokens=1, model_calls=1))


@pytest.mark.parametrize(
    ("check", "model", "complaint"),
    [
        ("describes_itself", lambda: Bad(name=""), "name is empty"),
        ("describes_itself", lambda: Bad(window=0), "context_window is not positive"),
        ("counts_consistently", lambda: Bad(counter=Miscounting()), "an end of at most 0 tokens has 1"),
        ("streams_text_then_one_end", lambda: Bad(alter=lambda events: events[:-1]), "and had 0"),
        ("streams_text_then_one_end", lambda: Bad(alter=lambda events: [*events, END]), "and had 2"),
        ("streams_text_then_one_end", lambda: Bad(alter=lambda events: events[::-1]), "last event of a call must be"),
        ("streams_text_then_one_end", lambda: Bad(alter=lambda events: events[-1:]), "wrote no text"),
        ("streams_text_then_one_end", lambda: Bad(alter=ending(reason=ModelFinish.LENGTH)), "ended with length"),
        ("obeys_max_tokens", lambda: Bad(ask=lambda one: replace(one, max_tokens=99)), "ended with stop"),
        ("obeys_max_tokens", lambda: Bad(alter=with_usage(output_tokens=4)), "4 were written"),
        (
            "obeys_max_tokens",
            lambda: Bad(alter=lambda events: [Text(text="more and more"), *events]),
            "came",
        ),
        ("cuts_at_stop_strings", lambda: Bad(ask=lambda one: replace(one, stop=())), "stands in the text"),
        ("cuts_at_stop_strings", lambda: Bad(alter=ending(matched_stop="x")), "matched_stop is 'x'"),
        (
            "cuts_at_stop_strings",
            lambda: Bad(
                alter=lambda events: [Text(text="~"), *events], reply=lambda one: "ab" * 9 if one.stop else REPLY
            ),
            "not as without it",
        ),
        ("reports_usage_that_adds_up", lambda: Bad(alter=with_usage(model_calls=2)), "counts as 2"),
        ("reports_usage_that_adds_up", lambda: Bad(alter=with_usage(input_tokens=0)), "tokens are missing"),
        ("reports_usage_that_adds_up", lambda: Bad(alter=with_usage(cached_input_tokens=999)), "cached than sent"),
        ("reports_usage_that_adds_up", lambda: Bad(alter=with_usage(reasoning_tokens=999)), "of reasoning"),
        ("reports_usage_that_adds_up", lambda: Bad(alter=with_usage(input_tokens=1)), "reported 1"),
        (
            "reports_usage_that_adds_up",
            lambda: Bad(alter=with_usage(input_tokens=30), counter=ByteCounter()),
            "no more tokens",
        ),
        ("counts_exactly_where_it_says_so", lambda: Bad(counted=1), "counted 1 tokens"),
        ("names_context_overflow", lambda: Bad(window=100), "was accepted"),
        ("keeps_calls_apart", lambda: Bad(ask=lambda one: replace(one, max_tokens=99)), "instead of 1"),
    ],
)
async def test_each_check_catches_a_model_that_breaks_it(
    check: str, model: Callable[[], ChatModel], complaint: str
) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await ModelConformance(model()).check(check)


@pytest.mark.parametrize("check", ["keeps_calls_apart", "repeats_itself_at_temperature_0"])
async def test_a_model_that_says_something_else_every_time_is_caught(check: str) -> None:
    model = FunctionModel(lambda _: f"{len(model.requests)} {REPLY}")
    with pytest.raises(ConformanceError, match=r"different|otherwise"):
        await ModelConformance(model).check(check)


@pytest.mark.parametrize("check", ["is_freed_by_closing", "is_freed_by_cancelling"])
async def test_a_call_that_is_never_freed_is_caught(check: str) -> None:
    async def one() -> int:
        return 1

    conformance = ModelConformance(FunctionModel(lambda _: REPLY), open_calls=one, frees_within_s=0.01)
    with pytest.raises(ConformanceError, match="1 calls still open"):
        await conformance.check(check)


async def test_a_model_that_hangs_is_given_up() -> None:
    model = FunctionModel(lambda _: Reply(text=REPLY, hold=asyncio.Event()))
    with pytest.raises(ConformanceError, match="took longer than"):
        await ModelConformance(model, timeout_s=0.01).check("obeys_max_tokens")


async def test_a_reply_without_a_string_to_stop_at_is_not_judged() -> None:
    model = FunctionModel(lambda _: "a" + " " * 40 + "b")
    assert "no string of its own" in await ModelConformance(model).check("cuts_at_stop_strings")


async def test_every_failure_is_named_and_errors_of_calls_are_passed_on() -> None:
    with pytest.raises(ConformanceError, match=r"describes_itself: .*; obeys_max_tokens: "):
        await ModelConformance(Bad(name="", ask=lambda one: replace(one, max_tokens=99))).verify()
    failing = FunctionModel(lambda _: Reply(error=ModelUnavailableError("gone")))
    with pytest.raises(ModelUnavailableError):
        await ModelConformance(failing).check("streams_text_then_one_end")
    with pytest.raises(KeyError):
        await ModelConformance(failing).check("no such check")


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(tool_calls=(ToolCall(call_id="1", name="walls", arguments_json="{}"),)), ""),
        (Reply(text=REPLY), ""),
        (Reply(tool_calls=(ToolCall(call_id="1", name="gates", arguments_json="{}"),)), "not offered"),
        (Reply(text=REPLY, finish=ModelFinish.TOOL_CALLS), "with 0 calls the reply ended"),
    ],
)
async def test_a_model_that_takes_tools_calls_none_but_those_offered(reply: Reply, told: str) -> None:
    model = FunctionModel(lambda _: reply, has_native_tools=True)
    if not told:
        assert await ModelConformance(model).check("takes_tools_where_it_says_so") == ""
        return
    with pytest.raises(ConformanceError, match=told):
        await ModelConformance(model).check("takes_tools_where_it_says_so")

"""The suite for strategies finds each fault that it promises to find: one correct strategy, and one for each fault."""
# ruff: noqa: ARG002 - what overrides takes what the overridden method takes

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from reasond_server.context.calls import ModelReply, stream_reply
from reasond_server.context.sections import build_prompt
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import ChatRequest, Finished, Message, Role
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, Step, StrategyConfig, Wrote
from reasond_server.testing import ConformanceError, StrategyConformance
from reasond_server.testing import Reply as Said
from reasond_server.types import CostClass, CustomMetrics, CustomStep, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.strategies.strategy import RunContext, StrategyEvent
    from reasond_server.types import Task


class TwiceConfig(StrategyConfig):
    rounds: Annotated[int, Field(ge=1, le=9, description="How often to ask.")] = 2


class Twice(ReasoningStrategy[TwiceConfig]):
    """Asks `rounds` times; a subclass can break each method separately."""

    name = "twice"
    description = "Asks again."
    config_type: ClassVar[type[StrategyConfig]] = TwiceConfig
    cost_class = CostClass.LINEAR
    cost_formula = "rounds calls"
    is_replayable = True

    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        nonce, said = context.new_nonce(), ""
        metrics = CustomMetrics(data={"asked": 0})
        for number in range(context.config.rounds):
            try:
                async with aclosing(self.call(self.prompt(task, nonce), context)) as heard:
                    async for piece in heard:
                        if isinstance(piece, ModelReply):
                            said = (piece.parsed.content or piece.parsed.text).strip()
                        else:
                            yield Wrote(text=piece.text)
            except TokenBudgetExhaustedError:
                if not number:
                    raise
                yield Outcome(answer=said, finish_reason=self.out_of_budget, metrics=metrics)
                return
            metrics = CustomMetrics(data={"asked": number + 1})
            yield self.step(said, metrics)
        yield Outcome(answer=said, finish_reason=FinishReason.ANSWERED, metrics=metrics)

    out_of_budget = FinishReason.BUDGET_EXHAUSTED

    def prompt(self, task: Task, nonce: str) -> Sequence[Message]:
        return build_prompt(instructions="Answer.", question=task.query, nonce=nonce, material=task.material)

    def call(self, messages: Sequence[Message], context: RunContext[TwiceConfig]) -> AsyncGenerator[Any, None]:
        window = context.model.context_window or 100_000
        room = window - context.model.counter.count_prompt(messages)
        if room < 1:
            raise ContextExhaustedError("the prompt does not fit")
        return stream_reply(model=context.model, messages=messages, max_tokens=min(room, 400), temperature=0.5)

    def step(self, said: str, metrics: CustomMetrics) -> Step:
        return Step(detail=CustomStep(data={"said": said}), answer_found=False, metrics=metrics)


class Nameless(Twice):
    name = "Not A Name"


class Speechless(Twice):
    description = " "


class Boastful(Twice):
    def get_capabilities(self) -> list[str]:
        return ["everything"]


class Mute(Twice):
    class Config(StrategyConfig):
        rounds: int = 2

    config_type: ClassVar[type[StrategyConfig]] = Config


class Demanding(Twice):
    class Config(StrategyConfig):
        rounds: int = Field(description="Needed.")

    config_type: ClassVar[type[StrategyConfig]] = Config


class Lax(Twice):
    class Config(StrategyConfig):
        model_config = ConfigDict(extra="ignore")

        rounds: int = Field(default=2, description="Rounds.")

    config_type: ClassVar[type[StrategyConfig]] = Config


class Loose(Twice):
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        rounds: int = Field(default=2, description="Rounds.")

    config_type: ClassVar[Any] = Config


class Costly(Twice):
    cost_formula = ""


class Cheap(Twice):
    cost_class: ClassVar[Any] = "cheap"


class Unending(Twice):
    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        async with aclosing(super().run(task, context)) as events:
            async for event in events:
                if not isinstance(event, Outcome):
                    yield event


class TwoEnds(Twice):
    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        async with aclosing(super().run(task, context)) as events:
            async for event in events:
                yield event
        yield event


class Foreign(Twice):
    def step(self, said: str, metrics: CustomMetrics) -> Step:
        raise KeyError(said)


class Uncarriable(Twice):
    def step(self, said: str, metrics: CustomMetrics) -> Step:
        return replace(super().step(said, metrics), detail=CustomStep(data={"said": "\ud800"}))


class NoEvent(Twice):
    def step(self, said: str, metrics: CustomMetrics) -> Any:
        return said


class Remembering(Twice):
    def __init__(self) -> None:
        self.asked = 0

    def step(self, said: str, metrics: CustomMetrics) -> Step:
        self.asked += 1
        return super().step(said, metrics)


class Mingling(Twice):
    """Keeps its state in a place that all instances share."""

    shared: ClassVar[list[int]] = []

    def step(self, said: str, metrics: CustomMetrics) -> Step:
        self.shared.append(1)
        return super().step(f"{said} {len(self.shared)}", metrics)


class LeavingTasks(Twice):
    tasks: ClassVar[list[asyncio.Task[Any]]] = []

    def step(self, said: str, metrics: CustomMetrics) -> Step:
        self.tasks.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))
        return super().step(said, metrics)


class Deaf(Twice):
    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        try:
            async with aclosing(super().run(task, context)) as events:
                async for event in events:
                    yield event
        except asyncio.CancelledError:
            return


class OpenCalls(Twice):
    """Keeps references to its model calls and never closes them."""

    kept: ClassVar[list[Any]] = []

    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        request = ChatRequest(messages=self.prompt(task, context.new_nonce()), max_tokens=100)
        events = context.model.stream(request)
        self.kept.append(events)
        async for event in events:
            if not isinstance(event, Finished):
                yield Wrote(text=getattr(event, "text", ""))
        metrics = CustomMetrics(data={})
        yield Outcome(answer="", finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Spendthrift(Twice):
    out_of_budget = FinishReason.ANSWERED


class Forgiving(Twice):
    """Yields a normal outcome although the budget did not cover even the first call."""

    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        try:
            async with aclosing(super().run(task, context)) as events:
                async for event in events:
                    yield event
        except TokenBudgetExhaustedError:
            yield Outcome(answer="", finish_reason=FinishReason.BUDGET_EXHAUSTED, metrics=CustomMetrics(data={}))


class Overflowing(Twice):
    def call(self, messages: Sequence[Message], context: RunContext[TwiceConfig]) -> AsyncGenerator[Any, None]:
        return stream_reply(model=context.model, messages=messages, max_tokens=4000, temperature=0.5)


class Stubborn(Twice):
    """Repeats its call until the model writes something."""

    async def run(self, task: Task, context: RunContext[TwiceConfig]) -> AsyncGenerator[StrategyEvent, None]:
        said = ""
        while not said:
            async with aclosing(self.call(self.prompt(task, context.new_nonce()), context)) as heard:
                async for piece in heard:
                    said = piece.parsed.written if isinstance(piece, ModelReply) else said
        metrics = CustomMetrics(data={})
        yield Outcome(answer=said, finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Grouping(Twice):
    """Asks in a task group, which raises exception groups."""

    def call(self, messages: Sequence[Message], context: RunContext[TwiceConfig]) -> AsyncGenerator[Any, None]:
        async def group() -> AsyncGenerator[Any, None]:
            heard: list[Any] = []

            async def ask() -> None:
                async with aclosing(super(Grouping, self).call(messages, context)) as pieces:
                    heard.extend([piece async for piece in pieces])

            async with asyncio.TaskGroup() as group:
                group.create_task(ask())
            for piece in heard:
                yield piece

        return group()


class Fickle(Twice):
    """Depends on other state than its replies."""

    turns: ClassVar[list[int]] = [0]

    def prompt(self, task: Task, nonce: str) -> Sequence[Message]:
        self.turns[0] += 1
        return build_prompt(instructions=f"Answer {self.turns[0]}.", question=task.query, nonce=nonce)


class Trusting(Twice):
    def prompt(self, task: Task, nonce: str) -> Sequence[Message]:
        return (Message(role=Role.USER, content=task.query),)


class HalfTrusting(Twice):
    """Marks its fences, but neutralises nothing in the text."""

    def prompt(self, task: Task, nonce: str) -> Sequence[Message]:
        return (Message(role=Role.USER, content=f"<question {nonce}>\n{task.query}\n</question {nonce}>"),)


class Fixed(Twice):
    """Has one mark for all runs, which an attacker can know."""

    def prompt(self, task: Task, nonce: str) -> Sequence[Message]:
        return super().prompt(task, "abcdefghijklmnopqrst")


BAD: list[tuple[type[Twice], str, str]] = [
    (Nameless, "describes_itself", "the name 'Not A Name' does not match"),
    (Speechless, "describes_itself", "the description is empty"),
    (Boastful, "describes_itself", "its own capability must come first"),
    (Mute, "describes_itself", "parameters without a description: rounds"),
    (Demanding, "describes_itself", "needs defaults for all parameters"),
    (Lax, "describes_itself", "takes a parameter that it does not know"),
    (Loose, "describes_itself", "must be a StrategyConfig"),
    (Costly, "describes_itself", "needs a cost_formula"),
    (Cheap, "describes_itself", "must be a CostClass"),
    (Unending, "yields_steps_then_one_outcome", "ended without an outcome"),
    (TwoEnds, "yields_steps_then_one_outcome", "an event came after the outcome"),
    (Foreign, "yields_steps_then_one_outcome", "which is no ReasondError"),
    (Uncarriable, "yields_steps_then_one_outcome", "CustomStep that is no JSON object"),
    (NoEvent, "yields_steps_then_one_outcome", "is no event of a strategy"),
    (Remembering, "keeps_nothing_of_a_run", "runs changed attributes"),
    (Mingling, "keeps_nothing_of_a_run", "went otherwise than alone"),
    (LeavingTasks, "stops_at_every_event", "left tasks behind: forgotten"),
    (OpenCalls, "stops_at_every_event", "left 1 model calls open"),
    (Deaf, "stops_while_the_model_is_silent", "the run went on or raised something else"),
    (Spendthrift, "ends_with_its_budget", "a run whose budget was gone ended as answered"),
    (Forgiving, "ends_with_its_budget", "must be raised, not ended with an outcome"),
    (Overflowing, "stays_within_the_window", "asks for 4000 tokens after a prompt of"),
    (Stubborn, "survives_hostile_replies", "model calls without end"),
    (Grouping, "lets_errors_of_the_model_pass", "which is no ReasondError"),
    (Fickle, "repeats_itself_from_a_transcript", "made a call that the recorded run did not make"),
    (Mingling, "repeats_itself_from_a_transcript", "took other steps"),
    (Trusting, "fences_untrusted_text", "outside the fences that carry the run's mark"),
    (HalfTrusting, "fences_untrusted_text", "reached the prompt as it was written: </question>"),
    (Fixed, "fences_untrusted_text", "outside the fences that carry the run's mark"),
]


@pytest.mark.parametrize("check", StrategyConformance.CHECKS)
async def test_a_good_strategy_passes(check: str) -> None:
    assert await StrategyConformance(Twice(), config={"rounds": 3}, material="Six.").check(check) == ""


@pytest.mark.parametrize(("kind", "check", "complaint"), BAD, ids=[f"{kind.__name__}-{name}" for kind, name, _ in BAD])
async def test_a_bad_strategy_fails_the_check_that_it_breaks(kind: type[Twice], check: str, complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await StrategyConformance(kind()).check(check)
    for task in LeavingTasks.tasks:
        task.cancel()


def test_every_check_has_a_strategy_that_breaks_it() -> None:
    assert {check for _, check, _ in BAD} == set(StrategyConformance.CHECKS)


@pytest.mark.slow
async def test_verify_names_every_check_that_fails() -> None:
    with pytest.raises(ConformanceError, match=r"describes_itself: .*; .*stays_within_the_window: "):
        await StrategyConformance(type("Both", (Overflowing, Costly), {})()).verify()
    assert await StrategyConformance(Twice()).verify() == {}


async def test_a_strategy_that_promises_no_repetition_is_not_asked_for_it() -> None:
    modest = type("Modest", (Twice,), {"is_replayable": False})()
    assert "does not promise it" in await StrategyConformance(modest).check("repeats_itself_from_a_transcript")


async def test_a_check_that_takes_too_long_says_so() -> None:
    never = asyncio.Event()

    class Waiting(Twice):
        def call(self, messages: Sequence[Message], context: RunContext[TwiceConfig]) -> AsyncGenerator[Any, None]:
            async def wait_first() -> AsyncGenerator[Any, None]:
                await never.wait()
                yield None

            return wait_first()

    with pytest.raises(ConformanceError, match=r"took longer than 0\.05 s"):
        await StrategyConformance(Waiting(), timeout_s=0.05).check("yields_steps_then_one_outcome")


async def test_replies_of_the_author_take_the_place_of_ours() -> None:
    def reply(request: ChatRequest) -> str | Said:
        assert request.messages
        return "<answer>mine</answer>"

    assert await StrategyConformance(Twice(), reply=reply).check("yields_steps_then_one_outcome") == ""

"""A preface before each call and each count of a model."""

from __future__ import annotations

from contextlib import aclosing

from reasond_server.context.calls import bound_prompt, count_prompt
from reasond_server.llm.counting import WordPieceCounter, make_fork
from reasond_server.llm.counting.learners import can_fork, can_learn
from reasond_server.llm.model import ChatRequest, Message, Role
from reasond_server.llm.wrapped_models import Preface, PrefacedModel, preface_counter
from reasond_server.testing import ScriptedModel

RULES = Message(role=Role.SYSTEM, content="Think.")
ASK = Message(role=Role.USER, content="Why?")


def say(role: Role, content: str) -> Message:
    return Message(role=role, content=content)


def test_the_callers_rules_precede_those_of_the_strategy_and_the_history_follows() -> None:
    preface = Preface(system="Be brief.", history=(say(Role.USER, "Hi"), say(Role.ASSISTANT, "Hello")))
    assert preface.apply((RULES, ASK)) == (
        say(Role.SYSTEM, "Be brief.\n\nThink."),
        say(Role.USER, "Hi"),
        say(Role.ASSISTANT, "Hello"),
        ASK,
    )


def test_a_prompt_without_rules_gets_those_of_the_caller() -> None:
    assert Preface(system="Be brief.").apply((ASK,)) == (say(Role.SYSTEM, "Be brief."), ASK)
    assert Preface(history=(say(Role.ASSISTANT, "Hello"),)).apply((ASK,)) == (say(Role.ASSISTANT, "Hello"), ASK)


def test_neighbours_of_one_author_are_joined_and_results_of_tools_are_not() -> None:
    preface = Preface(history=(say(Role.USER, "a"), say(Role.USER, "b")))
    assert preface.apply((ASK,)) == (say(Role.USER, "a\n\nb\n\nWhy?"),)
    results = (say(Role.TOOL, "1"), say(Role.TOOL, "2"))
    assert Preface(system="s").apply(results)[1:] == results


async def test_the_model_gets_the_preface_in_each_call_and_each_count() -> None:
    inner = ScriptedModel(["yes"])
    model = PrefacedModel(model=inner, preface=Preface(system="Be brief.", history=(say(Role.ASSISTANT, "Hello"),)))
    async with aclosing(model.stream(ChatRequest(messages=(RULES, ASK), max_tokens=9))) as events:
        _ = [event async for event in events]
    sent = inner.requests[0].messages
    assert [message.content for message in sent] == ["Be brief.\n\nThink.", "Hello", "Why?"]
    assert model.counter.count_prompt((RULES, ASK)) == inner.counter.count_prompt(sent)
    assert await count_prompt((RULES, ASK), model.counter) == inner.counter.count_prompt(sent)
    assert model.counter.count_text("Why?") == inner.counter.count_text("Why?")


class Guess(WordPieceCounter):
    """Only estimates, and learns."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[tuple[int, int]] = []

    @property
    def is_exact(self) -> bool:
        return False

    def learn(self, messages: object, reported: int) -> None:
        self.reports.append((len(messages), reported))  # type: ignore[arg-type]  # a sequence

    def fork(self) -> Guess:
        return self

    def snapshot(self) -> dict[str, int]:
        return {"reports": len(self.reports)}

    def restore(self, snapshot: object) -> None:  # noqa: ARG002 - the protocol gives it
        self.reports = []


def test_the_bound_in_bytes_has_the_preface_as_well() -> None:
    bare = bound_prompt((ASK,), Guess())
    counter = preface_counter(Guess(), Preface(system="x" * 1000))
    assert bound_prompt((ASK,), counter) >= bare + 1000


def test_a_counter_that_learns_does_so_with_the_preface() -> None:
    inner = Guess()
    counter = make_fork(preface_counter(inner, Preface(system="s")))
    assert can_fork(counter)
    counter.learn((ASK,), 40)
    assert inner.reports == [(2, 40)]
    assert counter.snapshot() == {"reports": 1}
    counter.restore({})
    assert inner.reports == []
    assert not can_learn(preface_counter(WordPieceCounter(), Preface(system="s")))

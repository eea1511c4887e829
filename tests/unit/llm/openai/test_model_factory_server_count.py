"""Counts by the server: the request for each kind of server, the cache, and one log line for a failure."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import ContextExhaustedError, ModelUnavailableError
from reasond_server.llm.model import Message, Role
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.model_factory import ServerCount

if TYPE_CHECKING:
    from collections.abc import Sequence

Asked = tuple[str, dict[str, Any]]


class Answers:
    """A transport that returns the given answers in order; it raises an answer that is an exception."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked: list[Asked] = []

    async def post_json(self, path: str, body: dict[str, Any], *, timeout_s: float = 10.0) -> Any:
        assert timeout_s <= 5.0
        self.asked.append((path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [{"role": message.role.value, "content": message.content} for message in messages]


def counting(answers: Answers, *, path: str = "/tokenize", clock: Clock | None = None) -> ServerCount:
    return ServerCount(
        transport=answers, model="m", count_path=path, wire=wire, monotonic=Clock() if clock is None else clock
    )


def prompt(text: str = "Why?") -> list[Message]:
    return [Message(role=Role.USER, content=text)]


async def test_llamacpp_applies_its_template_and_then_cuts_the_outcome() -> None:
    answers = Answers({"prompt": "<|user|>Why?"}, {"tokens": [1, 2, 3, 4]})
    assert await counting(answers, path="/apply-template")(prompt()) == 4
    assert answers.asked == [
        ("/apply-template", {"messages": [{"role": "user", "content": "Why?"}]}),
        ("/tokenize", {"content": "<|user|>Why?", "add_special": True, "parse_special": True}),
    ]


@pytest.mark.parametrize("answer", [{"count": 7, "tokens": [1]}, {"input_tokens": 7}])
async def test_others_take_the_messages_and_tell_a_number(answer: object) -> None:
    answers = Answers(answer)
    assert await counting(answers)(prompt()) == 7
    assert answers.asked == [("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "Why?"}]})]


async def test_the_same_prompt_is_asked_about_once() -> None:
    answers = Answers({"count": 7}, {"count": 8})
    count = counting(answers)
    assert [await count(prompt()), await count(prompt("How?")), await count(prompt())] == [7, 8, 7]


async def test_no_more_than_the_last_prompts_are_remembered() -> None:
    answers = Answers(*({"count": number} for number in range(300)), {"count": 999}, {"count": 1000})
    count = counting(answers)
    for number in range(300):
        assert await count(prompt(str(number))) == number
    assert await count(prompt("299")) == 299
    assert await count(prompt("0")) == 999


async def test_what_is_used_is_remembered_longer() -> None:
    answers = Answers(*({"count": number} for number in range(257)))
    count = counting(answers)
    for number in range(256):
        await count(prompt(str(number)))
    await count(prompt("0"))
    await count(prompt("256"))
    assert await count(prompt("0")) == 0


FAILURES: list[object] = [
    UpstreamFaultError(ModelUnavailableError("gone")),
    ModelUnavailableError("gone"),
    TimeoutError(),
    None,
    [],
    {"count": "7"},
    {"count": -1},
    {"count": True},
    {},
]


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_is_none_and_one_line_and_a_minute_of_rest(
    failure: object, caplog: pytest.LogCaptureFixture
) -> None:
    answers, clock = Answers(failure, failure, {"count": 7}, failure), Clock()
    count = counting(answers, clock=clock)
    with caplog.at_level(logging.WARNING, "reasond.llm"):
        assert await count(prompt()) is None
        clock.now = 59.0
        assert await count(prompt()) is None
        assert len(answers.asked) == 1
        clock.now = 61.0
        assert await count(prompt()) is None
        assert len(answers.asked) == 2
        assert len(caplog.records) == 1
        clock.now = 122.0
        assert await count(prompt()) == 7
        assert await count(prompt("How?")) is None
    assert len(caplog.records) == 2


@pytest.mark.parametrize(
    "told", [({"prompt": 1},), (["prompt"],), ({"prompt": "x"}, {"tokens": 3}), ({"prompt": "x"}, [])]
)
async def test_a_server_that_answers_otherwise_than_llamacpp_does_not_count(told: tuple[object, ...]) -> None:
    assert await counting(Answers(*told), path="/apply-template")(prompt()) is None


async def test_a_prompt_beyond_the_servers_window_is_not_counted_and_the_next_one_is() -> None:
    answers = Answers(UpstreamFaultError(ContextExhaustedError("too long")), {"count": 3})
    count = counting(answers)
    assert await count(prompt("long " * 9000)) is None
    assert await count(prompt()) == 3


async def test_a_cancelled_count_does_not_make_the_server_rest() -> None:
    answers = Answers({"count": 7})
    count = counting(answers)
    task = asyncio.create_task(count(prompt()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await count(prompt()) == 7

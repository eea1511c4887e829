"""An `OpenAIModel` against a scripted server, with a clock and a random source that the test controls."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reasond_server.errors.model import ModelError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ReasoningText, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions, RetryPolicy, Timeouts
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.openai_model import OpenAIModel
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.llm.openai.transport import OpenAITransport
from reasond_server.telemetry.observers import UNOBSERVED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.llm.model import ModelEvent, TokenCounter
    from reasond_server.telemetry.observers import Observer
    from tests.faults.upstream import Upstream

NOW = 1_800_000_000.0
KEY = "sk-not-to-be-seen"
ONE_ATTEMPT = RetryPolicy(max_attempts=1)
SHORT = Timeouts(connect_s=0.5, first_token_s=0.5, idle_s=0.5, total_s=5.0)


@dataclass(slots=True)
class FakeSleep:
    """Records the waits between attempts instead of waiting."""

    waits: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


@dataclass(slots=True)
class Clock:
    """The real clock plus an offset that the test sets."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass(slots=True)
class Backend:
    """The model, its recorded waits, and its clock."""

    model: OpenAIModel
    sleep: FakeSleep
    clock: Clock


@dataclass(slots=True)
class CallHealth:
    """The events and the error of one call."""

    events: list[ModelEvent] = field(default_factory=list)
    error: ModelError | None = None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def reasoning(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ReasoningText))

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), self
        return last


@asynccontextmanager
async def backend(
    server: Upstream | str,
    *,
    counter: TokenCounter | None = None,
    observer: Observer = UNOBSERVED,
    **options: Any,
) -> AsyncIterator[Backend]:
    """Make a model over `server`, with one attempt unless `retries` is given."""
    address = server if isinstance(server, str) else server.address
    settings: dict[str, Any] = {
        "name": "main",
        "model": "m-1",
        "base_url": address,
        "api_key": KEY,
        "retries": ONE_ATTEMPT,
    } | options
    chosen = BackendOptions(**settings)
    sleep, clock = FakeSleep(), Clock()
    model = OpenAIModel(
        options=chosen,
        counter=counter or ByteCounter(),
        protocol=ResponsesProtocol() if chosen.protocol == "responses" else ChatCompletions(),
        transport=OpenAITransport(options=chosen, now=lambda: NOW),
        monotonic=clock,
        random=lambda: 0.5,
        sleep=sleep,
        observer=observer,
    )
    try:
        yield Backend(model=model, sleep=sleep, clock=clock)
    finally:
        await model.aclose()


def request(text: str = "Say hello.", **more: Any) -> ChatRequest:
    return ChatRequest(messages=[Message(role=Role.USER, content=text)], **({"max_tokens": 100} | more))


async def call(model: OpenAIModel, asked: ChatRequest | None = None) -> CallHealth:
    """Call the model and collect its events and its error."""
    outcome = CallHealth()
    try:
        async for event in model.stream(asked or request()):
            outcome.events.append(event)
    except ModelError as error:
        outcome.error = error
    return outcome


async def ask(server: Upstream, asked: ChatRequest | None = None, **options: Any) -> CallHealth:
    """Call a new model over `server` once."""
    async with backend(server, **options) as one:
        return await call(one.model, asked)

"""The runs of `StrategyConformance`: models that record every call, and runs like those of the server.

Nothing here is random or timed: nonces come from a counter, the clock stands still, and a delay is a number of turns of
the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict, deque
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from reasond_server.errors.base import ReasondError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ChatModel, ChatRequest, ModelEvent, WrappedModel
from reasond_server.strategies.strategy import Outcome, RunContext, Step, Wrote
from reasond_server.testing.models import FunctionModel, Reply
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.tools.tool import NO_TOOLS, ToolSource
from reasond_server.types import Budget, Task

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig, StrategyEvent

    Replier = Callable[[ChatRequest], str | Reply]

MOST_CALLS = 500
"""A run with more model calls than this counts as endless."""


class EndlessError(AssertionError):
    """A run makes calls without end."""


@dataclass(slots=True, kw_only=True)
class Ran:
    """The record of one run. `error` is the exception that it raised, if any; `nonces` are the nonces that it drew."""

    events: list[StrategyEvent] = field(default_factory=list)
    error: BaseException | None = None
    nonces: list[str] = field(default_factory=list)
    is_refused: bool = False

    @property
    def logged(self) -> list[StrategyEvent]:
        """The events that belong in a log."""
        return [event for event in self.events if not isinstance(event, Wrote)]

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the run; None if it failed."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Outcome) else None

    @property
    def steps(self) -> list[Step]:
        """The steps in order."""
        return [event for event in self.events if isinstance(event, Step)]


class _Refusing(MeteredModel):
    """A metered model that records whether it ever refused a call because of the budget."""

    def __init__(self, *, model: ChatModel, budget: Budget, ran: Ran) -> None:
        super().__init__(model=model, budget=budget)
        self._ran = ran

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model within the budget."""
        try:
            async with aclosing(super().stream(request)) as events:
                async for event in events:
                    yield event
        except ReasondError as error:
            self._ran.is_refused = self._ran.is_refused or error.reason == "TOKEN_BUDGET_EXHAUSTED"
            raise


class Probe:
    """Runs one strategy with one configuration on one task, any number of times."""

    def __init__(
        self,
        strategy: ReasoningStrategy[Any],
        *,
        config: StrategyConfig,
        task: Task,
        tools: ToolSource = NO_TOOLS,
        programs: ProgramRunner = NO_PROGRAMS,
    ) -> None:
        self._strategy = strategy
        self._config = config
        self._tools = tools
        self._programs = programs
        self.task = task

    def check(self, model: ChatModel) -> None:
        """Call the strategy's `check` on the task. Raises the same errors."""
        self._strategy.check(self.task, self._config, model)

    async def run(
        self,
        model: ChatModel,
        *,
        budget: Budget | None = None,
        until: Callable[[int], Awaitable[bool]] | None = None,
    ) -> Ran:
        """Run to the end, or until `until`, called with the number of events, returns true; return the record.

        An exception of the strategy is stored in `error`, unless it ends the process or is a cancellation.
        """
        ran, marks = Ran(), itertools.count()
        context = RunContext(
            config=self._config,
            model=_Refusing(model=model, budget=budget or Budget(), ran=ran),
            tools=self._tools.open_toolbox(max_calls=None),
            programs=self._programs,
            monotonic=lambda: 0.0,
            new_nonce=lambda: _note_nonce(ran, next(marks)),
        )
        try:
            async with aclosing(self._strategy.run(self.task, context)) as events:
                async for event in events:
                    ran.events.append(event)
                    if until is not None and await until(len(ran.events)):
                        break
        except Exception as error:  # noqa: BLE001 - the checks examine any exception
            ran.error = error
        return ran


def _note_nonce(ran: Ran, number: int) -> str:
    """Return a nonce that is the same in every run, and record it."""
    nonce = "conformance" + "".join(chr(ord("a") + (number // 26**place) % 26) for place in (2, 1, 0)) + "marks"
    ran.nonces.append(nonce)
    return nonce


class _Never(asyncio.Event):
    """An event that is never set; `told` is set when a task begins to wait for it."""

    def __init__(self, has_come: asyncio.Event) -> None:
        super().__init__()
        self._has_come = has_come

    async def wait(self) -> Literal[True]:
        """Set `told` and wait."""
        self._has_come.set()
        return await super().wait()


class NotingModel(FunctionModel):
    """Replies with the result of `reply` and records every request; an error stops an endless run.

    Call `held_call` (counted from 0) blocks for ever after `held_after` of its pieces; `is_held` is set when it blocks.
    """

    def __init__(
        self,
        reply: Replier,
        *,
        context_window: int | None = None,
        has_native_tools: bool = False,
        held_call: int | None = None,
        held_after: int = 0,
    ) -> None:
        super().__init__(reply, context_window=context_window, has_native_tools=has_native_tools)
        self._held_call = held_call
        self._held_after = held_after
        self.is_held = asyncio.Event()
        self.is_endless = False

    def _choose_reply(self, request: ChatRequest) -> Reply:
        if len(self.requests) > MOST_CALLS:
            self.is_endless = True
            raise EndlessError(f"the run made more than {MOST_CALLS} model calls")
        reply = super()._choose_reply(request)
        if len(self.requests) - 1 != self._held_call:
            return reply
        return replace(reply, hold=_Never(self.is_held), hold_after=self._held_after)


@dataclass(slots=True, kw_only=True)
class Transcript:
    """The recorded replies of a model by request, for a replay.

    If a request was made several times, its replies are replayed in their recorded order. `strange` holds the requests
    of a replay that the recorded run did not make.
    """

    said: dict[str, list[list[ModelEvent]]] = field(default_factory=lambda: defaultdict(list))
    strange: list[ChatRequest] = field(default_factory=list)


class _Wrapped(WrappedModel[ChatModel]):
    """A model that wraps another one."""

    def __init__(self, model: ChatModel, transcript: Transcript) -> None:
        super().__init__(model=model)
        self._transcript = transcript

    async def aclose(self) -> None:
        """Do nothing: the wrapped model is not closed."""


class RecordingModel(_Wrapped):
    """Records the replies of another model."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Forward the call and record its events."""
        said: list[ModelEvent] = []
        self._transcript.said[compute_call_key(request)].append(said)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                said.append(event)
                yield event


class Replayer(_Wrapped):
    """Replays a transcript; each call waits some turns of the event loop, so parallel calls end in another order.

    `seed` chooses the order.
    """

    def __init__(self, model: ChatModel, transcript: Transcript, *, seed: int) -> None:
        super().__init__(model, transcript)
        self._left = {key: deque(said) for key, said in transcript.said.items()}
        self._seed = seed
        self._calls = 0

    @property
    def unused(self) -> int:
        """Number of recorded calls that were not made."""
        return sum(map(len, self._left.values()))

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Replay the recorded reply.

        Raises:
            EndlessError: the recorded run did not make this call.
        """
        self._calls += 1
        turns = (self._calls * 7919 * self._seed) % 23
        said = self._left.get(compute_call_key(request))
        if not said:
            self._transcript.strange.append(request)
            raise EndlessError("a replay made a call that the recorded run did not make")
        events = said.popleft()
        for _ in range(turns):
            await asyncio.sleep(0)
        for event in events:
            yield event


def compute_call_key(request: ChatRequest) -> str:
    """Return a key for a call from everything but its remaining time."""
    return repr(
        (
            request.messages,
            request.max_tokens,
            request.temperature,
            tuple(request.stop),
            request.tools,
            request.tool_choice,
            request.json_schema,
            request.seed,
        )
    )

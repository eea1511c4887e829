"""A language model behind an OpenAI-compatible server: deadlines, retries, health and usage of its calls."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from itertools import count as counted
from typing import TYPE_CHECKING

from reasond_server.errors.model import ContextExhaustedError, ModelError, ModelUnavailableError
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, TokenCounter
from reasond_server.llm.openai import faults
from reasond_server.llm.openai.answer import (
    AnswerReader,
    Deadline,
    StreamedAnswer,
    WaitLimitError,
    WaitLimits,
    build_wait_fault,
)
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.protocol import Body, WireProtocol, shorten_names
from reasond_server.llm.openai.retries import Breaker, CallHealth, ConcurrencyCap, NoRoomError, Retries
from reasond_server.llm.profiles import SchemaLevel
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.scope import note_retry
from reasond_server.types import ToolCall
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from types import TracebackType

    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.retries import BreakerPermit, BreakerState
    from reasond_server.llm.openai.transport import OpenAITransport
    from reasond_server.types.usage import Price

_log = logging.getLogger("reasond.llm")


@value
class _ModelCall:
    """One call; all its attempts share it."""

    request: ChatRequest
    body: Body
    deadline: Deadline


@dataclass(eq=False, kw_only=True)
class OpenAIModel:
    """A `ChatModel` over one backend. Every call streams, because only closing a stream frees the engine.

    A call is repeated only while no part of its answer was accepted. An answer that ends without a finish reason is an
    error, which is raised after its text was yielded. A call may take `timeouts.total_s` seconds, and its answer must
    begin within 95 % of the caller's time.

    Args:
        options: the backend.
        counter: counts tokens if the server does not.
        protocol: Chat Completions or Responses.
        transport: sends the requests; `aclose` closes it.
        monotonic: a clock that never goes back, in seconds.
        random: returns a number from 0 to 1, for jitter.
        sleep: waits between attempts.
        count: asks the server for the tokens of a prompt, if the server can count.
        observer: receives repeated attempts, waits for a free place, and corrected usage.
    """

    options: BackendOptions
    counter: TokenCounter
    protocol: WireProtocol
    transport: OpenAITransport
    monotonic: Callable[[], float]
    random: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    count: Callable[[Sequence[Message]], Awaitable[int | None]] | None = None
    observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        # The self.options for bodies of calls: without stop strings once a stop string has ended hidden reasoning.
        self._body_options = self.options
        self._reported_window: int | None = None
        self._breaker = Breaker(policy=self.options.retries, monotonic=self.monotonic)
        self._retries = Retries(policy=self.options.retries, monotonic=self.monotonic, random=self.random)
        self._cap = ConcurrencyCap(limit=self.options.max_concurrency, on_wait=self._report_wait)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.options.model

    @property
    def warnings(self) -> Sequence[str]:
        """Always empty; the warnings of a call are in its `Finished`."""
        return ()

    @property
    def image_tokens(self) -> int:
        """Most tokens of an image, by the profile; 0: the model takes none."""
        return self.options.profile.image_tokens

    @property
    def enforces_schema(self) -> bool:
        """Whether the server holds answers to a JSON Schema, by the profile."""
        return self.options.profile.json_schema in {SchemaLevel.STRICT, SchemaLevel.GUIDED}

    @property
    def most_logprobs(self) -> int:
        """Of how many likely tokens the server tells the probability, by the profile; Responses are not asked."""
        return self.options.profile.most_logprobs if self.options.protocol == "chat" else 0

    @property
    def price(self) -> Price | None:
        """What its tokens cost, if the operator says so."""
        return self.options.price

    @property
    def context_window(self) -> int | None:
        """Window of the model in tokens, if the profile knows it or an error of the server has told it."""
        known = [each for each in (self.options.profile.context_window, self._reported_window) if each is not None]
        return min(known, default=None)

    @property
    def has_native_tools(self) -> bool:
        """Whether the profile supports tools."""
        return self.options.profile.tools

    @property
    def health(self) -> BreakerState:
        """State of the backend's circuit breaker."""
        return self._breaker.state

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the server's count of the prompt's tokens; None if it does not count."""
        return await self.count(messages) if self.count is not None else None

    async def aclose(self) -> None:
        """Close the connections."""
        await self.transport.aclose()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model; closing the generator closes the connection, which frees the engine.

        Raises:
            ModelError: one of its subclasses.
        """
        options = self.options
        request, names = shorten_names(request, options.profile)
        deadline = Deadline(timeouts=options.timeouts, time_left_s=request.time_left_s, monotonic=self.monotonic)
        call = _ModelCall(
            request=request, body=self.protocol.build_body(request, self._body_options), deadline=deadline
        )
        self._retries.note_call()
        given_up, failed_with = 0, ""
        for attempt in counted(1):
            one = _Attempt(self, call, failed_with)
            try:
                async with one as answer:
                    while not answer.is_over:
                        for event in await answer.read_events():
                            one.is_accepted = True
                            if given_up and isinstance(event, Finished):
                                event = replace(event, warnings=(*event.warnings, *_warn_of_attempts(given_up)))  # noqa: PLW2901 - the same event
                            if names and isinstance(event, ToolCall):
                                event = replace(event, name=names.get(event.name, event.name))  # noqa: PLW2901 - as above
                            yield event
            except UpstreamFaultError as fault:
                self._learn_window(fault.error)
                if one.is_accepted:
                    raise fault.error from None
                given_up += fault.may_cost
                wait_s = await self._choose_wait_s(request, fault, attempt=attempt, deadline=deadline)
                failed_with = fault.error.reason
            else:
                return
            await self.sleep(wait_s)

    def _learn_window(self, error: ModelError) -> None:
        """Take the window that the server told when a prompt did not fit it."""
        reported = int(error.metadata.get("context_window", 0)) if isinstance(error, ContextExhaustedError) else 0
        known = self.context_window
        if reported and (known is None or reported < known):
            self._reported_window = reported
            _log.warning(
                "the model server told a smaller window than was known: it is kept to until the end of this process",
                extra={"backend": self.options.name, "context_window": reported, "known": known or 0},
            )

    def _report_wait(self, waited_s: float) -> None:
        self.observer.waited_for_room(self.options.name, waited_s)

    async def _choose_wait_s(
        self, request: ChatRequest, fault: UpstreamFaultError, *, attempt: int, deadline: Deadline
    ) -> float:
        """Return the seconds until the next attempt.

        Raises:
            ModelError: there is no next attempt.
            TokenBudgetExhaustedError: the budget does not cover it.
        """
        note_lost = request.note_lost if fault.may_cost else None
        try:
            wait_s = self._retries.choose_wait_s(fault, attempt=attempt, time_left_s=deadline.compute_left_s())
        except ModelError as error:
            if note_lost is not None:
                await note_lost(False)
            raise error from None
        if note_lost is not None:
            await note_lost(True)
        return wait_s

    async def _begin_attempt(self, call: _ModelCall, failed_with: str) -> tuple[StreamedAnswer, BreakerPermit]:
        """Begin an attempt with a permit of the breaker and a place of the cap; `_end_attempt` returns both."""
        permit = self._breaker.admit()
        if permit is None:
            raise self._build_breaker_fault()
        try:
            await self._cap.take(wait_s=call.deadline.compute_left_s())
        except BaseException as error:
            self._breaker.report(permit, CallHealth.UNKNOWN)
            if isinstance(error, NoRoomError):
                raise self._build_cap_fault() from None
            raise
        if failed_with:
            self.observer.attempt_repeated(self.options.name, failed_with)
            note_retry()
        try:
            return await self._open_answer(call), permit
        except BaseException as error:
            self._end_attempt(permit, _judge_health(error))
            raise

    def _end_attempt(self, permit: BreakerPermit, outcome: CallHealth) -> None:
        self._cap.give_back()
        self._breaker.report(permit, outcome)

    async def _open_answer(self, call: _ModelCall) -> StreamedAnswer:
        options, request = self.options, call.request
        limits = WaitLimits(timeouts=options.timeouts, deadline=call.deadline, monotonic=self.monotonic)
        try:
            upstream = await limits.wait(
                lambda: self.transport.open(self.protocol.path, call.body.data, messages=call.body.messages)
            )
        except WaitLimitError as waited:
            raise build_wait_fault(options, waited) from None
        reader = AnswerReader(
            decoder=self.protocol.build_decoder(options, max_tokens=request.max_tokens),
            stop=() if request.is_stop_advice else request.stop,
            options=options,
        )
        return StreamedAnswer(
            request=request,
            warnings=call.body.warnings,
            options=options,
            reader=reader,
            upstream=upstream,
            limits=limits,
            counter=self.counter,
            observer=self.observer,
            on_stopped_in_reasoning=self._leave_stops_out if "stop" in call.body.data else None,
        )

    def _leave_stops_out(self) -> None:
        """Send no more stop strings: the server also matches them in hidden reasoning."""
        self._body_options = replace(self.options, profile=replace(self.options.profile, max_stops=0))

    def _build_breaker_fault(self) -> UpstreamFaultError:
        wait = self._breaker.compute_wait_s()
        error = ModelUnavailableError(
            f"The model backend {faults.describe_place(self.options)} failed often lately and is left alone "
            f"for {wait:.1f} s",
            remedy="Ask again then.",
            retry_after_s=wait,
        )
        return UpstreamFaultError(error)

    def _build_cap_fault(self) -> UpstreamFaultError:
        limit = self.options.max_concurrency
        error = ModelUnavailableError(
            f"The model backend {faults.describe_place(self.options)} works on {limit} calls, and none ended in time",
            remedy="Ask again later, or raise max_concurrency of the backend.",
            metadata={"max_concurrency": str(limit)},
        )
        return UpstreamFaultError(error)


class _Attempt:
    """One attempt of a call: opens and closes the answer. Not a generator, which would add a cost to every event.

    `failed_with` is the reason of the attempt that this one repeats, or "".
    `is_accepted` becomes true with the first event. Then the call is not repeated, and the backend counts as healthy,
    even if the caller closes the call before its end.
    """

    def __init__(self, model: OpenAIModel, call: _ModelCall, failed_with: str) -> None:
        self._model = model
        self._call = call
        self._failed_with = failed_with
        self.is_accepted = False

    async def __aenter__(self) -> StreamedAnswer:
        self._answer, self._permit = await self._model._begin_attempt(self._call, self._failed_with)  # noqa: SLF001 - `_Attempt` is a part of `OpenAIModel`
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._answer.aclose()
        accepted = CallHealth.HEALTHY if self.is_accepted else CallHealth.UNKNOWN
        outcome = _judge_health(error) if isinstance(error, UpstreamFaultError) else accepted
        self._model._end_attempt(self._permit, outcome)  # noqa: SLF001 - `_Attempt` is a part of `OpenAIModel`


def _judge_health(error: BaseException) -> CallHealth:
    is_unhealthy = isinstance(error, UpstreamFaultError) and error.is_unhealthy
    return CallHealth.UNHEALTHY if is_unhealthy else CallHealth.UNKNOWN


def _warn_of_attempts(attempts: int) -> Sequence[str]:
    """Return the warning for an answer after `attempts` failed attempts that may have cost tokens."""
    if not attempts:
        return ()
    many = "1 attempt before this answer was" if attempts == 1 else f"{attempts} attempts before this answer were"
    return (f"{many} given up without a word of what it cost; the provider may bill more than the usage says",)

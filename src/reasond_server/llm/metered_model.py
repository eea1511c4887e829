"""A model that measures its usage and never spends more than a budget allows.

Before each call, the worst case (prompt + `max_tokens`) is reserved in the budget. After the call, the measured usage
replaces the reservation. If the counter only estimates, the server's count of the prompt is reserved. If the server
does not count either, the bytes are reserved: a token is at least one byte, so the bound always holds. A counter that
can learn receives the reported usage of each call.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT
from reasond_server.llm.counting.estimates import count_written
from reasond_server.llm.counting.learners import can_learn
from reasond_server.llm.counting.requests import (
    bound_extras,
    bound_images,
    bound_messages,
    count_extras,
    has_long_text,
    render_call,
)
from reasond_server.llm.model import ChatModel, Finished, ModelFinish, Text, WrappedModel, find_price
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import NOTHING, Budget, ToolCall, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter


_CLOSED: Final = "closed"


class CallWatch:
    """Reports one call, which begins now, to `observer`; the outcome of an abandoned call is "closed"."""

    def __init__(self, observer: Observer, model: str, monotonic: Callable[[], float]) -> None:
        self._observer = observer
        self._model = model
        self._monotonic = monotonic
        self._outcome = _CLOSED
        self._has_content = False
        self._started_s = monotonic()

    def note_event(self, event: ModelEvent) -> None:
        """Record an event of the model."""
        if isinstance(event, Finished):
            self._outcome = str(event.reason)
        elif not self._has_content:
            self._has_content = True
            self._observer.first_content(self._model, self._monotonic() - self._started_s)

    def note_failure(self, error: BaseException) -> None:
        """Record the error that ended the call; closing and cancellation are not failures."""
        if isinstance(error, Exception):
            self._outcome = error.reason if isinstance(error, ReasondError) else ReasondError.reason

    def report_end(self) -> str:
        """Report that the call is over; return how it ended."""
        self._observer.model_call_ended(self._model, self._outcome, self._monotonic() - self._started_s)
        return self._outcome


class TokenReservation(Protocol):
    """Tokens that are reserved in the budget of a caller."""

    @property
    def tokens(self) -> int:
        """Number of reserved tokens."""


class TokenAccount(Protocol):
    """The token budget of a caller, shared by all its runs."""

    async def reserve(self, *, least: int, most: int) -> TokenReservation:
        """Reserve up to `most` tokens, but at least `least`.

        Raises:
            TokenBudgetExhaustedError: fewer than `least` tokens are left.
        """

    async def settle(self, reservation: Any, *, used: int) -> None:  # noqa: ANN401 - what `reserve` returned
        """Release the unused tokens of a reservation; a second call has no effect."""


@value
class CutCall:
    """A call that ended before its answer was whole: what the model had written until then, and what that is charged.

    `is_closed`: nothing failed, but the work closed the call, because it had enough or was told to stop.
    """

    text: str
    thinking: str
    usage: Usage
    elapsed_s: float = 0.0
    label: str = ""
    is_closed: bool = False


@value
class EndedCall:
    """A call that was made: what the model was sent, what came back, and how it ended, as `ModelCall` tells."""

    request: ChatRequest
    model: str
    text: str
    thinking: str
    tool_calls: Sequence[str]
    usage: Usage
    elapsed_s: float
    outcome: str


@dataclass(slots=True, eq=False, kw_only=True)
class _MeteredCall:
    """The state of a call before it ends; calls are compared by identity.

    `prompt_tokens` (messages) and `extra_tokens` (tools, tool calls and schema) are None until they are counted.
    `said` and `thoughts` are its text and its hidden reasoning. `cut_by` is the kind of error that ended the call.
    `spent` is None while only an estimate is known. `lost_tokens` is what was reserved for the last attempt, if it may
    be billed although it failed, `lost_before` the same of earlier attempts. `pieces` is the text that the model wrote,
    in order, and `calls` are its tool calls. `passed_tokens` is what it had written when it passed its limit, by our
    counter.
    """

    request: ChatRequest
    prompt_tokens: int | None
    reserved_tokens: int
    max_tokens: int
    pieces: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    began_s: float = 0.0
    outcome: str = _CLOSED
    cut_by: type[BaseException] | None = None
    extra_tokens: int | None = None
    counted_tokens: int = 0
    uncounted_bytes: int = 0
    passed_tokens: int = 0
    is_cut: bool = False
    has_begun: bool = False
    lost_tokens: int = 0
    lost_before: int = 0
    reservation: TokenReservation | None = None
    spent: Usage | None = NOTHING


class MeteredModel(WrappedModel[ChatModel]):
    """The model of one run. `usage` is current at every moment, also in the middle of a call.

    An interrupted call is charged with its prompt and the text that was received, as our counter counts them
    (UsageSource.ESTIMATED). A call that is refused (`errors.UNSPENT`) before any text costs nothing. If a model writes
    more than `max_tokens`, its stream is closed, and what had come is charged; with an estimating counter, a lower
    estimate must exceed the limit.

    An attempt without an answer that the provider may bill is no usage, because nobody knows it. But budgets count
    what was reserved for it as spent, and its repetition is reserved again.

    Args:
        model: the model to call.
        budget: the budget of the task.
        time_left: returns the seconds that the run may still take, for the model's deadlines; None if unlimited.
        counter: the counter of the run, by default the model's; `llm.counting.fork_of` returns one that does not
            learn from other runs.
        account: the token budget of the caller, if there is one.
        wait_for_lease: awaited before each call, after its tokens were reserved; returns when the call may begin.
        spending: returns for the name of a model what is called with the usage that each call of it is charged with.
        observer: receives the first content and the end of each call.
        monotonic: a clock that never goes back, in seconds.
        on_call: called with each call that was made, once it is charged.

    Attributes:
        is_clamped: whether the budget reduced the `max_tokens` of a call.
        lost_tokens: what was reserved for attempts without an answer that the provider may bill.
        warnings_of_calls: the warnings of all ended calls, each once.
        before_call: awaited with the reserved tokens before each call begins; 0 if no budget limits them.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        budget: Budget,
        time_left: Callable[[], float | None] = lambda: None,
        counter: TokenCounter | None = None,
        account: TokenAccount | None = None,
        wait_for_lease: Callable[[], Awaitable[None]] | None = None,
        spending: Callable[[str], Callable[[Usage], None]] = lambda _: _forget,
        observer: Observer = UNOBSERVED,
        monotonic: Callable[[], float] = time.monotonic,
        on_call: Callable[[EndedCall], None] | None = None,
    ) -> None:
        super().__init__(model=model)
        self._on_call = on_call
        self._observer = observer
        self._monotonic = monotonic
        self._wait_for_lease = wait_for_lease
        self._spending = spending
        self._on_spent = spending(model.name)
        self._account = account
        self._counter = model.counter if counter is None else counter
        self._own = (model, self._counter)
        self._budget = budget
        # Whether a budget limits the tokens of calls.
        self._is_bounded = budget.max_total_tokens is not None or account is not None
        self._most_output = budget.max_output_tokens
        self._spent = NOTHING
        self.lost_tokens = 0
        # The usage of the last ended call, and what was reserved for its attempts without an answer.
        self._last = (NOTHING, 0)
        self._open: list[_MeteredCall] = []
        self._cut: list[CutCall] = []
        self._time_left = time_left
        self._is_closed = False
        self.is_clamped = False
        self.warnings_of_calls: dict[str, None] = {}
        self.before_call: Callable[[int], Awaitable[None]] | None = None

    @property
    def counter(self) -> TokenCounter:
        """Counter of the run: its own, or the model's."""
        return self._counter

    @property
    def usage(self) -> Usage:
        """Usage so far, calls in progress included."""
        if not self._open:
            return self._spent
        # A call that waits for tokens or for a lease has not cost anything yet, and may be refused.
        return sum((self._estimate(call) for call in self._open if call.has_begun), self._spent)

    @property
    def last_call(self) -> Usage:
        """Usage that the last ended call was charged with."""
        return self._last[0]

    @property
    def last_lost_tokens(self) -> int:
        """What was reserved for attempts of the last ended call that may be billed without a usage."""
        return self._last[1]

    def switch_to(self, model: ChatModel | None = None, counter: TokenCounter | None = None) -> None:
        """Make all further calls with `model` and `counter`, or with its own model again; the budget stays the same.

        For work that makes one call after the other: no call may be open.

        Raises:
            InternalError: a call is open.
        """
        if self._open:
            raise InternalError("the model was switched during a call")
        chosen, its_counter = self._own if model is None else (model, counter or model.counter)
        if chosen is self._model:
            return
        if self._spent.model_calls:
            self.warnings_of_calls.update(dict.fromkeys(self._model.warnings))
        self._model, self._counter = chosen, its_counter
        self._on_spent = self._spending(chosen.name)

    async def aclose(self) -> None:
        """Do nothing: the model outlives the run."""

    def close(self) -> None:
        """End the run: open calls end at their next event, and every further call is refused."""
        self._is_closed = True
        self.before_call = None

    def recall(
        self,
        usage: Usage,
        warnings: Sequence[str] = (),
        *,
        request: ChatRequest | None = None,
        is_clamped: bool = False,
        lost_tokens: int = 0,
    ) -> None:
        """Charge a replayed call, whose answer is taken from a record.

        The call is not refused, because it was within the budget when it was made. `usage` and `warnings` are
        those of its `Finished`. If `request` is given, the counter learns from it again, so calls must be recalled in
        the order in which they finished. `is_clamped` is whether the budget reduced its `max_tokens`, `lost_tokens`
        are those of its attempts without an answer.

        Raises:
            InternalError: the run is over.
        """
        self._require_open()
        self._spent += usage
        self.lost_tokens += lost_tokens
        self.is_clamped = self.is_clamped or is_clamped
        self.warnings_of_calls.update(dict.fromkeys(warnings))
        if request is not None:
            self._learn(request, usage)

    def recall_cut(self, text: str, thinking: str, usage: Usage) -> None:
        """Keep what a replayed call had written before it failed."""
        if text.strip() or thinking.strip():
            self._cut.append(CutCall(text=text, thinking=thinking, usage=usage))

    def _require_open(self) -> None:
        if self._is_closed:
            raise InternalError("the run is over and makes no more calls")

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model within the budget.

        Raises:
            TokenBudgetExhaustedError: the budget does not cover the prompt and one more token.
            ModelError: as raised by the model.
        """
        self._require_open()
        call = await self._open_call(request)
        try:
            if self.before_call is not None:
                await self.before_call(call.reserved_tokens)
            if self._wait_for_lease is not None:
                await self._wait_for_lease()
            # The run may have ended while tokens were reserved.
            self._require_open()
            call.spent, call.has_begun, call.began_s = None, True, self._monotonic()
            watch = CallWatch(self._observer, self._model.name, self._monotonic)
            events = self._model.stream(self._apply_allowance(request, call))
            try:
                async for event in events:
                    watch.note_event(event)
                    if self._is_closed:
                        return
                    for kept in self._admit_event(request, call, event):
                        yield kept
                    if call.spent is not None:
                        return
            except BaseException as error:
                watch.note_failure(error)
                call.cut_by = type(error)
                raise
            finally:
                try:
                    await events.aclose()
                finally:
                    call.outcome = watch.report_end()
        except UNSPENT:
            call.spent = None if call.pieces or call.calls else NOTHING
            raise
        finally:
            await self._settle(call)

    def _admit_event(self, request: ChatRequest, call: _MeteredCall, event: ModelEvent) -> Sequence[ModelEvent]:
        """Return the events that the run gets for `event`; the last event of the call sets `call.spent`."""
        if isinstance(event, Finished):
            call.spent = event.usage
            self._learn(request, event.usage)
            if event.warnings:
                self.warnings_of_calls.update(dict.fromkeys(event.warnings))
            return (event,)
        if isinstance(event, ToolCall):
            call.calls.append(render_call(event))
            return (event,)
        kept = self._cut_text(call, event.text)
        (call.said if isinstance(event, Text) else call.thoughts).append(kept)
        heard = event if kept == event.text else replace(event, text=kept)
        if not call.is_cut:
            return (heard,)
        call.spent = self._estimate(call)
        return (heard, Finished(reason=ModelFinish.LENGTH, usage=call.spent))

    async def _settle(self, call: _MeteredCall) -> None:
        """Charge an ended call with its usage, or with an estimate if the usage is unknown."""
        self._open.remove(call)
        charged = self._estimate(call) if call.spent is None else call.spent
        self._spent += charged
        if call.cut_by is not None and not call.request.has_enough():
            self._keep_cut(call, charged)
        lost = min(charged.total_tokens, call.lost_tokens) if call.lost_tokens else 0
        self.lost_tokens -= lost
        self._on_spent(charged)
        if self._on_call is not None and call.has_begun:
            self._on_call(self._describe(call, charged))
        try:
            if call.reservation is not None and self._account is not None:
                await self._account.settle(call.reservation, used=max(charged.total_tokens, call.lost_tokens))
        finally:
            # Set last, without an `await` after it: another call of the run may end while this one is settled.
            self._last = (charged, call.lost_before + call.lost_tokens - lost)

    def _describe(self, call: _MeteredCall, charged: Usage) -> EndedCall:
        return EndedCall(
            request=replace(call.request, max_tokens=call.max_tokens),
            model=self._model.name,
            text="".join(call.said),
            thinking="".join(call.thoughts),
            tool_calls=tuple(call.calls),
            usage=charged,
            elapsed_s=self._monotonic() - call.began_s,
            outcome=ModelFinish.LENGTH if call.is_cut else call.outcome,
        )

    def _keep_cut(self, call: _MeteredCall, charged: Usage) -> None:
        """Keep what came of a call that was cut, if that is any text."""
        text, thinking = "".join(call.said), "".join(call.thoughts)
        if text.strip() or thinking.strip():
            self._cut.append(
                CutCall(
                    text=text,
                    thinking=thinking,
                    usage=charged,
                    elapsed_s=self._monotonic() - call.began_s,
                    label=call.request.label,
                    is_closed=call.cut_by in {None, GeneratorExit},
                )
            )

    def take_cut_calls(self, *, is_stopped: bool) -> Sequence[CutCall]:
        """Return the calls that were cut off after text had come, and forget them.

        Those that the work closed itself are among them only if it `is_stopped` from outside.
        """
        for call in self._open:
            self._keep_cut(call, self._estimate(call))
        found, self._cut = self._cut, []
        return [each for each in found if is_stopped or not each.is_closed]

    async def _count_lost(self, call: _MeteredCall, is_repeated: bool) -> None:  # noqa: FBT001 - see `note_lost`
        """Count what was reserved for an attempt as spent, and reserve as much again if it is repeated."""
        most, reserved = self._budget.max_total_tokens, call.reserved_tokens
        self.lost_tokens += reserved
        call.lost_tokens = reserved
        if not is_repeated:
            return
        call.spent = NOTHING
        spent = self._sum_taken()
        if most is not None and spent > most:
            raise build_exhausted_error("max_total_tokens", limit=most, spent=spent - reserved, needed=reserved)
        if self._account is not None:
            # The earlier reservation is never settled, so it stays spent.
            call.reservation = await self._account.reserve(least=reserved, most=reserved)
        call.lost_before, call.lost_tokens, call.spent = call.lost_before + reserved, 0, None

    def _sum_taken(self) -> int:
        """Return the tokens that are spent, lost or reserved."""
        return self._spent.total_tokens + self.lost_tokens + sum(call.reserved_tokens for call in self._open)

    def _apply_allowance(self, request: ChatRequest, call: _MeteredCall) -> ChatRequest:
        """Return the request with the `max_tokens` and the time that the budget allows."""
        left_s = self._time_left()
        note_lost = partial(self._count_lost, call) if self._is_bounded else request.note_lost
        return replace(request, max_tokens=call.max_tokens, time_left_s=left_s, note_lost=note_lost)

    async def _open_call(self, request: ChatRequest) -> _MeteredCall:
        """Reserve the largest cost of the call and return the call; a call that is refused here costs nothing."""
        try:
            exact = await self._count_on_server(request) if self._is_bounded else None
            is_counted = exact is None and (self._is_bounded or has_long_text(request.messages))
            prompt = await self._count_prompt(request.messages) if is_counted else exact
            # No `await` between the reservation and `_open`: other calls of the run reserve from the same budget.
            call = self._reserve(request, prompt, is_exact=exact is not None or self._counter.is_exact)
        except ReasondError:
            self._last = (NOTHING, 0)
            raise
        self._open.append(call)
        if self._account is not None:
            await self._reserve_in_account(call, self._account)
        return call

    async def _reserve_in_account(self, call: _MeteredCall, account: TokenAccount) -> None:
        """Reserve the call's tokens in the caller's budget too; reduce `max_tokens` to the grant, or refuse it."""
        prompt_bound = call.reserved_tokens - call.max_tokens
        try:
            call.reservation = await account.reserve(least=prompt_bound + 1, most=call.reserved_tokens)
        except BaseException:
            self._open.remove(call)
            self._last = (NOTHING, 0)
            raise
        if call.reservation.tokens < call.reserved_tokens:
            call.max_tokens, call.reserved_tokens = call.reservation.tokens - prompt_bound, call.reservation.tokens
            self.is_clamped = True

    async def _count_on_server(self, request: ChatRequest) -> int | None:
        """Return the server's count of the prompt if the counter only estimates; None if it is exact, or unknown."""
        # Servers count messages only; the tokens of tools are known only as a bound in bytes.
        if self._counter.is_exact or request.tools or bound_images(request.messages):
            return None
        return await self._model.count_exactly(request.messages)

    def _learn(self, request: ChatRequest, usage: Usage) -> None:
        """Let the counter learn from the usage of a call that sent only messages, without tools or schema."""
        counter = self._counter
        is_plain = not request.tools and request.json_schema is None and not bound_images(request.messages)
        if is_plain and usage.source is UsageSource.REPORTED and can_learn(counter):
            counter.learn(request.messages, usage.input_tokens)

    async def _count_prompt(self, messages: Sequence[Message]) -> int | None:
        """Return the tokens of a prompt; a long prompt is counted in a thread.

        Returns None for a short prompt whose count is not needed: there is no budget, or the counter only estimates,
        so that bytes are reserved. Such a prompt is counted if the call is interrupted.
        """
        if has_long_text(messages):
            return await asyncio.to_thread(self._counter.count_prompt, messages)
        return self._counter.count_prompt(messages) if self._is_bounded and self._counter.is_exact else None

    def _require_calls(self) -> None:
        """Refuse a call beyond `max_model_calls`."""
        most = self._budget.max_model_calls
        if most is not None and (calls := self._spent.model_calls + len(self._open)) >= most:
            raise build_exhausted_error("max_model_calls", limit=most, spent=calls, needed=1)

    def _reserve(self, request: ChatRequest, prompt: int | None, *, is_exact: bool) -> _MeteredCall:
        """Return the call with `max_tokens` reduced to what the budget has left, or refuse it."""
        self._require_calls()
        most = request.max_tokens if self._most_output is None else self._allow_output(request, self._most_output)
        if not self._is_bounded:
            self.is_clamped = self.is_clamped or most < request.max_tokens
            return _MeteredCall(request=request, prompt_tokens=prompt, reserved_tokens=0, max_tokens=most)
        budget = self._budget
        # Counters and counting servers count message contents only, not tools or tool calls.
        counted = prompt if is_exact else None
        prompt_bound = (bound_messages(request.messages) if counted is None else counted) + bound_extras(request)
        if budget.max_total_tokens is not None:
            spent = self._sum_taken()
            most = min(most, budget.max_total_tokens - spent - prompt_bound)
            if most < 1:
                limit = budget.max_total_tokens
                raise build_exhausted_error(
                    "max_total_tokens",
                    limit=limit,
                    spent=spent,
                    needed=prompt_bound + 1,
                    is_counted=counted is not None,
                )
        self.is_clamped = self.is_clamped or most < request.max_tokens
        reserved = prompt_bound + most
        return _MeteredCall(request=request, prompt_tokens=prompt, reserved_tokens=reserved, max_tokens=most)

    def _allow_output(self, request: ChatRequest, limit: int) -> int:
        """Return the tokens that a call may write of the `limit` for all calls, or refuse it."""
        spent = self._spent.output_tokens + sum(call.max_tokens for call in self._open)
        if spent >= limit:
            raise build_exhausted_error("max_output_tokens", limit=limit, spent=spent, needed=1)
        return min(request.max_tokens, limit - spent)

    def _cut_text(self, call: _MeteredCall, text: str) -> str:
        """Record `text` and return it, cut at `max_tokens` of the call; characters without UTF-8 form become "?"."""
        encoded = text.encode("utf-8", "replace")
        kept = encoded.decode()
        call.pieces.append(kept)
        call.uncounted_bytes += len(encoded)
        if call.counted_tokens + call.uncounted_bytes <= call.max_tokens:
            return kept
        counter = self._counter
        whole = "".join(call.pieces)
        call.counted_tokens, call.uncounted_bytes = count_written(whole, counter), 0
        if call.counted_tokens <= call.max_tokens:
            return kept
        call.passed_tokens = counter.count_text(whole)
        # Text that the run already has stays, even if its upper estimate exceeds the limit.
        call.pieces[-1] = kept[: max(0, len(counter.head(whole, call.max_tokens)) - len(whole) + len(kept))]
        call.is_cut = True
        return call.pieces[-1]

    def _estimate(self, call: _MeteredCall) -> Usage:
        if call.prompt_tokens is None:
            call.prompt_tokens = self.counter.count_prompt(call.request.messages)
        if call.extra_tokens is None:
            call.extra_tokens = count_extras(call.request, self.counter)
        counted = self.counter.count_text("".join([*call.pieces, *call.calls]))
        written = max(min(counted, call.max_tokens), call.passed_tokens)
        price = find_price(self._model)
        usage = Usage(
            input_tokens=call.prompt_tokens + call.extra_tokens,
            output_tokens=written,
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        return usage if price is None else price.charge(usage)


def build_exhausted_error(
    name: str, *, limit: int, spent: int, needed: int, is_counted: bool = True
) -> TokenBudgetExhaustedError:
    """Return the error of a budget whose field `name` does not cover the next model call.

    A prompt that is not `is_counted` is bounded by its bytes.
    """
    why = "" if is_counted else ": one for each byte of the prompt, as nothing here counts this model's tokens exactly"
    return TokenBudgetExhaustedError(
        f"The budget does not cover the next model call: {name} is {limit}, {spent} are spent or reserved, "
        f"{needed} more are needed{why}",
        remedy=f"Raise budget.{name} to at least {spent + needed}, or shorten the task.",
        metadata={"limit": name, "allowed": str(limit), "spent": str(spent), "needed": str(needed)},
    )


def _forget(_usage: Usage) -> None:
    """Keep nothing about what a call has spent."""

"""Checks that every language model behind the port must pass.

    @pytest.mark.parametrize("check", ModelConformance.CHECKS)
    async def test_my_model_conforms(check: str) -> None:
        async with aclosing(MyModel()) as model:
            if reason := await ModelConformance(model).check(check):
                pytest.skip(reason)

Strategies rely on nothing else, so a model that passes works with all of them. The checks judge the behaviour of the
model, not the content of its replies. The calls are real, few and short.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, ReasoningText, Role, Text, ToolSpec
from reasond_server.testing.conformance import ConformanceError, require, run_checks
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from reasond_server.llm.model import ChatModel, ModelEvent

_FEW_TOKENS = 3
_AT_ONCE = 6
_POLL_S = 0.005
_WORD = "word "
_TOOL = ToolSpec(name="walls", description="Returns how many walls a town has.", parameters={"type": "object"})


@dataclass(slots=True)
class _Reading:
    """All events of one call."""

    events: list[ModelEvent] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def reasoning(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ReasoningText))

    @property
    def written(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, (Text, ReasoningText)))

    @property
    def finished(self) -> Finished:
        last = self.events[-1] if self.events else None
        if not isinstance(last, Finished):
            raise ConformanceError(f"the last event of a call must be Finished, and was {last!r}")
        return last


class ModelConformance:
    """Checks one model.

    Args:
        model: the model to check; it is not closed.
        prompt: a question to which the model replies with at least six tokens, some of them outside reasoning.
        max_tokens: enough for the whole reply to `prompt`.
        is_deterministic: whether temperature 0 gives the same text every time.
        ends_by_itself: whether the reply to `prompt` ends before `max_tokens`.
        open_calls: returns the number of open calls of the engine, which shows that closed calls are freed; with None
            only the next call is checked.
        frees_within_s: seconds within which a closed call must be gone from `open_calls`.
        timeout_s: most seconds that one check may take.
    """

    CHECKS: ClassVar[tuple[str, ...]] = (
        "describes_itself",
        "counts_consistently",
        "streams_text_then_one_end",
        "obeys_max_tokens",
        "cuts_at_stop_strings",
        "reports_usage_that_adds_up",
        "counts_exactly_where_it_says_so",
        "names_context_overflow",
        "is_freed_by_closing",
        "is_freed_by_cancelling",
        "keeps_calls_apart",
        "takes_tools_where_it_says_so",
        "repeats_itself_at_temperature_0",
    )
    """Names of the checks, in the order in which `verify` runs them."""

    def __init__(
        self,
        model: ChatModel,
        *,
        prompt: str = "Say something about walls and gates.",
        max_tokens: int = 256,
        is_deterministic: bool = True,
        ends_by_itself: bool = True,
        open_calls: Callable[[], Awaitable[int]] | None = None,
        frees_within_s: float = 1.0,
        timeout_s: float = 30.0,
    ) -> None:
        self._model = model
        self._messages = (
            Message(role=Role.SYSTEM, content="You are being tested."),
            Message(role=Role.USER, content=prompt),
        )
        self._max_tokens = max_tokens
        self._is_deterministic = is_deterministic
        self._ends_by_itself = ends_by_itself
        self._open_calls = open_calls
        self._frees_within_s = frees_within_s
        self._timeout_s = timeout_s

    async def check(self, name: str) -> str:
        """Run the check `name`; return the reason if it does not apply, or an empty text if it passed.

        Raises:
            ConformanceError: the check failed.
            ModelError: a call failed unexpectedly.
            KeyError: there is no check of this name.
        """
        checks: Mapping[str, Callable[[], Awaitable[str | None]]] = {
            "describes_itself": self._describes_itself,
            "counts_consistently": self._counts_consistently,
            "streams_text_then_one_end": self._streams,
            "obeys_max_tokens": self._obeys_max_tokens,
            "cuts_at_stop_strings": self._cuts_at_stop_strings,
            "reports_usage_that_adds_up": self._adds_up,
            "counts_exactly_where_it_says_so": self._counts_exactly,
            "names_context_overflow": self._names_overflow,
            "is_freed_by_closing": self._is_freed_by_closing,
            "is_freed_by_cancelling": self._is_freed_by_cancelling,
            "keeps_calls_apart": self._keeps_calls_apart,
            "takes_tools_where_it_says_so": self._takes_tools,
            "repeats_itself_at_temperature_0": self._repeats_itself,
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                return await checks[name]() or ""
        except TimeoutError:
            raise ConformanceError(f"{name} took longer than {self._timeout_s:g} s") from None

    async def verify(self) -> Mapping[str, str]:
        """Run every check; return the reasons of those that did not apply, by name.

        Raises:
            ConformanceError: some checks failed; the message names all of them.
        """
        return await run_checks(self.CHECKS, self.check)

    async def _describes_itself(self) -> None:
        model = self._model
        require(bool(model.name), "name is empty")
        require(model.context_window is None or model.context_window > 0, "context_window is not positive")
        require(all(bool(warning.strip()) for warning in model.warnings), "a warning is empty")

    async def _counts_consistently(self) -> None:
        counter, text = self._model.counter, _WORD * 40
        whole = counter.count_text(text)
        require(whole > 0 and counter.count_text("") == 0, "a text must have tokens and no text none")
        for limit in (0, 1, 7, whole):
            head, tail = counter.head(text, limit), counter.tail(text, limit)
            require(text.startswith(head) and text.endswith(tail), "head and tail must be ends of the text")
            most = max(counter.count_text(head), counter.count_text(tail))
            require(most <= limit, f"an end of at most {limit} tokens has {most}")
        require(counter.count_prompt(self._messages) >= 1, "a prompt must have tokens")

    async def _streams(self) -> None:
        heard = await self._hear()
        ends = sum(isinstance(event, Finished) for event in heard.events)
        require(ends == 1, f"a call must end with one Finished, and had {ends}")
        require(bool(heard.text), "the model wrote no text outside reasoning")
        if self._ends_by_itself:
            require(heard.finished.reason is ModelFinish.STOP, f"the reply ended with {heard.finished.reason}")

    async def _obeys_max_tokens(self) -> None:
        heard = await self._hear(max_tokens=_FEW_TOKENS)
        reason, written = heard.finished.reason, heard.finished.usage.output_tokens
        require(reason is ModelFinish.LENGTH, f"cut off at {_FEW_TOKENS} tokens, the reply ended with {reason}")
        require(written <= _FEW_TOKENS, f"with max_tokens {_FEW_TOKENS}, {written} were written")
        if self._model.counter.is_exact:
            counted = self._model.counter.count_text(heard.written)
            require(counted <= _FEW_TOKENS, f"with max_tokens {_FEW_TOKENS}, {counted} came")

    async def _cuts_at_stop_strings(self) -> str | None:
        whole = await self._hear()
        text = whole.text
        middle = len(text) // 2
        stop = text[middle : middle + 3]
        if not stop.strip() or stop in whole.reasoning:
            return "the reply has no string of its own to stop at"
        heard = await self._hear(stop=(stop, "this is never written"))
        require(heard.finished.matched_stop in {None, stop}, f"matched_stop is {heard.finished.matched_stop!r}")
        require(stop not in heard.text, "the stop string stands in the text")
        if self._is_deterministic:
            require(heard.text == text[: text.index(stop)], "the text before the stop string is not as without it")
            require(heard.finished.reason is ModelFinish.STOP, f"a stop string ended with {heard.finished.reason}")
        return None

    async def _adds_up(self) -> None:
        usage = (await self._hear()).finished.usage
        require(usage.model_calls == 1, f"one call counts as {usage.model_calls}")
        require(usage.input_tokens > 0 and usage.output_tokens > 0, f"tokens are missing: {usage}")
        require(0 <= usage.cached_input_tokens <= usage.input_tokens, f"more tokens cached than sent: {usage}")
        require(0 <= usage.reasoning_tokens <= usage.output_tokens, f"more tokens of reasoning than written: {usage}")
        counter = self._model.counter
        if counter.is_exact:
            counted = counter.count_prompt(self._messages)
            require(usage.input_tokens == counted, f"the prompt has {counted} tokens, reported {usage.input_tokens}")
        longer = (*self._messages, Message(role=Role.USER, content=_WORD * 20))
        more = (await self._hear(messages=longer)).finished.usage
        require(more.input_tokens > usage.input_tokens, "a longer prompt has no more tokens")

    async def _counts_exactly(self) -> str | None:
        counted = await self._model.count_exactly(self._messages)
        if counted is None:
            return "the model's server does not count"
        used = (await self._hear(max_tokens=_FEW_TOKENS)).finished.usage.input_tokens
        require(counted == used, f"counted {counted} tokens, and {used} were used")
        return None

    async def _names_overflow(self) -> str | None:
        window = self._model.context_window
        if window is None:
            return "the context window is not known"
        huge = Message(role=Role.USER, content=_WORD * (window + 16))
        try:
            await self._hear(messages=(huge,))
        except ContextExhaustedError:
            return None
        raise ConformanceError(f"a prompt of more than {window} tokens was accepted")

    async def _is_freed_by_closing(self) -> None:
        unstarted = self._model.stream(self._request())
        await unstarted.aclose()
        events = self._model.stream(self._request(max_tokens=self._max_tokens * 4))
        await anext(events)
        await events.aclose()
        await self._is_free()

    async def _is_freed_by_cancelling(self) -> None:
        has_begun = asyncio.Event()

        async def call() -> None:
            async with aclosing(self._model.stream(self._request(max_tokens=self._max_tokens * 4))) as events:
                async for _ in events:
                    has_begun.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(call())
        waiting = asyncio.create_task(has_begun.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        require(task.cancelled(), "cancelling a call did not end it as cancelled")
        await self._is_free()

    async def _is_free(self) -> None:
        """Check that no call is open any more, and that the next call is served."""
        if self._open_calls is not None:
            clock = asyncio.get_running_loop()
            deadline = clock.time() + self._frees_within_s
            while open_calls := await self._open_calls():
                late = f"{open_calls} calls still open {self._frees_within_s:g} s after the last was closed"
                require(clock.time() < deadline, late)
                await asyncio.sleep(_POLL_S)
        heard = await self._hear(max_tokens=_FEW_TOKENS)
        require(bool(heard.events), "the call after a closed one said nothing")

    async def _keeps_calls_apart(self) -> None:
        sizes = range(1, _AT_ONCE + 1)
        together = await asyncio.gather(*(self._hear(max_tokens=size) for size in sizes))
        for size, heard in zip(sizes, together, strict=True):
            used = heard.finished.usage.output_tokens
            require(used <= size, f"one of {_AT_ONCE} calls at once wrote {used} tokens instead of {size}")
            if self._is_deterministic:
                alone = await self._hear(max_tokens=size)
                require(alone.written == heard.written, "a call at the same time as others wrote otherwise")

    async def _takes_tools(self) -> str | None:
        if not self._model.has_native_tools:
            return "the model takes no tools natively"
        heard = await self._hear(tools=(_TOOL,))
        calls = [event for event in heard.events if isinstance(event, ToolCall)]
        strange = [call.name for call in calls if call.name != _TOOL.name]
        require(not strange, f"tools were called that were not offered: {strange}")
        is_calling = heard.finished.reason is ModelFinish.TOOL_CALLS
        require(is_calling == bool(calls), f"with {len(calls)} calls the reply ended with {heard.finished.reason}")
        return None

    async def _repeats_itself(self) -> str | None:
        if not self._is_deterministic:
            return "the model does not claim it"
        one, other = await self._hear(), await self._hear()
        require(one.written == other.written, "two calls at temperature 0 wrote different texts")
        return None

    def _request(
        self,
        *,
        messages: Sequence[Message] = (),
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> ChatRequest:
        messages, max_tokens = messages or self._messages, max_tokens or self._max_tokens
        return ChatRequest(messages=messages, max_tokens=max_tokens, temperature=0.0, stop=stop, tools=tools)

    async def _hear(
        self,
        *,
        messages: Sequence[Message] = (),
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> _Reading:
        """Make one call and read it to the end."""
        heard = _Reading()
        request = self._request(messages=messages, max_tokens=max_tokens, stop=stop, tools=tools)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                heard.events.append(event)
        return heard

"""Language models that reply as a test scripts them.

    model = ScriptedModel(["<answer>42</answer>"])
    with model:
        outcome = await ChainOfThought().reason("What is six times seven?", model=model)
    assert outcome.answer == "42"
    assert "six times seven" in model.requests[0].messages[-1].content

The models obey `max_tokens` and `stop`, report usage and end when they are closed, like any other model. They replace
mocks: nothing needs to be patched, and a script with replies left at the end is a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Self

from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, ReasoningText, Text
from reasond_server.llm.stop_filter import StopFilter
from reasond_server.tools.programs import ProgramResult
from reasond_server.types import TokenChance, ToolCall, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from reasond_server.errors.base import ReasondError
    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter


__all__ = ["FunctionModel", "FunctionPrograms", "Reply", "ScriptError", "ScriptedModel"]

_SHOWN_CHARACTERS = 200


class ScriptError(AssertionError):
    """The script and the calls do not match: there were too many calls, or replies are left."""


@value
class Reply:
    """One reply of a model, and the events of its call.

    Attributes:
        text: the text that the model writes.
        finish: the finish reason at the end of `text`; a cut by a stop string or `max_tokens` takes precedence.
        usage: the usage that the model reports; None: one call, with the tokens that the counter counts.
        reasoning: hidden reasoning that the model shows before `text`; counts against `max_tokens`.
        error: raised at the end, or after `error_after` characters of `text`, in place of `Finished`.
        error_after: number of characters of `text` before `error`; 0 fails before the first one.
        pieces: the pieces of `text` on the stream, cut for instance in the middle of a tag; if `text` is empty, it is
            made of them. None cuts `text` as the demo model does.
        hold: the reply waits for this event, so that a test can inspect or cancel the call while it is open.
        hold_after: number of pieces written before the wait; 0 waits before the first piece.
        tokens: its tokens with their probabilities, for calls that ask for them.
        tool_calls: calls of tools that follow `text`, unless `text` was cut; `finish` becomes TOOL_CALLS.
    """

    text: str = ""
    finish: ModelFinish = ModelFinish.STOP
    usage: Usage | None = None
    reasoning: str = ""
    error: ReasondError | None = None
    error_after: int | None = None
    pieces: Sequence[str] | None = None
    hold: asyncio.Event | None = None
    hold_after: int = 0
    tool_calls: Sequence[ToolCall] = ()
    tokens: Sequence[TokenChance] = ()

    def __post_init__(self) -> None:
        if self.pieces is None:
            return
        joined = "".join(self.pieces)
        if self.text not in ("", joined):
            raise ValueError(f"pieces give {joined!r} and text is {self.text!r}: leave out text, or let them agree")
        object.__setattr__(self, "text", joined)


class _PlayedModel(ABC):
    """Base of the models of this module: plays a reply on a stream.

    Attributes:
        requests: every call so far, in the order in which they began.
        closed: calls that were closed or cancelled before their end.
        finished: calls that ended by themselves, with `Finished` or with their error.
        most_logprobs: of how many likely tokens the probability is told, as replies say; 0: of none.
    """

    most_logprobs = 0

    def __init__(
        self,
        *,
        name: str,
        counter: TokenCounter | None = None,
        context_window: int | None = None,
        warnings: Sequence[str] = (),
        has_native_tools: bool = False,
    ) -> None:
        self._name = name
        self._counter: TokenCounter = WordPieceCounter() if counter is None else counter
        self._context_window = context_window
        self._warnings = tuple(warnings)
        self._has_native_tools = has_native_tools
        self.requests: list[ChatRequest] = []
        self.closed = 0
        self.finished = 0

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._name

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings that results show to their readers."""
        return self._warnings

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and output together; a larger prompt is refused."""
        return self._context_window

    @property
    def has_native_tools(self) -> bool:
        """Whether strategies offer tools natively."""
        return self._has_native_tools

    @property
    def counter(self) -> TokenCounter:
        """The counter of this model's tokens."""
        return self._counter

    @property
    def open_calls(self) -> int:
        """Number of calls that have begun and not ended."""
        return len(self.requests) - self.closed - self.finished

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the count of `counter`, which is exact for this model."""
        return self._counter.count_prompt(messages) if self._counter.is_exact else None

    async def aclose(self) -> None:  # noqa: B027 - nothing to close, and nothing to override either
        """Do nothing: the model holds no resources."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Play the next reply.

        Raises:
            ScriptError: there is no reply for this call.
            ContextExhaustedError: the prompt is larger than the window.
            ReasondError: the `error` of the reply.
        """
        self.requests.append(request)
        is_over = False
        try:
            self._check_window(request)
            async with aclosing(self._play(request, self._choose_reply(request))) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        self.finished += 1
                        is_over = True
                    yield event
        except Exception:
            self.finished += not is_over
            is_over = True
            raise
        finally:
            self.closed += not is_over

    @abstractmethod
    def _choose_reply(self, request: ChatRequest) -> Reply:
        """Return the reply to `request`."""

    def _check_window(self, request: ChatRequest) -> None:
        if self._context_window is None:
            return
        tokens = self._counter.count_prompt(request.messages)
        if tokens > self._context_window:
            raise ContextExhaustedError(f"the prompt has {tokens} tokens, and the window {self._context_window}")

    async def _play(self, request: ChatRequest, reply: Reply) -> AsyncGenerator[ModelEvent, None]:
        """Yield the events of one call."""
        await _hold(reply, 0)
        reasoning = self._counter.head(reply.reasoning, request.max_tokens)
        if reasoning:
            yield ReasoningText(text=reasoning)
        reasoning_tokens = self._counter.count_text(reasoning)
        allowed = self._counter.head(reply.text, request.max_tokens - reasoning_tokens)
        stop = StopFilter(request.stop)
        written = ""
        for number, piece in enumerate(_cut(self._split_pieces(reply), self._reach(reply, allowed)), start=1):
            written += piece
            if shown := stop.feed(piece):
                yield Text(text=shown)
            if stop.matched is not None:
                break
            await _hold(reply, number)
        if held := stop.flush():
            yield Text(text=held)
        is_cut = len(allowed) < len(reply.text) or len(reasoning) < len(reply.reasoning)
        if stop.matched is None and reply.error is not None and (reply.error_after is not None or not is_cut):
            raise reply.error
        output_tokens = reasoning_tokens + self._counter.count_text(written)
        finish = _finish(reply, is_cut=is_cut, matched=stop.matched)
        for call in reply.tool_calls if finish is ModelFinish.TOOL_CALLS else ():
            output_tokens += self._counter.count_text(call.arguments_json)
            yield call
        yield Finished(
            reason=finish,
            usage=reply.usage or self._count_usage(request, output_tokens, reasoning_tokens),
            matched_stop=stop.matched,
            tokens=() if request.top_logprobs is None else reply.tokens,
        )

    def _split_pieces(self, reply: Reply) -> Sequence[str]:
        return WordPieceCounter().split(reply.text) if reply.pieces is None else reply.pieces

    def _reach(self, reply: Reply, allowed: str) -> int:
        """Return the most characters that may be written."""
        if reply.error is None or reply.error_after is None:
            return len(allowed)
        return min(len(allowed), reply.error_after)

    def _count_usage(self, request: ChatRequest, output_tokens: int, reasoning_tokens: int) -> Usage:
        return Usage(
            input_tokens=self._counter.count_prompt(request.messages),
            output_tokens=output_tokens,
            reasoning_tokens=reasoning_tokens,
            model_calls=1,
        )


async def _hold(reply: Reply, written: int) -> None:
    """Wait for `hold` if the reply waits after `written` pieces."""
    if reply.hold is not None and reply.hold_after == written:
        await reply.hold.wait()


def _finish(reply: Reply, *, is_cut: bool, matched: str | None) -> ModelFinish:
    if matched is not None:
        return ModelFinish.STOP
    if is_cut:
        return ModelFinish.LENGTH
    return ModelFinish.TOOL_CALLS if reply.tool_calls else reply.finish


def _cut(pieces: Iterable[str], length: int) -> Iterator[str]:
    """Yield the pieces of the first `length` characters."""
    for piece in pieces:
        if length <= 0:
            return
        yield piece[:length]
        length -= len(piece)


class ScriptedModel(_PlayedModel):
    """Gives scripted replies in order, one per call, and requires that all of them are consumed.

    As a context manager (`with` or `async with`) it checks at the end of a block without an exception that every reply
    was consumed; `assert_consumed` does the same at any time.

    Args:
        replies: texts, or `Reply` for errors, waits, tool calls and so on.
        name: name of the model, as results report it.
        counter: counts its tokens; the default is that of the demo model.
        context_window: most tokens of a prompt; None accepts any.
        warnings: warnings that results show to their readers.
        has_native_tools: whether calls may carry tools, which `Reply.tool_calls` then call.
    """

    def __init__(
        self,
        replies: Iterable[str | Reply],
        *,
        name: str = "scripted",
        counter: TokenCounter | None = None,
        context_window: int | None = None,
        warnings: Sequence[str] = (),
        has_native_tools: bool = False,
    ) -> None:
        super().__init__(
            name=name,
            counter=counter,
            context_window=context_window,
            warnings=warnings,
            has_native_tools=has_native_tools,
        )
        self._left = deque(_make_reply(reply) for reply in replies)

    def _choose_reply(self, request: ChatRequest) -> Reply:
        if self._left:
            return self._left.popleft()
        content = request.messages[-1].content if request.messages else ""
        raise ScriptError(
            f"call {len(self.requests)} of model {self._name!r} has no reply in the script; "
            f"its last message begins {content[:_SHOWN_CHARACTERS]!r}"
        )

    def assert_consumed(self) -> None:
        """Check that every reply was consumed.

        Raises:
            ScriptError: replies are left.
        """
        if self._left:
            raise ScriptError(
                f"{len(self._left)} replies of model {self._name!r} were not asked for; "
                f"the first begins {self._left[0].text[:_SHOWN_CHARACTERS]!r}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error_type is None:
            self.assert_consumed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(error_type, error, traceback)


class FunctionModel(_PlayedModel):
    """Replies with the result of `function` for the request, for behaviour that depends on the prompt.

    Args:
        function: returns the text of the reply, or a `Reply`; a ReasondError that it raises becomes the model's error.
        name: name of the model, as results report it.
        counter: counts its tokens; the default is that of the demo model.
        context_window: most tokens of a prompt; None accepts any.
        warnings: warnings that results show to their readers.
        has_native_tools: whether calls may carry tools, which `Reply.tool_calls` then call.
    """

    def __init__(
        self,
        function: Callable[[ChatRequest], str | Reply],
        *,
        name: str = "function",
        counter: TokenCounter | None = None,
        context_window: int | None = None,
        warnings: Sequence[str] = (),
        has_native_tools: bool = False,
    ) -> None:
        super().__init__(
            name=name,
            counter=counter,
            context_window=context_window,
            warnings=warnings,
            has_native_tools=has_native_tools,
        )
        self._function = function

    def _choose_reply(self, request: ChatRequest) -> Reply:
        return _make_reply(self._function(request))


def _make_reply(reply: str | Reply) -> Reply:
    return Reply(text=reply) if isinstance(reply, str) else reply


class FunctionPrograms:
    """Returns `result(source)` for each program; a text is what the program prints. Nothing is run.

    Attributes:
        sources: every program so far, in order.
        materials: the material that each was given.
        answers: the answer that each was given; empty for none.
    """

    is_available = True

    def __init__(self, result: Callable[[str], str | ProgramResult]) -> None:
        self._result = result
        self.sources: list[str] = []
        self.materials: list[str] = []
        self.answers: list[str] = []

    async def run(self, source: str, *, material: str = "", answer: str = "", most_s: float) -> ProgramResult:  # noqa: ARG002 - the port's
        """Return the result of the function."""
        self.sources.append(source)
        self.materials.append(material)
        self.answers.append(answer)
        result = self._result(source)
        return ProgramResult(output=result) if isinstance(result, str) else result

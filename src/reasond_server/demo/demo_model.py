"""The embedded `demo` model: fixed rules behind the port of a language model, so that no key is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.demo.acting import choose_act
from reasond_server.demo.named_tools import choose_named_act
from reasond_server.demo.prompt import read_prompt
from reasond_server.demo.repairing import read_attempt, write_repair
from reasond_server.demo.staging import write_stage
from reasond_server.demo.writing import write_reply
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, Role, Text
from reasond_server.llm.stopping import StopFilter
from reasond_server.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent
    from reasond_server.types import ToolCall

_PIECES_PER_TURN = 8
# This many characters are read in a millisecond; threads for such prompts would use 2 MB of memory.
_SHORT_CHARACTERS = 2048
_WARNING = (
    "answered by the embedded demo model, which follows fixed rules; provider in the [llm] section of config.toml "
    "selects a language model"
)


class DemoModel:
    """Computes arithmetic, percentages and interest, and answers questions about a text by extraction.

    Other questions are refused. It is deterministic: the same request gives the same events. `temperature` has no
    effect. It reads the last user message (`demo.prompt` has the format) and writes its reply in pieces of
    `WordPieceCounter`, one by one. It judges candidates by fixed rules (`demo.writing`), calls a calculator, if
    offered, for each step of a computation (`demo.acting`), and the tools that a request names (`demo.named_tools`).
    Attempts at a repair are one-line edits by rule (`demo.repairing`), and plans come from rules too (`demo.staging`).
    Its answer has tags unless the instructions ask for none.

    Args:
        token_delay_s: pause after each token, in seconds, so that people can watch; 0 writes at full speed.
        context_window: most tokens of prompt and output together.
    """

    def __init__(self, *, token_delay_s: float = 0.0, context_window: int = 32_768) -> None:
        self._token_delay_s = token_delay_s
        self._context_window = context_window
        self._counter = WordPieceCounter()

    @property
    def name(self) -> str:
        """Name of the model: demo."""
        return "demo"

    @property
    def warnings(self) -> Sequence[str]:
        """One sentence which says that the demo model answered."""
        return (_WARNING,)

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and output together."""
        return self._context_window

    @property
    def has_native_tools(self) -> bool:
        """Always True: it calls offered tools."""
        return True

    @property
    def counter(self) -> WordPieceCounter:
        """Counts exactly the tokens that this model reads and writes."""
        return self._counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the count of `counter`, which is exact for this model."""
        if _is_short(messages):
            return self._counter.count_prompt(messages)
        return await asyncio.to_thread(self._counter.count_prompt, messages)

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Write the reply token by token; `max_tokens` is reduced to the room in the window.

        Raises:
            ContextExhaustedError: the prompt exceeds the window.
        """
        prompt_tokens, room, pieces, call = await self._prepare_beside(request)
        stop = StopFilter(request.stop)
        written = 0
        for piece in pieces[:room]:
            written += 1
            if shown := stop.feed(piece):
                yield Text(text=shown)
            if stop.matched is not None:
                break
            if self._token_delay_s or written % _PIECES_PER_TURN == 0:
                await asyncio.sleep(self._token_delay_s)
        if held := stop.flush():
            yield Text(text=held)
        is_cut = stop.matched is None and written < len(pieces)
        reason = ModelFinish.LENGTH if is_cut else ModelFinish.STOP
        call = None if is_cut or stop.matched is not None else call
        if call is not None:
            reason = ModelFinish.TOOL_CALLS
            yield call
        yield Finished(
            reason=reason,
            usage=Usage(input_tokens=prompt_tokens, output_tokens=written + self._tokens_of(call), model_calls=1),
            matched_stop=stop.matched,
        )

    async def _prepare_beside(self, request: ChatRequest) -> tuple[int, int, list[str], ToolCall | None]:
        if _is_short(request.messages):
            return self._prepare(request)
        # Ranking a long text takes many milliseconds and would block the event loop.
        return await asyncio.to_thread(self._prepare, request)

    def _prepare(self, request: ChatRequest) -> tuple[int, int, list[str], ToolCall | None]:
        """Return the prompt's tokens, the most output tokens, the pieces of the whole reply, and its tool call."""
        prompt_tokens = self._counter.count_prompt(request.messages)
        room = self._context_window - prompt_tokens
        if room < 0:
            raise ContextExhaustedError(
                f"the prompt has {prompt_tokens:,} tokens, and the window of the demo model {self._context_window:,}",
                remedy="Use bounded_context, which reads a long text part by part, or a smaller chunk_size.",
                metadata={"prompt_tokens": str(prompt_tokens), "context_window": str(self._context_window)},
            )
        room = max(0, min(room, request.max_tokens))
        if attempt := read_attempt(request.messages):
            return prompt_tokens, room, self._counter.split(write_repair(request.messages, attempt)), None
        prompt = read_prompt(request.messages)
        if staged := write_stage(request.messages, prompt, counter=self._counter, max_tokens=room):
            return prompt_tokens, room, self._counter.split(staged), None
        acted = choose_named_act(request, prompt) or choose_act(request, prompt)
        call = None if acted is None else acted.call
        if acted is None or self._counter.count_text(acted.text) + self._tokens_of(call) > room:
            text, call = write_reply(prompt, counter=self._counter, max_tokens=room), None
        else:
            text = acted.text
        if not _wants_tags(request.messages):
            text = text.replace("<answer>", "").replace("</answer>", "")
        return prompt_tokens, room, self._counter.split(text), call

    def _tokens_of(self, call: ToolCall | None) -> int:
        """Return the output tokens of `call`."""
        return 0 if call is None else self._counter.count_text(call.name + call.arguments_json)


def _wants_tags(messages: Sequence[Message]) -> bool:
    """Return whether instructions ask for an answer in tags, or there are none; texts of callers have no such tags."""
    is_instructed = any(message.role is Role.SYSTEM for message in messages)
    asked = [message.content for message in messages if message.role in {Role.SYSTEM, Role.USER}]
    return not is_instructed or any("<answer>" in text for text in asked)


def _is_short(messages: Sequence[Message]) -> bool:
    return sum(len(message.content) for message in messages) <= _SHORT_CHARACTERS

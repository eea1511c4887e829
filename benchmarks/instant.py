"""The caller and the models of a measured core: one answers at once, others hold a stream or keep a pace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from benchmarks.upstream import text_of
from reasond_server.llm.counting import EstimatingCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, Text, TokenCounter
from reasond_server.types import Principal, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path


CALLER: Final = Principal(subject="bench", tenant="bench", permissions=frozenset({"admin"}))
ANSWER_BYTES = 2048
LOOK_S: Final = 0.2
PIECE: Final = "a few words "


class InstantModel:
    """Answers with 2 KB, half of it thinking, and ends before the stop string, as servers do.

    Its tokens are estimated, as for most backends.
    """

    name = "instant"
    warnings: Sequence[str] = ()
    context_window = None
    has_native_tools = False

    def __init__(self) -> None:
        half = text_of(ANSWER_BYTES // 2)
        self._counter = EstimatingCounter()
        self._text = Text(text=f"{half}\n<answer>{half}")
        usage = Usage(input_tokens=512, output_tokens=512, model_calls=1)
        self._end = Finished(reason=ModelFinish.STOP, usage=usage)

    @property
    def counter(self) -> TokenCounter:
        """Return the estimating counter."""
        return self._counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return None, as most backends do."""
        del messages
        return None

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer."""
        del request
        yield self._text
        yield self._end


class HeldModel(InstantModel):
    """Answers no call until the file `gate` exists; then answers all waiting calls."""

    name = "held"

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self._gate = gate
        self._open: asyncio.Event | None = None
        self._looking: asyncio.Task[None] | None = None

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Wait for the file, then answer."""
        if self._open is None:
            self._open = asyncio.Event()
            self._looking = asyncio.create_task(self._look(self._open))
        opened = self._open
        await opened.wait()
        async for event in super().stream(request):
            yield event

    async def _look(self, opened: asyncio.Event) -> None:
        while not await asyncio.to_thread(self._gate.exists):  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(LOOK_S)
        self._open = None
        opened.set()


class PacedModel(InstantModel):
    """Writes a number of pieces of text, one every `gap_s` seconds."""

    name = "paced"

    def __init__(self, *, pieces: int, gap_s: float) -> None:
        super().__init__()
        self._pieces = pieces
        self._gap_s = gap_s

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Write the pieces."""
        del request
        for _ in range(self._pieces):
            await asyncio.sleep(self._gap_s)
            yield Text(text=PIECE)
        yield Text(text="<answer>done")
        usage = Usage(input_tokens=512, output_tokens=self._pieces, model_calls=1)
        yield Finished(reason=ModelFinish.STOP, usage=usage)

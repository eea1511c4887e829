"""A language model that answers at once in the server's process, so that only the server is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.upstream import text_of
from reasond_server.llm.counting import EstimatingCounter
from reasond_server.llm.model import Finished, ModelFinish, Text
from reasond_server.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter

ANSWER_BYTES = 2048


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

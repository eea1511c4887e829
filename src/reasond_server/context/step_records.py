"""Records of the steps of a run, for strategies and turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import ToolCall, ToolResult


class PromptMemory:
    """Keeps what was made for earlier prompts, for as long as it is made from the same.

    A message that is not made again keeps its JSON. Nothing here changes a prompt.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Sequence[Message], TokenCounter, int]] = {}
        self._steps: dict[int, tuple[Sequence[Any], Sequence[Message]]] = {}

    def keep_part(
        self, source: str, messages: Sequence[Message], counter: TokenCounter, count: Callable[[], int]
    ) -> tuple[Sequence[Message], int]:
        """Return the messages of the part `source` as they were made first, and their tokens by `counter` then."""
        known = self._parts.get(source)
        if known is None or known[1] is not counter or known[0] != messages:
            known = self._parts[source] = (messages, counter, count())
        return known[0], known[2]

    def keep_step(self, place: int, key: Sequence[Any], make: Callable[[], Iterable[Message]]) -> Sequence[Message]:
        """Return the messages of the step number `place`; `key` is everything that they are made from."""
        known = self._steps.get(place)
        if known is None or known[0] != key:
            known = self._steps[place] = (key, tuple(make()))
        return known[1]


@value
class CallRecord:
    """A tool call and its result.

    Attributes:
        call: the call with an id of ours, such as c3, which is unique in the turn.
        result: the whole result; None if the call was not made.
        handle: what `read_tool_result` reads the result by; empty if it cannot be read again.
        wire_id: the provider's id of the call; an empty one or a duplicate is replaced.
        create_time: when the result came, with its time zone; it is never rendered.
    """

    call: ToolCall
    result: ToolResult | None = None
    handle: str = ""
    wire_id: str = ""
    create_time: datetime | None = None


@value
class ReasoningStepRecord:
    """A reply of the model, its calls in their order, and our message after them (seed 002, M1).

    `index` is the number of the reply in the turn. `thinking` is hidden reasoning, which only providers that require it
    get back.
    """

    index: int
    text: str
    thinking: str = ""
    calls: Sequence[CallRecord] = ()
    said: str = ""

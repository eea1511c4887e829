"""What a run has done, step by step, as strategies and turns keep it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reasond_server.types import ToolCall, ToolResult


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

"""What a caller says was said before, as messages of a prompt: calls of tools stand as calls, results as results.

Any history is taken. A call whose result is missing gets an error in its place, and a result whose call is missing gets
a call of an unnamed tool before it, because servers refuse one without the other.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Final

from reasond_server.context.sections import fence
from reasond_server.context.step_records import WireIds, fence_observation, write_step
from reasond_server.llm.model import ImagePart, Message, Role
from reasond_server.tools.results import to_error_text
from reasond_server.types import HistoryMessage, Speaker, ToolCall, ToolResult

UNNAMED_TOOL: Final = "unnamed_tool"
"""The tool of a result whose call is not in the history."""

_LOST: Final = to_error_text("no_result", "the conversation was sent without the result of this call")
_UNSEEN_IMAGE: Final = "[an image that this model cannot see]"


def write_said(
    said: Sequence[HistoryMessage],
    *,
    nonce: str,
    is_native: bool,
    image_tokens: int = 0,
    is_user_fenced: bool = False,
) -> Iterator[Message]:
    """Yield the messages of `said`; results are fenced with `nonce`, and what users said with `is_user_fenced`.

    A model without native tools (`is_native`) reads calls and results in the form of `context.text_calls`. For a model
    that takes no images (`image_tokens` 0) a line stands in place of each.
    """
    wire_ids = WireIds()
    for message, pairs in _pair(said):
        if message.role is Speaker.USER:
            yield _write_user(message, nonce=nonce if is_user_fenced else "", image_tokens=image_tokens)
        elif not pairs:
            yield Message(role=Role.ASSISTANT, content=message.text, reasoning=message.reasoning)
        else:
            yield from write_step(
                text=message.text,
                reasoning=message.reasoning,
                calls=[call for call, _ in pairs],
                wire_ids=[wire_ids.take("") for _ in pairs],
                shown=[fence_observation(result, nonce=nonce) for _, result in pairs],
                said="",
                is_native=is_native,
            )


def _pair(said: Sequence[HistoryMessage]) -> Iterator[tuple[HistoryMessage, Sequence[tuple[ToolCall, ToolResult]]]]:
    """Yield each message with its calls and their results; of messages of tools only what no call before them took."""
    waiting = defaultdict[str, deque[ToolResult]](deque)
    for message in said:
        for result in message.tool_results:
            waiting[result.call_id].append(result)
    taken = set[int]()
    for message in said:
        if message.role is not Speaker.TOOL:
            pairs: list[tuple[ToolCall, ToolResult]] = []
            for call in message.tool_calls:
                queue = waiting[call.call_id]
                result = queue.popleft() if queue else _build_lost_result(call)
                taken.add(id(result))
                pairs.append((call, result))
            yield message, pairs
        elif orphans := [result for result in message.tool_results if id(result) not in taken]:
            for result in orphans:
                waiting[result.call_id].popleft()
            yield (
                HistoryMessage(role=Speaker.ASSISTANT),
                [(ToolCall(call_id=one.call_id, name=UNNAMED_TOOL, arguments_json="{}"), one) for one in orphans],
            )


def _build_lost_result(call: ToolCall) -> ToolResult:
    """Return what stands in place of the result of `call`, which the history does not have."""
    return ToolResult(call_id=call.call_id, result_json=_LOST, is_error=True)


def _write_user(message: HistoryMessage, *, nonce: str, image_tokens: int) -> Message:
    text, images = message.text, message.images
    if images and not image_tokens:
        text, images = "\n".join((*[text][: bool(text)], *[_UNSEEN_IMAGE] * len(images))), ()
    return Message(
        role=Role.USER,
        content=fence("question", text, nonce=nonce) if nonce else text,
        images=tuple(ImagePart(media_type=each.media_type, base64=each.base64, tokens=image_tokens) for each in images),
    )

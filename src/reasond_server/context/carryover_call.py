"""The summary of a window that was cut at its limit, requested as the next turn of the same conversation.

The prompt has the messages of the window, the text that the model wrote, and a short request. A server that caches
prefixes has already read nearly all of it. Like any window, the call must fit chunk_size: the server counts the prompt
if it can, else the model's counter does. The summary gets the remaining tokens, at most 0.15 (C - m).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.context.calls import ModelReply, hear
from reasond_server.context.carryover import read_notes
from reasond_server.context.tags import TagKind, neutralize
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import UNSPENT, ModelError
from reasond_server.llm.model import Message, ModelFinish, Role
from reasond_server.types import NOTHING, Usage, UsageSource
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.context.replies import ParsedReply
    from reasond_server.llm.model import ChatModel

SUMMARY_REQUEST = "The window is full. Write the notes for the next one now, briefly: <continue>the fields</continue>."
FEWEST_SUMMARY_TOKENS = 32
"""No summary is requested if it has less room than this, in tokens."""


@value
class Summary:
    """The result of the call: `notes`, or None and the reason. `usage` is None if no call was made or charged.

    `cut_usage` is as in `ModelReply`.
    """

    notes: ParsedReply | None = None
    failure: str = ""
    usage: Usage | None = None
    cut_usage: Usage = NOTHING
    is_exact: bool = True


def bound_summary(*, chunk_size: int, carryover_size: int) -> int:
    """Return the most tokens a summary may have: 0.15 (C - m), which keeps its share of the latency small."""
    return 3 * (chunk_size - carryover_size) // 20


def build_summary_prompt(messages: Sequence[Message], written: ParsedReply) -> Sequence[Message]:
    """Return the `messages` of the window, the model's reply, and the request."""
    tag = f"<{written.kind.value}>" if written.kind is not None else ""
    said = f"{written.text}{tag}{written.content}"
    reply = Message(
        role=Role.ASSISTANT,
        content=neutralize(said if said.strip() else written.thinking),
        reasoning=neutralize(written.thinking) if said.strip() else "",
    )
    return (*messages, reply, Message(role=Role.USER, content=SUMMARY_REQUEST))


async def summarize(
    *,
    model: ChatModel,
    messages: Sequence[Message],
    written: ParsedReply,
    chunk_size: int,
    most_tokens: int,
    temperature: float,
) -> Summary:
    """Request the summary. An error of the model is not raised but returned as `Summary.failure`.

    Cancellations and defects of this program are raised.
    """
    if not written.written:
        return Summary(failure="the window left nothing to summarize")
    if most_tokens < FEWEST_SUMMARY_TOKENS:
        return Summary(failure="chunk_size leaves no room for a summary")
    prompt = build_summary_prompt(messages, written)
    heard: list[str] = []
    counted, is_exact = model.counter.count_prompt(prompt), model.counter.is_exact
    try:
        told = await model.count_exactly(prompt)
        counted, is_exact = (counted, is_exact) if told is None else (told, True)
        room = min(most_tokens, chunk_size - counted)
        if room < FEWEST_SUMMARY_TOKENS:
            return Summary(failure="the window left no room for a summary")
        call = hear(model=model, messages=prompt, max_tokens=room, temperature=temperature, kinds=(TagKind.CONTINUE,))
        async with aclosing(call) as pieces:
            async for piece in pieces:
                if isinstance(piece, ModelReply):
                    reply = piece
                else:
                    heard.append(piece.text)
    except (ModelError, TokenBudgetExhaustedError) as error:
        is_charged = not isinstance(error, (*UNSPENT, TokenBudgetExhaustedError)) or bool(heard)
        usage = Usage(
            input_tokens=counted,
            output_tokens=model.counter.count_text("".join(heard)),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        failure = f"the summary call failed ({error.reason})"
        return Summary(failure=failure, usage=usage if is_charged else None, is_exact=is_exact)
    failure = _find_flaw(reply)
    return Summary(
        notes=None if failure else reply.parsed,
        failure=failure,
        usage=reply.usage,
        cut_usage=reply.cut_usage,
        is_exact=is_exact,
    )


def _find_flaw(reply: ModelReply) -> str:
    """Return why a reply is not a summary; empty if it is one."""
    parsed = reply.parsed
    if reply.finish is ModelFinish.CONTENT_FILTER:
        return "the summary was withheld by a content filter"
    if not (parsed.content.strip() or parsed.text.strip()):
        return "the summary was empty"
    if parsed.kind is None and not read_notes(parsed.text).fields:
        return "the summary had no notes in it"
    return ""

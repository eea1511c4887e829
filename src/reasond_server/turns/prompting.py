"""The prompts of a turn: what stands in them, from which records, and what the log keeps of how it was shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import run_by_size
from reasond_server.context.fences import fence, write_fence_rule
from reasond_server.context.reasoning_context import build_reasoning_context
from reasond_server.context.reasoning_parts import ContextInputs, PromptPart, StoredRendering
from reasond_server.context.step_records import CallRecord, ReasoningStepRecord
from reasond_server.llm.model import Message, Role
from reasond_server.types.turns import ContextGoal, ContextScope, LoggedRendering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.context.reasoning_parts import ContextSettings, ReasoningContext
    from reasond_server.llm.model import TokenCounter
    from reasond_server.turns.fold import TurnProgress
    from reasond_server.types.turns import ContextBlock, TurnStarted

_INSTRUCTIONS: Final = (
    "You work on the user's request, in turns with tools. The last question is the request; the ones before it were "
    "answered. Call tools where they help, several in one reply if they do not depend on each other. When you know the "
    "answer, write it without calling a tool."
)
_SYNTHESIS: Final = (
    "Write the final answer to the user's request now, from the results above. They are shown more completely than "
    "before. Call no tools."
)
_ANSWER_NOW: Final = "Answer the user's request now, from what you know. Call no more tools."


def build_inputs(
    progress: TurnProgress,
    *,
    instructions: str,
    history: Sequence[PromptPart],
    blocks: Sequence[ContextBlock],
    goal: ContextGoal,
    is_last: bool,
    budget_tokens: int | None,
    counter: TokenCounter,
    settings: ContextSettings,
    nonce: str,
    is_native: bool,
) -> ContextInputs:
    """Return the inputs of the next prompt.

    `instructions` are those of the mode, `blocks` those of providers and of the client that apply now. Blocks of the
    scope TURN stand last, because the next prompt does not have them.
    """
    start = progress.start
    assert start is not None  # noqa: S101 - the first event is appended before the work begins
    lasting = [one for one in blocks if one.scope is ContextScope.SESSION]
    passing = [one for one in blocks if one.scope is ContextScope.TURN]
    tail = [_say(one.name, _fence_block(one, nonce)) for one in passing]
    if goal is ContextGoal.SYNTHESIS:
        tail.append(_say("synthesis", _SYNTHESIS))
    elif is_last:
        tail.append(_say("last", _ANSWER_NOW))
    return ContextInputs(
        opening=_open(instructions, lasting, nonce=nonce),
        history=history,
        question=[ask(start, nonce=nonce)],
        records=list_records(progress),
        tail=tail,
        goal=goal,
        budget_tokens=budget_tokens,
        renderings=read_renderings(progress.renderings),
        settings=settings,
        query=start.message,
        counter=counter,
        nonce=nonce,
        is_native=is_native,
    )


async def build_context(inputs: ContextInputs) -> ReasoningContext:
    """Return the prompt; a long one is built in a thread. Raises as `build_reasoning_context`."""
    return await run_by_size(inputs.characters, partial(build_reasoning_context, inputs))


def ask(start: TurnStarted, *, nonce: str) -> PromptPart:
    """Return the message of a turn with its material, in fences with the mark `nonce`."""
    sections = [fence("question", start.message, nonce=nonce)]
    if start.material:
        sections.append(fence("material", start.material, nonce=nonce))
    return PromptPart(source="message", messages=(Message(role=Role.USER, content="\n".join(sections)),))


def list_records(progress: TurnProgress) -> Sequence[ReasoningStepRecord]:
    """Return the replies of the model with their calls and results."""
    return [
        ReasoningStepRecord(
            index=one.step.index,
            text=one.step.text,
            thinking=one.step.thinking,
            calls=tuple(
                CallRecord(call=each.call, result=each.result, handle=each.call.call_id, wire_id=each.provider_id)
                for each in one.calls
            ),
        )
        for one in progress.replies
        if one.step.goal is ContextGoal.PLANNING
    ]


def read_renderings(logged: Mapping[str, LoggedRendering]) -> Mapping[str, StoredRendering]:
    """Return the renderings of the log as the builder of prompts takes them."""
    return {
        source: StoredRendering(rendering=one.rendering, tokens=one.tokens, full_tokens=one.full_tokens, text=one.text)
        for source, one in logged.items()
    }


def log_renderings(new: Mapping[str, StoredRendering]) -> Sequence[LoggedRendering]:
    """Return new renderings as the log keeps them."""
    return tuple(
        LoggedRendering(
            source=source, rendering=one.rendering, tokens=one.tokens, full_tokens=one.full_tokens, text=one.text
        )
        for source, one in new.items()
    )


def _open(instructions: str, lasting: Sequence[ContextBlock], *, nonce: str) -> Sequence[PromptPart]:
    """Return the system message: what never changes first, then the mode, then the blocks of the session."""
    texts = [_fence_block(one, nonce) for one in lasting]
    whole = "\n\n".join(part for part in (_INSTRUCTIONS, instructions, *texts) if part)
    message = Message(role=Role.SYSTEM, content=whole + write_fence_rule(nonce))
    return [PromptPart(source="system", messages=(message,))]


def _say(source: str, text: str) -> PromptPart:
    return PromptPart(source=source, messages=(Message(role=Role.USER, content=text),))


def _fence_block(block: ContextBlock, nonce: str) -> str:
    return fence("notes", f"{block.name}:\n{block.text}", nonce=nonce)

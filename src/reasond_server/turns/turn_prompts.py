"""The prompts of a turn: built from its records; the log keeps how each result was shown."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.answer_schemas import write_schema_rule
from reasond_server.context.calls import run_by_size
from reasond_server.context.reasoning_context import build_reasoning_context
from reasond_server.context.reasoning_parts import ContextInputs, PromptPart, StoredRendering
from reasond_server.context.said_messages import write_said
from reasond_server.context.sections import FENCE_RULE, fence
from reasond_server.context.step_records import CallRecord, ReasoningStepRecord
from reasond_server.context.text_calls import ACTION_RULE, bound_specs, write_tools
from reasond_server.llm.model import ChatModel, ImagePart, Message, Role, ToolSpec, find_image_tokens
from reasond_server.llm.wrapped_models import join_neighbours
from reasond_server.tools.results import to_error_text
from reasond_server.types import HistoryMessage, ToolResult
from reasond_server.types.turns import CallKind, ContextGoal, ContextScope, LedgerState, LoggedRendering, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.context.reasoning_parts import ContextSettings, ReasoningContext
    from reasond_server.turns.fold import LedgerCall, TurnProgress
    from reasond_server.turns.providers import ProvidedText

_TASK: Final = (
    "You work on the user's request, in turns with tools. The last question is the request; the ones before it were "
    "answered. "
)
_NATIVE: Final = (
    "Call tools where they help, several in one reply if they do not depend on each other. When you know the "
    "answer, write it without calling a tool."
)
_IN_TEXT: Final = (
    "Call tools where they help. Results come as <observation>; never write one yourself. "
    f"{ACTION_RULE}When you know the answer, write it without an action."
)
_SYNTHESIS: Final = (
    "Write the final answer to the user's request now, from the results above. Where one is not whole, that is said. "
    "Call no tools."
)
LAST: Final = "last"
"""The source of the words by which the model has to answer."""
SAID: Final = "said"
"""The beginning of the sources of what a caller says was said before."""
_ANSWER_NOW: Final = "Answer the user's request now, from what you know. Call no more tools."


def build_inputs(
    progress: TurnProgress,
    *,
    history: Sequence[PromptPart],
    provided: Sequence[ProvidedText],
    specs: Sequence[ToolSpec],
    goal: ContextGoal,
    is_last: bool,
    said: str = "",
    budget_tokens: int | None,
    model: ChatModel,
    settings: ContextSettings,
    nonce: str,
) -> ContextInputs:
    """Return the inputs of the next prompt, for `model`.

    `said` is what the prompt ends with for this call alone. `provided` are the texts of the context providers. Those of
    the scope TURN stand last, because the next prompt does not have them. `specs` are the tools that the call offers; a
    model without native tools reads them in the prompt.
    """
    start = progress.start
    assert start is not None  # noqa: S101 - the first event is appended before the work begins
    is_native = model.has_native_tools
    lasting = [_write_provided(one, nonce) for one in provided if one.scope is ContextScope.SESSION]
    passing = [one for one in provided if one.scope is ContextScope.TURN]
    tail = [_make_part(one.name, _write_provided(one, nonce)) for one in passing]
    if said:
        tail.append(_make_part("said", said))
    elif goal is ContextGoal.SYNTHESIS:
        tail.append(_make_part("synthesis", _SYNTHESIS))
    elif is_last:
        tail.append(_make_part(LAST, _ANSWER_NOW))
    return ContextInputs(
        opening=_open(() if is_native else specs, lasting, system=_write_system(start)),
        history=(*group_said(start.history, nonce=nonce, model=model), *history),
        question=[ask(start, nonce=nonce, image_tokens=find_image_tokens(model))],
        records=list_records(progress, model=model.name),
        tail=tail,
        goal=goal,
        is_last=is_last,
        budget_tokens=budget_tokens,
        renderings=read_renderings(progress.renderings),
        settings=settings,
        query=start.message,
        memory=progress.memory,
        counter=model.counter,
        nonce=nonce,
        is_native=is_native,
    )


async def build_context(inputs: ContextInputs) -> ReasoningContext:
    """Return the prompt; a long one is built in a thread. Raises as `build_reasoning_context`."""
    return await run_by_size(inputs.characters, partial(build_reasoning_context, inputs))


def _write_system(start: TurnStarted) -> str:
    """Return the instructions of the caller, with the schema of the answer."""
    rule = write_schema_rule(json.loads(start.answer_schema_json)) if start.answer_schema_json else ""
    return "\n\n".join(part for part in (start.system, rule) if part)


def ask(start: TurnStarted, *, nonce: str, image_tokens: int = 0) -> PromptPart:
    """Return the message of a turn with its material, in fences with the mark `nonce`."""
    sections = [fence("question", start.message, nonce=nonce)]
    if start.material:
        sections.append(fence("material", start.material, nonce=nonce))
    images = tuple(
        ImagePart(media_type=each.media_type, base64=each.base64, tokens=image_tokens) for each in start.images
    )
    return PromptPart(source="message", messages=(Message(role=Role.USER, content="\n".join(sections), images=images),))


def group_said(said: Sequence[HistoryMessage], *, nonce: str, model: ChatModel) -> Sequence[PromptPart]:
    """Return what a caller says was said before: one part for each message of the user, with its replies.

    Neighbouring messages of one author are joined.
    """
    groups: list[list[Message]] = []
    messages = write_said(
        said,
        nonce=nonce,
        is_native=model.has_native_tools,
        image_tokens=find_image_tokens(model),
        is_user_fenced=True,
    )
    for each in messages:
        is_user = each.role is Role.USER
        if not groups or (is_user and groups[-1][-1].role is not Role.USER):
            groups.append([])
        groups[-1] = join_neighbours(*groups[-1], each)
    return [PromptPart(source=f"{SAID}:{place}", messages=tuple(group)) for place, group in enumerate(groups)]


def list_records(progress: TurnProgress, *, model: str) -> Sequence[ReasoningStepRecord]:
    """Return the replies of the model with their calls and results.

    Ids on the wire are the provider's own only in prompts for the model that made them: others may refuse their form.
    """
    return [
        ReasoningStepRecord(
            index=one.step.index,
            text=one.step.text,
            thinking=one.step.thinking,
            calls=tuple(
                CallRecord(
                    call=each.call,
                    result=each.result or _describe_lost(each),
                    handle=each.call.call_id,
                    wire_id=each.provider_id if one.step.model == model else "",
                )
                for each in one.calls
            ),
        )
        for one in progress.replies
        if one.step.goal is ContextGoal.PLANNING
    ]


def _describe_lost(one: LedgerCall) -> ToolResult | None:
    """Return what a prompt says of a call that was begun and has no result; None for one that was not begun."""
    is_undecided = one.state is LedgerState.HANDED_OFF and one.kind is CallKind.APPROVE
    if one.state is LedgerState.EXPECTED or is_undecided:
        return None
    text = to_error_text(
        "outcome_unknown", "the turn ended before the result came; it is not known whether the call ran"
    )
    return ToolResult(call_id=one.call.call_id, result_json=text, is_error=True)


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


def _open(specs: Sequence[ToolSpec], lasting: Sequence[str], *, system: str) -> Sequence[PromptPart]:
    """Return the system message: what never changes first, the caller's `system` included, then the session's texts.

    `specs` are the tools for a model that calls them in its text.
    """
    own, tools = _TASK + (_IN_TEXT if specs else _NATIVE), write_tools(bound_specs(specs)) if specs else ""
    message = Message(
        role=Role.SYSTEM, content="\n\n".join([*([system] if system else []), own + FENCE_RULE + tools, *lasting])
    )
    return [PromptPart(source="system", messages=(message,))]


def _make_part(source: str, text: str) -> PromptPart:
    return PromptPart(source=source, messages=(Message(role=Role.USER, content=text),))


def _write_provided(one: ProvidedText, nonce: str) -> str:
    return one.text if one.is_instruction else fence("notes", one.text, nonce=nonce)

"""Summaries of large results, written by a model: their prompt, and whether one may be shown instead of a preview.

The prompt shows the result in pieces, each after the place where it stands, such as [c3:0-400]. The summary cites these
places, and a summary that cites a place that does not exist is not used.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import run_by_size
from reasond_server.context.reasoning_parts import ContextInputs, ReasoningContext, StoredRendering
from reasond_server.context.sections import FENCE_RULE, fence
from reasond_server.context.step_records import fence_observation
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ModelError
from reasond_server.llm.model import Message, ModelFinish, Role, TokenCounter
from reasond_server.turns.model_calls import ModelCaller, TurnReply
from reasond_server.turns.turn_prompts import log_renderings
from reasond_server.types.turns import ContextGoal, ContextItem, ModelCallStep, Rendering
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.turns.fold import TurnProgress
    from reasond_server.turns.policy import TurnPolicy
    from reasond_server.types import ToolResult


_PIECE_CHARACTERS: Final = 400
_TASK: Final = (
    "You summarise the result of a tool call for a model that works on <question> and does not see the result. Write "
    "what matters for the question: failures, counts, identifiers, numbers and names, letter for letter. Say what you "
    "leave out. After each statement cite where it stands, in the form that stands before each piece of the "
    "result, such as [c3:0-400]; cite no other places. Write plain text in at most {words} words, and nothing else."
)


class Summariser:
    """Has the results of one turn summarised; every summary is a model call of the turn with an event of its own."""

    def __init__(self, *, caller: ModelCaller, policy: TurnPolicy, nonce: str, clock: Clock) -> None:
        self._caller = caller
        self._policy = policy
        self._nonce = nonce
        self._clock = clock

    async def summarise_one(
        self, progress: TurnProgress, inputs: ContextInputs, context: ReasoningContext
    ) -> ModelCallStep | None:
        """Return the event of a call that summarised a result; None if there is none to summarise.

        Such a result is one that `context` shows as a preview for the first time, unless it is a failure, or longer
        than the window of the model that summarises. The event has the rendering that prompts show from now on: the
        summary, or the preview if the summary cannot be used. One model call of the turn must be left for its answer.
        """
        tokens, policy = self._policy.summary_tokens, self._policy
        if tokens is None or progress.model_calls >= policy.max_model_calls - 1:
            return None
        mode = policy.mode_in_force(progress.mode)
        for source, result in _find_previews(progress, context):
            model = self._caller.switch_to(policy.context.summary_backend or mode.backend)
            messages = write_summary_prompt(result, question=inputs.query, tokens=tokens, nonce=self._nonce)
            size = await run_by_size(len(result.result_json), partial(model.counter.count_prompt, messages))
            if model.context_window is None or size + tokens <= model.context_window:
                made = await self._call(messages, progress)
                return await run_by_size(
                    len(result.result_json), partial(self._judge, made, source, result, inputs.counter, context)
                )
        self._caller.switch_to(mode.backend)
        return None

    async def _call(self, messages: Sequence[Message], progress: TurnProgress) -> ModelCallStep:
        """Call the model; return the event without what it summarised."""
        model, index, tokens = self._caller.model, progress.model_calls, self._policy.summary_tokens or 0
        since_s, before = self._clock.monotonic(), model.usage
        try:
            reply = await self._caller.ask(
                messages, tools=(), max_tokens=tokens, is_last=True, index=index, is_published=False
            )
        except (ModelError, TokenBudgetExhaustedError):
            reply = TurnReply(text="", thinking="", finish="failed", calls=())
        return ModelCallStep(
            index=index,
            goal=ContextGoal.SUMMARY,
            mode=progress.mode,
            model=model.name,
            usage=model.usage - before,
            elapsed_s=self._clock.monotonic() - since_s,
            text=reply.text.strip(),
            thinking=reply.thinking,
            finish=reply.finish,
        )

    def _judge(
        self, made: ModelCallStep, source: str, result: ToolResult, counter: TokenCounter, context: ReasoningContext
    ) -> ModelCallStep:
        """Return the event of a summary of `result` with the rendering that follows from it."""
        rendering = context.renderings[source]
        full = rendering.full_tokens
        if is_usable(made.text, result, finish=made.finish, counter=counter):
            text = show_summary(made.text, result)
            tokens = counter.count_text(fence_observation(result, nonce=self._nonce, shown=text))
            rendering = StoredRendering(rendering=Rendering.SUMMARY, tokens=tokens, full_tokens=full, text=text)
        item = ContextItem(source=source, rendering=Rendering.FULL, tokens=full, full_tokens=full)
        return replace(made, context=(item,), renderings=log_renderings({source: rendering}))


def _find_previews(progress: TurnProgress, context: ReasoningContext) -> Iterator[tuple[str, ToolResult]]:
    """Yield the results that `context` shows as previews for the first time, without failures."""
    for source, shown in context.renderings.items():
        one = progress.ledger.get(source)
        if one is None or one.result is None or one.result.is_error:
            continue
        if shown.rendering is Rendering.PREVIEW:
            yield source, one.result


def write_summary_prompt(result: ToolResult, *, question: str, tokens: int, nonce: str) -> Sequence[Message]:
    """Return the prompt for a summary of `result` in about `tokens` tokens."""
    text, handle = result.result_json, result.call_id
    pieces = [
        f"[{handle}:{start}-{min(start + _PIECE_CHARACTERS, len(text))}] {text[start : start + _PIECE_CHARACTERS]}"
        for start in range(0, len(text), _PIECE_CHARACTERS)
    ]
    sections = (fence("question", question, nonce=nonce), fence("observation", "\n".join(pieces), nonce=nonce))
    return (
        Message(role=Role.SYSTEM, content=_TASK.format(words=max(1, tokens // 2)) + FENCE_RULE),
        Message(role=Role.USER, content="\n".join(sections)),
    )


def show_summary(summary: str, result: ToolResult) -> str:
    """Return what stands in prompts instead of `result`."""
    size, handle = len(result.result_json), result.call_id
    return f"[summary of {size} characters; read_tool_result with handle {handle} reads the result]\n{summary}"


def is_usable(summary: str, result: ToolResult, *, finish: str, counter: TokenCounter) -> bool:
    """Return whether `summary` may be shown: whole, shorter than the result, and without a wrong citation."""
    if not summary or finish != ModelFinish.STOP.value:
        return False
    if check_citations(summary, {result.call_id: result.result_json}):
        return False
    return counter.count_text(summary) < counter.count_text(result.result_json)


_CITATION: Final = re.compile(r"\[([A-Za-z0-9_./-]{1,128}):(\d{1,12})-(\d{1,12})\]")


@value
class BrokenCitation:
    """A citation that points to nothing, as it is written, and why."""

    text: str
    reason: str


def check_citations(summary: str, results: Mapping[str, str]) -> Sequence[BrokenCitation]:
    """Return the citations in `summary` that point to no text; `results` are whole results as JSON, by their handles.

    Offsets are characters of that JSON, as `read_tool_result` counts them; the first is 0, and the second is the end.
    """
    broken: list[BrokenCitation] = []
    for found in _CITATION.finditer(summary):
        reason = _find_fault(results.get(found[1]), int(found[2]), int(found[3]))
        if reason:
            broken.append(BrokenCitation(text=found[0], reason=reason))
    return tuple(broken)


def _find_fault(result: str | None, start: int, end: int) -> str:
    if result is None:
        return "there is no such result"
    if start >= end:
        return "the end is not after the beginning"
    return "" if end <= len(result) else f"the result has {len(result)} characters"

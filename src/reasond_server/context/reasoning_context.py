"""The prompt of one model call from the records of what was done: a pure function (seed 002, M3 to M5).

A prompt is, in this order: opening, history, question, the steps of this turn, tail. PLANNING only appends: a result
that was shown whole or as a preview keeps its bytes in later calls. If the prompt does not fit, the oldest results are
replaced by lines with their handles, several at once; then the oldest turns of the history are left out, then thoughts,
then the newest results; where the model has to answer, the oldest steps as wholes, too. Each of these is a break that
the report tells. In a small window previews are shorter, and fewer results are left out at once. SYNTHESIS shows whole
results as far as they fit, and previews of the others; it changes nothing that later PLANNING calls show.

The function is synchronous. Large results take long, so the caller runs it with
`await run_by_size(inputs.characters, partial(build_reasoning_context, inputs))`, in a thread if they are large; it
holds the interpreter for no long piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.reasoning_parts import (
    ContextInputs,
    ContextReport,
    PromptPart,
    ReasoningContext,
    StoredRendering,
)
from reasond_server.context.step_records import (
    LEFT_OUT_THOUGHT,
    CallRecord,
    ReasoningStepRecord,
    ShownResult,
    ShownStep,
    ShownSteps,
    WireIds,
    add_text,
    count_calls,
)
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.tools.previews import render_preview
from reasond_server.tools.read_result import READ_TOOL_RESULT
from reasond_server.types import ToolResult
from reasond_server.types.turns import ContextGoal, ContextItem, Rendering

if TYPE_CHECKING:
    from reasond_server.llm.model import Message, TokenCounter

_LEAST_PREVIEW: Final = 128
_PREVIEWS_BESIDE_RECENT: Final = 2
_BATCHES_IN_PROMPT: Final = 2
_NOT_CALLED: Final = '{"error":"not_called","message":"the call was not made"}'
_WORD: Final = re.compile(r"[A-Za-z0-9_/.-]+")


def build_reasoning_context(inputs: ContextInputs) -> ReasoningContext:
    """Return the prompt for `inputs.goal`, within `inputs.budget_tokens`.

    Raises:
        ContextExhaustedError: the prompt does not fit even if everything is left out that may be.
    """
    is_planning = inputs.goal is ContextGoal.PLANNING
    draft = _Draft(inputs, is_as_before=is_planning)
    if not draft.fit() and not is_planning:
        # What planning has made fit is a beginning that fits.
        draft = _Draft(inputs, is_as_before=True)
        draft.fit()
    if draft.surplus > 0 and not inputs.may_exceed_budget:
        raise _refuse(draft.prompt_tokens, max(0, inputs.budget_tokens or 0))
    if not is_planning:
        draft.show_whole()
    return draft.build()


def write_steps(
    records: Sequence[ReasoningStepRecord],
    *,
    renderings: Mapping[str, StoredRendering],
    nonce: str,
    is_native: bool,
    wire_ids: WireIds,
) -> Sequence[Message]:
    """Return the messages of a turn that has ended, for a part of the history: as they were shown last.

    What has no rendering is shown whole. One `wire_ids` serves all turns of the history.
    """
    steps = ShownSteps(nonce=nonce, is_native=is_native)
    for record in records:
        _add_step(steps, record, wire_ids, is_left_out=_is_left_out(renderings, name_step(record)))
        for call in record.calls:
            steps.observe(_restore_result(call, renderings.get(call.call.call_id)))
    return steps.build_messages()


def name_step(record: ReasoningStepRecord) -> str:
    """Return the source of the reply's text in reports."""
    return f"step:{record.index}"


class _Draft:
    """A prompt that is being made. What changes is `steps`, and `left_out`, the sources of the history left out."""

    def __init__(self, inputs: ContextInputs, *, is_as_before: bool) -> None:
        self._inputs = inputs
        self._counter = inputs.counter
        self._is_planning = inputs.goal is ContextGoal.PLANNING
        self._is_as_before = is_as_before
        self._history = {part.source: self._find_part(part) for part in inputs.history}
        self._left_out = self._cut_history()
        self._steps = ShownSteps(
            nonce=inputs.nonce, is_native=inputs.is_native, count=inputs.counter.count_text, memory=inputs.memory
        )
        self._opening = [self._keep_part(part) for part in inputs.opening]
        self._question = [self._keep_part(part) for part in inputs.question]
        self._messages: Sequence[Message] = ()
        self.prompt_tokens = 0
        used = [call.call_id for part in inputs.history for one in part.messages for call in one.tool_calls]
        wire_ids = WireIds(used=used)
        self._names = [name_step(record) for record in inputs.records]
        for name, record in zip(self._names, inputs.records, strict=True):
            is_left_out = is_as_before and _is_left_out(inputs.renderings, name)
            _add_step(self._steps, record, wire_ids, is_left_out=is_left_out)
            for call in record.calls:
                self._steps.observe(self._show_result(call))

    @property
    def surplus(self) -> int:
        """The tokens that were too many at the last count."""
        budget = self._inputs.budget_tokens
        return 0 if budget is None else self.prompt_tokens - budget

    def fit(self) -> bool:
        """Leave out until the prompt fits; return whether it does."""
        return any(self.count_surplus() <= 0 for _ in self._shorten())

    def count_surplus(self) -> int:
        """Make the messages and count them; return the tokens that are too many, 0 or less if they fit."""
        self._messages = messages = self._list_messages()
        self.prompt_tokens = self._counter.count_prompt(messages) + count_calls(messages, self._counter)
        return self.surplus

    def _shorten(self) -> Iterator[None]:
        """Leave out more and more, and yield before each time and after the last."""
        steps, keep = self._steps, self._count_kept()
        self._bound_results(keep)
        yield
        while steps.clear_oldest(keep=keep, tokens=self._measure_batch()):
            yield
        while self._leave_out_history(self._measure_batch()):
            yield
        while steps.leave_out_thoughts():
            yield
        while steps.clear_oldest(keep=0, tokens=max(self.surplus, 1)):
            yield
        while self._inputs.is_last and steps.leave_out_steps():
            yield

    def _bound_results(self, keep: int) -> None:
        """Leave out the oldest results but the newest `keep` if all take more than the settings allow."""
        most = self._inputs.most_result_tokens
        if most is None:
            return
        shown = [one for step in self._steps.steps for one in step.seen if one.rendering is not Rendering.HANDLE]
        total = sum(one.tokens for one in shown)
        if total > most:
            self._steps.clear_oldest(keep=keep, tokens=total - most // 2)

    def _count_kept(self) -> int:
        """Return how many of the newest results are left out last: the model has not seen those of the newest step."""
        newest = len(self._steps.steps[-1].seen) if self._steps.steps else 0
        return max(self._inputs.settings.keep_recent, newest)

    def show_whole(self) -> None:
        """Show results whole while they fit: first those that later text names, then the newest, then the smallest."""
        shown: list[tuple[ShownResult, StoredRendering]] = []
        budget = self._inputs.budget_tokens
        over = self.count_surplus()
        for one in self._order_for_synthesis():
            room = None if budget is None else -over
            if one.rendering is Rendering.FULL or (room is not None and one.full_tokens - one.tokens > room):
                continue
            tokens = self._counter.count_text(self._steps.fence(one.result))
            if room is None or tokens - one.tokens <= room:
                shown.append((one, _store(one)))
                over += tokens - one.tokens
                _set(one, StoredRendering(rendering=Rendering.FULL, tokens=tokens, full_tokens=tokens))
        self._steps.forget_messages()
        while self.count_surplus() > 0 and shown:
            one, before = shown.pop()
            _set(one, before)
            self._steps.forget_messages()

    def build(self) -> ReasoningContext:
        """Return the prompt that was counted last."""
        before, shown = self._inputs.renderings, self._list_renderings()
        changed = {source: one for source, one in shown.items() if before.get(source) is not one}
        items = self._list_items(shown)
        report = ContextReport(
            items=items,
            prompt_tokens=self.prompt_tokens,
            is_reduced=bool([item for item in items if item.rendering is not Rendering.FULL]),
            is_break=self._is_planning and not before.keys().isdisjoint(changed),
        )
        return ReasoningContext(messages=self._messages, report=report, renderings=changed if self._is_planning else {})

    def _list_messages(self) -> Sequence[Message]:
        inputs = self._inputs
        history = [part for part in inputs.history if part.source not in self._left_out]
        opening, question = [part for part, _ in self._opening], [part for part, _ in self._question]
        messages = [message for part in (*opening, *history, *question) for message in part.messages]
        if gone := self._steps.describe_gone():
            messages[-1] = replace(messages[-1], content=f"{messages[-1].content}\n{gone}")
        tail = "\n".join([message.content for part in inputs.tail for message in part.messages])
        return tuple(add_text([*self._steps.build_messages(messages)], tail))

    def _keep_part(self, part: PromptPart) -> tuple[PromptPart, int]:
        """Return a part that stays the same between the calls of the turn, and its tokens."""
        count, memory = partial(_count_part, part, self._counter), self._inputs.memory
        if memory is None:
            return part, count()
        messages, tokens = memory.keep_part(part.source, part.messages, self._counter, count)
        return PromptPart(source=part.source, messages=messages), tokens

    def _show_result(self, call: CallRecord) -> ShownResult:
        """Return the result as it was shown before; in a synthesis, what was left out is shown as a preview again."""
        stored = self._inputs.renderings.get(call.call.call_id)
        if stored is not None and (self._is_as_before or self._is_kept(stored)):
            return _restore_result(call, stored)
        shown = _restore_result(call, None)
        _set(shown, self._render(call, shown.result))
        return shown

    def _is_kept(self, stored: StoredRendering) -> bool:
        """Return whether a synthesis begins with a result as it was shown: if that is neither a line nor too long."""
        is_long = stored.rendering is Rendering.PREVIEW and stored.tokens > self._share_preview()
        return stored.rendering is not Rendering.HANDLE and not is_long

    def _render(self, call: CallRecord, result: ToolResult) -> StoredRendering:
        """Return the rendering of a new result. Parts that the model has read by a handle are shown whole."""
        most = self._inputs.settings.preview_above_tokens
        if most is not None and call.call.name != READ_TOOL_RESULT:
            preview = self._render_preview(call, result, most)
            if preview is not None:
                return preview
        tokens = self._counter.count_text(self._steps.fence(result))
        return StoredRendering(rendering=Rendering.FULL, tokens=tokens, full_tokens=tokens)

    def _render_preview(self, call: CallRecord, result: ToolResult, most: int) -> StoredRendering | None:
        """Return a preview of a result that has more than `most` tokens, or is a failure of many; None for others."""
        settings, counter, text = self._inputs.settings, self._counter, result.result_json
        whole, share = counter.count_text(text), self._share_preview()
        if whole <= (min(settings.error_tokens, share) if result.is_error else min(most, share)):
            return None
        preview = render_preview(
            text,
            tokens=min(settings.error_tokens if result.is_error else settings.preview_tokens, share),
            count=counter.count_text,
            query=self._inputs.query,
            handle=call.handle,
        )
        if preview.rendering is not Rendering.PREVIEW:
            return None
        tokens = counter.count_text(self._steps.fence(result, preview.text))
        return StoredRendering(rendering=Rendering.PREVIEW, tokens=tokens, full_tokens=whole, text=preview.text)

    def _share_preview(self) -> int:
        """Return the most tokens of a preview, so that several fit; those of a synthesis share most of the prompt."""
        budget, settings = self._inputs.budget_tokens, self._inputs.settings
        if budget is None:
            return settings.preview_tokens + settings.error_tokens
        calls = [len(record.calls) for record in self._inputs.records]
        kept, results = max(settings.keep_recent, *calls[-1:]), sum(calls)
        share = budget // (kept + _PREVIEWS_BESIDE_RECENT) if self._is_as_before else budget * 3 // 4 // max(1, results)
        return max(_LEAST_PREVIEW, share)

    def _measure_batch(self) -> int:
        """Return how many tokens of results to leave out at once."""
        batch, budget = self._inputs.settings.clear_at_least_tokens, self._inputs.budget_tokens
        if not self._is_as_before:
            # A synthesis is no beginning of a later prompt.
            batch = 0
        return max(self.surplus, batch if budget is None else min(batch, budget // _BATCHES_IN_PROMPT), 1)

    def _find_part(self, part: PromptPart) -> StoredRendering:
        """Return how a turn of the history was shown before, else whole."""
        stored = self._inputs.renderings.get(part.source)
        if stored is not None:
            return stored
        tokens = _count_part(part, self._counter)
        return StoredRendering(rendering=Rendering.FULL, tokens=tokens, full_tokens=tokens)

    def _cut_history(self) -> set[str]:
        """Return the turns that were left out before, or that exceed the share of the history: the oldest."""
        inputs, used, left_out = self._inputs, 0, set[str]()
        most = None if inputs.budget_tokens is None else int(inputs.settings.history_share * inputs.budget_tokens)
        for part in reversed(inputs.history):
            stored = self._history[part.source]
            used += stored.full_tokens
            is_new = part.source not in inputs.renderings
            is_surplus = is_new and most is not None and used > most
            if left_out or is_surplus or stored.rendering is Rendering.HANDLE:
                left_out.add(part.source)
        return left_out

    def _leave_out_history(self, tokens: int) -> int:
        """Leave out the oldest turns until they had `tokens` tokens, or all; return how many they had."""
        gone = 0
        for part in self._inputs.history:
            if gone >= tokens:
                break
            if part.source not in self._left_out:
                self._left_out.add(part.source)
                gone += max(1, self._history[part.source].full_tokens)
        return gone

    def _order_for_synthesis(self) -> Sequence[ShownResult]:
        order: list[tuple[bool, int, int, ShownResult]] = []
        later: set[str] = set()
        for place, (record, step) in reversed(
            list(enumerate(zip(self._inputs.records, self._steps.steps, strict=True)))
        ):
            for call, one in zip(record.calls, step.seen, strict=True):
                is_named = not later.isdisjoint({call.call.call_id, call.handle} - {""})
                order.append((not is_named, -place, one.full_tokens, one))
            later.update(_WORD.findall(record.text), _WORD.findall(record.thinking))
        return [one for *_, one in sorted(order, key=lambda each: each[:3])]

    def _list_renderings(self) -> dict[str, StoredRendering]:
        """Return how the history, the thoughts and the results are shown, by their sources."""
        shown, before = dict[str, StoredRendering](), self._inputs.renderings
        for part in self._inputs.history:
            is_out, stored = part.source in self._left_out, self._history[part.source]
            if is_out is not (stored.rendering is Rendering.HANDLE):
                rendering, tokens = (Rendering.HANDLE, 0) if is_out else (Rendering.FULL, stored.full_tokens)
                stored = replace(stored, rendering=rendering, tokens=tokens)
            shown[part.source] = stored
        for name, record, step in zip(self._names, self._inputs.records, self._steps.steps, strict=True):
            known = before.get(name)
            if known is None or step.is_gone or step.is_left_out is not (known.rendering is Rendering.HANDLE):
                known = self._render_thought(record, known, step)
            shown[name] = known
            for call, one in zip(record.calls, step.seen, strict=True):
                source = call.call.call_id
                known = before.get(source)
                is_same = known is not None and (known.rendering, known.tokens) == (one.rendering, one.tokens)
                shown[source] = known if known is not None and is_same else _store(one)
        return shown

    def _render_thought(
        self, record: ReasoningStepRecord, stored: StoredRendering | None, step: ShownStep
    ) -> StoredRendering:
        """Return the rendering of a thought that was shown otherwise before, as `stored` says, or not at all."""
        full = self._counter.count_text(record.text) if stored is None else stored.full_tokens
        if not step.is_left_out:
            return StoredRendering(rendering=Rendering.FULL, tokens=full, full_tokens=full)
        tokens = 0 if step.is_gone else self._counter.count_text(LEFT_OUT_THOUGHT)
        return StoredRendering(rendering=Rendering.HANDLE, tokens=tokens, full_tokens=full, text=LEFT_OUT_THOUGHT)

    def _list_items(self, shown: Mapping[str, StoredRendering]) -> Sequence[ContextItem]:
        """Return everything in the prompt, in its order: `shown` has the history first, then the steps."""
        inputs, items = self._inputs, [_tell_part(part, tokens) for part, tokens in self._opening]
        past = len(inputs.history)
        stored = [
            ContextItem(source=source, rendering=one.rendering, tokens=one.tokens, full_tokens=one.full_tokens)
            for source, one in shown.items()
        ]
        items += stored[:past]
        items += [_tell_part(part, tokens) for part, tokens in self._question]
        items += stored[past:]
        items += [_tell_part(part, _count_part(part, self._counter)) for part in inputs.tail]
        return tuple(items)


def _tell_part(part: PromptPart, tokens: int) -> ContextItem:
    return ContextItem(source=part.source, rendering=Rendering.FULL, tokens=tokens, full_tokens=tokens)


def _store(shown: ShownResult) -> StoredRendering:
    return StoredRendering(
        rendering=shown.rendering, tokens=shown.tokens, full_tokens=shown.full_tokens, text=shown.text
    )


def _restore_result(call: CallRecord, stored: StoredRendering | None) -> ShownResult:
    """Return the result of `call` as `stored` says, or whole."""
    result = call.result or ToolResult(call_id=call.call.call_id, result_json=_NOT_CALLED, is_error=True)
    shown = ShownResult(call=call.call, result=result, handle=call.handle, tokens=0, full_tokens=0)
    if stored is not None:
        _set(shown, stored)
    return shown


def _set(shown: ShownResult, stored: StoredRendering) -> None:
    """Show a result as `stored` says."""
    shown.rendering, shown.text = stored.rendering, stored.text
    shown.tokens, shown.full_tokens = stored.tokens, stored.full_tokens


def _add_step(steps: ShownSteps, record: ReasoningStepRecord, wire_ids: WireIds, *, is_left_out: bool) -> None:
    wired = [wire_ids.take(call.wire_id) for call in record.calls]
    step = steps.add(text=record.text, reasoning="" if is_left_out else record.thinking, wire_ids=wired)
    step.said, step.is_left_out = record.said, is_left_out


def _is_left_out(renderings: Mapping[str, StoredRendering], source: str) -> bool:
    stored = renderings.get(source)
    return stored is not None and stored.rendering is Rendering.HANDLE


def _count_part(part: PromptPart, counter: TokenCounter) -> int:
    return sum(counter.count_text(message.content) for message in part.messages) + count_calls(part.messages, counter)


def _refuse(prompt: int, budget: int) -> ContextExhaustedError:
    return ContextExhaustedError(
        f"the prompt has {prompt} tokens after everything was left out that may be, and {budget} are allowed",
        remedy="Shorten the message or the context blocks, offer fewer tools, or use a model with a larger context "
        "window.",
        metadata={"prompt_tokens": str(prompt), "budget_tokens": str(budget)},
    )

"""Candidates and plans from a model: what prompts show, the calls, and how replies become changed files."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import ModelReply, ReplyListener, bound_prompt, count_prompt, run_by_size
from reasond_server.context.scores import read_points
from reasond_server.context.sections import fence
from reasond_server.context.tags import TagKind, restore
from reasond_server.context.text_calls import ACTION_RULE, UnreadableActionError, read_action
from reasond_server.errors.model import ContentFilteredError, ContextExhaustedError
from reasond_server.llm.model import ChatModel, Message, ModelFinish, Role
from reasond_server.repair.edits.edit_application import EditError, apply_edits, list_candidates, read_reply
from reasond_server.repair.edits.patches import PatchError, make_patch
from reasond_server.repair.edits.python_sources import compute_code_key
from reasond_server.repair.results.gate import list_faults, write_evidence
from reasond_server.repair.search.activities import CandidateOrder, RepairCandidate, TokenBounds
from reasond_server.repair.search.look_ups import MOST_LOOK_UPS, look_up
from reasond_server.repair.search.prompts import RepairPrompts, ShownFiles, choose_files, leave_out_held_out
from reasond_server.repair.search.repair_spans import trace_generation
from reasond_server.search.tree import compute_content_key
from reasond_server.types import NOTHING, Usage
from reasond_server.types.repairs import CandidateStatus, RepairTask, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from reasond_server.base.clock import Clock
    from reasond_server.repair.results.outcomes import Baseline
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.repair.search.repair_site import RepairSite

_UNKNOWN_WINDOW: Final = 32_768
"""Tokens of the window where the model does not tell its own."""
_LEAST_ROOM: Final = 256
_FRAME_TOKENS: Final = 1024
"""Tokens of a prompt besides files and evidence: instructions, marks, the candidate number."""
_DIFF_TOKENS: Final = 2048
_EVIDENCE_TOKENS: Final = 1024
_LOOK_UP_TOKENS: Final = 1024
_LOOK_UP_REPLY_TOKENS: Final = 512
"""Tokens that the prompt keeps for each reply that looks something up; longer ones leave less for later ones."""
_WINDOW_FULL: Final = "There is no room for more look-ups. Write the edit now."
_LAST_NUMBER: Final = 1000
"""The largest `max_candidates`."""
_CUT: Final = "The reply was cut off at max_tokens = {most} before its end. Write less, or smaller edits."


@dataclass(eq=False, kw_only=True)
class CandidateWriter:
    """Asks a model for candidates, or for plans and their scores. `show` decides first what the prompts show.

    Args:
        site: the execution.
        model: the model, with its journal.
        task: the task, without its files, and with the commands that its checks stand for.
        parameters: how candidates are sampled.
        files: the code by path.
        is_protected: whether candidates may not change a path.
        nonce: marks untrusted texts in prompts.
        clock: measures calls.
        folder: where diffs are made; None: in that of the system.
    """

    site: RepairSite
    model: ChatModel
    task: RepairTask
    parameters: RepairParameters
    files: Mapping[str, SourceFile]
    is_protected: Callable[[str], bool]
    nonce: str
    clock: Clock
    folder: Path | None = None

    def __post_init__(self) -> None:
        self._shown = leave_out_held_out(self.files, self.task.checks, is_protected=self.is_protected)
        self._prompts = RepairPrompts(
            nonce=self.nonce, description=self.task.description, report=self.task.report, files=ShownFiles(texts={})
        )

    @property
    def _window(self) -> int:
        return self.model.context_window or _UNKNOWN_WINDOW

    @property
    def _diff_tokens(self) -> int:
        return min(_DIFF_TOKENS, self._window // 8)

    @property
    def _notes_tokens(self) -> int:
        return self._evidence_tokens if self.parameters.has_notes else 0

    @property
    def _evidence_tokens(self) -> int:
        return min(_EVIDENCE_TOKENS, self._window // 16)

    async def show(self, baseline: Baseline | None) -> None:
        """Choose the files and the evidence of `baseline` that the prompts show.

        Raises:
            ContextExhaustedError: the window has no room for any file.
        """
        evidence = "" if baseline is None else write_evidence(list_faults(baseline), ())
        self._prompts = RepairPrompts(
            nonce=self._prompts.nonce,
            description=self.task.description,
            report=self.task.report,
            files=await self._choose_files(evidence),
            evidence=evidence,
        )

    def bound_tokens(self, order: CandidateOrder) -> int:
        """Return the most tokens of the calls for a candidate, prompts and replies."""
        tokens = bound_prompt(self._write_prompt(order), self.model.counter) + self.parameters.max_tokens
        added = self.parameters.max_tokens + _LOOK_UP_TOKENS + _LOOK_UP_REPLY_TOKENS
        return sum(tokens + place * added for place in range(self.parameters.most_calls))

    def bound_any(self) -> TokenBounds:
        """Return the most tokens of any candidate, whatever others it refines."""
        order = CandidateOrder(candidate_id="", number=_LAST_NUMBER, parent_id="", depth=1, temperature=0.0)
        original, is_exact = self.bound_tokens(order), self.model.counter.is_exact
        shown = self._diff_tokens + self._evidence_tokens + self._notes_tokens
        added = _FRAME_TOKENS + (shown if is_exact else 0)
        return TokenBounds(original=original, refined=original + self.parameters.most_calls * added, is_exact=is_exact)

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        """Ask the model for a candidate, and read its reply as changed files.

        Raises:
            ContentFilteredError: the provider withheld text.
            ReasondError: as the model's `stream`.
        """
        began_s = self.clock.monotonic()
        with trace_generation(self.site.trace, candidates=1, model=self.model.name) as made:
            reply, usage = await self._converse(order)
            made.usage = usage
        texts = [reply.parsed.text] if reply.finish is ModelFinish.LENGTH else list_candidates(reply.parsed.text)
        read = [await self._read_candidate(order, reply, text, place) for place, text in enumerate(texts, start=1)]
        usable = [each for each in read if each.status is CandidateStatus.PROPOSED]
        first, *others = usable or read[:1]
        elapsed_s = self.clock.monotonic() - began_s
        return replace(
            first, candidate_id=order.candidate_id, usage=usage, elapsed_s=elapsed_s, others=others, model=reply.model
        )

    async def _read_candidate(self, order: CandidateOrder, reply: ModelReply, text: str, place: int) -> RepairCandidate:
        """Return candidate `place` of a reply, counted from 1, with the text that it has there."""
        candidate = RepairCandidate(
            candidate_id=order.candidate_id if place == 1 else f"{order.candidate_id}.{place}",
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            status=CandidateStatus.INVALID,
            key=f"text:{compute_content_key(text)}",
            changes={},
            thought=text,
        )
        try:
            changes, thought = await run_by_size(len(text), partial(self._read, reply, text))
            diff = await make_patch(self.files, changes, parent=self.folder)
        except (EditError, PatchError) as error:
            return replace(candidate, problem=str(error))
        return replace(
            candidate,
            status=CandidateStatus.PROPOSED,
            key=await asyncio.to_thread(compute_code_key, changes, self.files),
            changes=changes,
            diff=diff,
            thought=thought,
        )

    async def write_plan(self, order: CandidateOrder) -> RepairCandidate:
        """Ask the model for a plan. Raises as `generate`."""
        began_s = self.clock.monotonic()
        reply = await self._ask(
            self._prompts.write_plan(order.number, order.previous),
            label=order.candidate_id,
            index=order.number - 1,
            temperature=order.temperature,
        )
        return RepairCandidate(
            candidate_id=order.candidate_id,
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            changes={},
            diff=restore(reply.parsed.text).strip(),
            model=reply.model,
            usage=reply.spent,
            elapsed_s=self.clock.monotonic() - began_s,
        )

    async def score_plans(self, judge: int, plans: Sequence[str]) -> Sequence[float | None]:
        """Ask a judge for a score of each plan, 0-1. Raises as `generate`."""
        reply = await self._ask(
            self._prompts.write_judging(plans),
            label=f"judge-{judge}",
            index=len(plans) + judge - 1,
            temperature=self.parameters.spread_temperature,
        )
        return read_points(reply.parsed.text, count=len(plans))

    async def _choose_files(self, evidence: str) -> ShownFiles:
        """Return the files that prompts show besides `evidence`.

        Raises:
            ContextExhaustedError: the window has no room for any file.
        """
        if not self.files:
            return ShownFiles(texts={})
        model, task = self.model, self.task
        count = model.counter.count_text
        window = self._window
        taken = self.parameters.max_tokens + _FRAME_TOKENS + self._diff_tokens + self._evidence_tokens
        taken += self._notes_tokens
        if self.parameters.allow_tool_use:
            taken += MOST_LOOK_UPS * (_LOOK_UP_TOKENS + _LOOK_UP_REPLY_TOKENS)
        words = [evidence, task.description, *(f"{issue.path} {issue.message}" for issue in task.report.issues)]
        room = window - taken - await asyncio.to_thread(lambda: sum(map(count, words)))
        if room < _LEAST_ROOM:
            raise ContextExhaustedError(
                f"The window of {window} tokens has no room for code: description, report, evidence and the "
                f"reply (max_tokens = {self.parameters.max_tokens}) need {window - room}",
                remedy="Lower max_tokens, shorten the description, or use a model with a larger window.",
                metadata={"context_window": str(window)},
            )
        choose = partial(
            choose_files,
            self._shown,
            hints=[text for text in words if text],
            is_editable=lambda path: not self.is_protected(path),
            room=room,
            count=count,
        )
        return await asyncio.to_thread(choose)

    def _write_prompt(self, order: CandidateOrder) -> Sequence[Message]:
        previous, head = order.previous, self.model.counter.head
        if previous is not None:
            previous = replace(
                previous,
                diff=head(previous.diff, self._diff_tokens),
                evidence=head(previous.evidence, self._evidence_tokens),
            )
        return self._prompts.write_generation(
            order.number,
            previous=previous,
            unread=head(order.unread, self._evidence_tokens),
            notes=head(order.notes, self._notes_tokens),
            may_look_up=self.parameters.allow_tool_use,
        )

    async def _converse(self, order: CandidateOrder) -> tuple[ModelReply, Usage]:
        """Return the reply that holds the edits, after the model has looked up what it wants, and what it all cost."""
        messages, spent = self._write_prompt(order), NOTHING
        for place in range(1 + MOST_LOOK_UPS):
            reply = await self._ask(
                messages,
                label=f"{order.candidate_id}.{place}" if place else order.candidate_id,
                index=order.number - 1,
                temperature=order.temperature,
                may_look_up=self.parameters.allow_tool_use and place < MOST_LOOK_UPS,
            )
            spent += reply.spent
            if reply.parsed.kind is not TagKind.ACTION:
                break
            messages = await self._answer_look_up(messages, reply)
        return reply, spent

    async def _answer_look_up(self, messages: Sequence[Message], reply: ModelReply) -> Sequence[Message]:
        """Return the messages with a look-up and its answer at the end."""
        try:
            call = read_action(restore(reply.parsed.content), call_id="")
            found = await asyncio.to_thread(look_up, self._shown, call)
        except UnreadableActionError as error:
            found = f"{error}. {ACTION_RULE}"
        said = f"{reply.parsed.text}\n<action>{reply.parsed.content}</action>".strip()
        counter, window = self.model.counter, self._window
        messages = (*messages, Message(role=Role.ASSISTANT, content=said))
        room = window - self.parameters.max_tokens - await count_prompt(messages, counter)
        shown = (
            counter.head(found, min(room - _LEAST_ROOM, _LOOK_UP_TOKENS)) if room > _LOOK_UP_TOKENS else _WINDOW_FULL
        )
        return (*messages, Message(role=Role.USER, content=fence("observation", shown, nonce=self._prompts.nonce)))

    async def _ask(
        self, messages: Sequence[Message], *, label: str, index: int, temperature: float, may_look_up: bool = False
    ) -> ModelReply:
        """Call the model, publish its text as reply `index`, and return the whole reply. Raises as `generate`."""
        listener = ReplyListener(
            messages=messages,
            max_tokens=self.parameters.max_tokens,
            temperature=temperature,
            top_p=self.parameters.top_p,
            kinds=(TagKind.ACTION,) if may_look_up else (),
            label=label,
            keeps_tags=True,
        )
        async with aclosing(self.model.stream(listener.request)) as events:
            async for event in events:
                for fragment in listener.take(event):
                    self.site.publish(index, fragment.text)
        rest, reply = listener.close(self.model.counter)
        for fragment in rest:
            self.site.publish(index, fragment.text)
        if reply.finish is ModelFinish.CONTENT_FILTER:
            raise ContentFilteredError("the model's provider withheld the text of a candidate")
        await self.site.wait_for_room()
        return reply

    def _read(self, reply: ModelReply, text: str) -> tuple[Mapping[str, bytes | None], str]:
        """Return the changes in one candidate of a reply, and what else it says.

        Raises:
            EditError: the reply was cut, or the candidate has no edits that can be applied.
        """
        if reply.finish is ModelFinish.LENGTH:
            raise EditError(_CUT.format(most=self.parameters.max_tokens))
        read = read_reply(text)
        return apply_edits(self.files, read.edits, protected=self.is_protected), read.thought

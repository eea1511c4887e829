"""The activities of a repair within the process that works it out: calls and checks go through the run's journal."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import ReplyListener, bound_prompt, run_by_size
from reasond_server.context.tags import restore
from reasond_server.errors import ContentFilteredError, ContextExhaustedError
from reasond_server.llm.model import ModelFinish
from reasond_server.repair.activities import PatchCheck, RepairCandidate
from reasond_server.repair.code_keys import key_of, key_of_text
from reasond_server.repair.edits import EditError, apply_edits, read_reply
from reasond_server.repair.file_choice import ShownFiles, choose_files
from reasond_server.repair.patches import make_patch, validate_patch
from reasond_server.repair.prompts import RepairPrompts
from reasond_server.types.repairs import CandidateStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.clock import Clock
    from reasond_server.context.calls import ModelReply
    from reasond_server.llm.model import ChatModel, Message
    from reasond_server.repair.activities import Generation
    from reasond_server.repair.critics import Critics
    from reasond_server.repair.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.repair.policy import RepairParameters
    from reasond_server.runs.run import Run
    from reasond_server.types.repairs import RepairTask
    from reasond_server.types.snapshots import SourceFile

_UNKNOWN_WINDOW: Final = 32_768
"""Tokens of the window where the model does not tell its own."""
_LEAST_ROOM: Final = 256
_FRAME_TOKENS: Final = 1024
"""Tokens of a prompt besides files and evidence: instructions, marks, the candidate number."""
_PREVIOUS_TOKENS: Final = 3072
_CUT: Final = "The reply was cut off at max_tokens = {most} before its end. Write less, or smaller edits."


class LocalActivities:
    """See `RepairActivities`.

    Args:
        run: the run that works the repair out.
        model: the model, with its journal.
        task: the task, without its files.
        parameters: how candidates are sampled.
        files: the code by path.
        critics: judge candidates; they journal their checks.
        is_protected: whether candidates may not change a path.
        nonce: marks untrusted texts in prompts.
        clock: measures calls.
    """

    def __init__(
        self,
        *,
        run: Run,
        model: ChatModel,
        task: RepairTask,
        parameters: RepairParameters,
        files: Mapping[str, SourceFile],
        critics: Critics,
        is_protected: Callable[[str], bool],
        nonce: str,
        clock: Clock,
    ) -> None:
        self._run = run
        self._model = model
        self._task = task
        self._parameters = parameters
        self._files = files
        self._critics = critics
        self._is_protected = is_protected
        self._clock = clock
        self._prompts = RepairPrompts(
            nonce=nonce, description=task.description, report=task.report, files=ShownFiles(texts={})
        )

    async def measure_baseline(self) -> Baseline:
        """Run all checks on the original code, and choose what prompts show of it."""
        baseline = await self._critics.measure_baseline()
        evidence = self._critics.describe_baseline(baseline)
        self._prompts = RepairPrompts(
            nonce=self._prompts.nonce,
            description=self._task.description,
            report=self._task.report,
            files=await self.choose_files(evidence),
            evidence=evidence,
        )
        return baseline

    async def choose_files(self, evidence: str) -> ShownFiles:
        """Return the files that prompts show besides `evidence`.

        Raises:
            ContextExhaustedError: the window has no room for any file.
        """
        if not self._files:
            return ShownFiles(texts={})
        model, task = self._model, self._task
        count = model.counter.count_text
        window = model.context_window or _UNKNOWN_WINDOW
        taken = self._parameters.max_tokens + _FRAME_TOKENS + _PREVIOUS_TOKENS
        words = [evidence, task.description, *(f"{issue.path} {issue.message}" for issue in task.report.issues)]
        room = window - taken - sum(count(text) for text in words)
        if room < _LEAST_ROOM:
            raise ContextExhaustedError(
                f"The window of {window} tokens has no room for code: description, report, evidence and the "
                f"reply (max_tokens = {self._parameters.max_tokens}) need {window - room}",
                remedy="Lower max_tokens, shorten the description, or use a model with a larger window.",
                metadata={"context_window": str(window)},
            )
        choose = partial(
            choose_files,
            self._files,
            hints=[text for text in words if text],
            is_editable=lambda path: not self._is_protected(path),
            room=room,
            count=count,
        )
        return await asyncio.to_thread(choose)

    def bound_tokens(self, generation: Generation) -> int:
        """Return the most tokens of a call, prompt and reply."""
        messages = self._prompts.write_generation(generation.number, previous=generation.previous)
        return bound_prompt(messages, self._model.counter) + self._parameters.max_tokens

    async def generate(self, generation: Generation) -> RepairCandidate:
        """Ask the model for a candidate, and read its reply as changed files.

        Raises:
            ContentFilteredError: the provider withheld text.
            ReasondError: as the model's `stream`.
        """
        began_s = self._clock.monotonic()
        messages = self._prompts.write_generation(generation.number, previous=generation.previous)
        reply = await self.ask(
            messages,
            label=generation.candidate_id,
            index=generation.number - 1,
            temperature=generation.temperature,
        )
        text = reply.parsed.text
        candidate = RepairCandidate(
            candidate_id=generation.candidate_id,
            number=generation.number,
            parent_id=generation.parent_id,
            depth=generation.depth,
            status=CandidateStatus.INVALID,
            key=f"text:{key_of_text(text)}",
            changes={},
            thought=text,
            usage=reply.spent,
        )
        try:
            if reply.finish is ModelFinish.LENGTH:
                raise EditError(_CUT.format(most=self._parameters.max_tokens))
            changes, thought = await run_by_size(len(text), partial(self._read, text))
        except EditError as error:
            candidate.problem = str(error)
        else:
            candidate.status = CandidateStatus.PROPOSED
            candidate.changes, candidate.thought = changes, thought
            candidate.key = await asyncio.to_thread(key_of, changes, self._files)
            candidate.diff = await make_patch(self._files, changes)
        candidate.elapsed_s = self._clock.monotonic() - began_s
        return candidate

    async def ask(self, messages: Sequence[Message], *, label: str, index: int, temperature: float) -> ModelReply:
        """Call the model, publish its text as reply `index`, and return the whole reply. Raises as `generate`."""
        listener = ReplyListener(
            messages=messages,
            max_tokens=self._parameters.max_tokens,
            temperature=temperature,
            top_p=self._parameters.top_p,
            kinds=(),
            label=label,
        )
        async with aclosing(self._model.stream(listener.request)) as events:
            async for event in events:
                for fragment in listener.take(event):
                    self._run.subscribers.publish(index, fragment.text)
        rest, reply = listener.close(self._model.counter)
        for fragment in rest:
            self._run.subscribers.publish(index, fragment.text)
        if reply.finish is ModelFinish.CONTENT_FILTER:
            raise ContentFilteredError("the model's provider withheld the text of a candidate")
        if not self._run.log.has_room:
            await self._run.log.wait_for_room()
        return reply

    async def judge(self, candidate: RepairCandidate) -> Critique:
        """Let the critics judge a candidate."""
        return await self._critics.judge(candidate.changes)

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        """See whether the diff of a candidate applies and gives exactly its files."""
        problem = await validate_patch(self._files, candidate.changes, candidate.diff)
        return PatchCheck(patch=candidate.diff, problem=problem)

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        """Run the held-out checks on a candidate."""
        return await self._critics.judge_held_out(candidate.changes)

    def _read(self, text: str) -> tuple[Mapping[str, bytes | None], str]:
        """Return the changes in a reply, and what else it says.

        Prompts neutralise texts that look like tags, so a reply may quote the neutral form.
        """
        reply = read_reply(text)
        try:
            return apply_edits(self._files, reply.edits, protected=self._is_protected), reply.thought
        except EditError:
            original = restore(text)
            if original == text:
                raise
        reply = read_reply(original)
        return apply_edits(self._files, reply.edits, protected=self._is_protected), reply.thought

"""One run of ReAct: what each reply is taken for, what is said to the model then, and when the run ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.context.calls import LEAST_TOKENS, Hearing, Reply
from reasond_server.context.sections import build_prompt
from reasond_server.context.tags import TagKind, restore
from reasond_server.errors import ContextExhaustedError
from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ModelFinish
from reasond_server.strategies.react import prompts as words
from reasond_server.strategies.react.calling import Calling, Due, handle_of
from reasond_server.strategies.react.offering import Offer, fitting
from reasond_server.strategies.react.transcript import Transcript, WireIds
from reasond_server.strategies.strategy import Outcome, Step
from reasond_server.tools.execution import refusal
from reasond_server.types import FinishReason, ReactMetrics, ReactStep, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message, ToolSpec
    from reasond_server.strategies.react.config import ReactConfig
    from reasond_server.strategies.react.offering import Offers
    from reasond_server.strategies.strategy import RunContext
    from reasond_server.types import Task, ToolResult

_MAX_CORRECTIONS: Final = 2
_MAX_EMPTY_REPLIES: Final = 2
# A token has rarely more bytes than this; metering reserves by bytes where nothing counts exactly.
_BYTES_PER_TOKEN: Final = 4


@dataclass(slots=True, kw_only=True)
class Run:
    """What one run knows between two cycles; `best` is the last answer that was begun."""

    task: Task
    context: RunContext[ReactConfig]
    transcript: Transcript
    specs: Sequence[ToolSpec]
    calling: Calling
    cycles: int = 0
    best: str = ""
    due: Due | None = None
    corrections: int = 0
    answered_at: int | None = None
    empty_in_a_row: int = 0
    used_tokens: int = 0
    wire_ids: WireIds = field(default_factory=WireIds)
    _told: ReactMetrics | None = None

    async def call(self) -> Hearing:
        """Return what is to be heard in the next cycle, the answer asked for where it is due.

        Raises:
            ContextExhaustedError: the conversation does not fit.
        """
        if self.due is None and self.cycles >= self.context.config.max_iterations - 1:
            self._demand(FinishReason.MAX_ITERATIONS)
        prompt, room = await self._fitted()
        if self.due is None and await self._is_budget_short(prompt, room):
            warning = "The budget left room for one more call, which had to answer."
            self._demand(FinishReason.BUDGET_EXHAUSTED, warning)
            _, room = await self._fitted()
        if self.due is not None:
            kinds: tuple[TagKind, ...] = (TagKind.ANSWER,)
        elif not self.specs:
            kinds = (TagKind.ANSWER, TagKind.CONTINUE)
        else:
            kinds = (TagKind.ANSWER,) if self.transcript.is_native else (TagKind.ANSWER, TagKind.ACTION)
        return Hearing(
            messages=self.transcript.messages(),
            max_tokens=room,
            temperature=self.context.config.temperature,
            kinds=kinds,
            tools=self._offered(),
            tool_choice="auto" if self.due is None else "none",
        )

    async def cycle(self, reply: Reply) -> tuple[Step, Outcome | None]:
        """Act on a reply and return the step, and the outcome where it is the last."""
        self.used_tokens += reply.usage.total_tokens
        parsed = reply.parsed
        has_words = bool((parsed.text + parsed.content).strip())
        self.empty_in_a_row = 0 if has_words or reply.calls else self.empty_in_a_row + 1
        answer = parsed.content.strip() if parsed.kind is TagKind.ANSWER else ""
        self.best = answer or self.best
        invented = words.before_invention(parsed.text) if self.specs else None
        ending = self._ending(reply, answer, is_invented=invented is not None)
        if ending is not None:
            return ending
        if invented is not None and not reply.calls:
            return self._corrected(reply, words.INVENTED_OBSERVATION, thought=invented), None
        if reply.calls:
            calls = [(self.calling.minted(call), call.call_id) for call in reply.calls]
            return await self._acted(reply, calls, text=invented), None
        if parsed.kind is TagKind.ACTION and parsed.is_closed:
            return await self._acted_in_text(reply), None
        return self._without_action(reply)

    def _ending(self, reply: Reply, answer: str, *, is_invented: bool) -> tuple[Step, Outcome] | None:
        """Return the end of the run if `reply` is one."""
        is_due = self.due is not None
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return self._last(reply, answer, FinishReason.CONTENT_FILTERED)
        if answer and reply.parsed.is_closed and (is_due or not is_invented):
            return self._answered(reply, answer, is_invented=is_invented)
        if is_due:
            return self._forced(reply, answer)
        if self.empty_in_a_row == _MAX_EMPTY_REPLIES:
            return self._last(reply, self.best, FinishReason.TRUNCATED, _empty_warning(reply))
        return None

    def ended(self, answer: str, finish_reason: FinishReason, *warnings: str) -> Outcome:
        """Make the end of the run; why it had to answer is among the warnings."""
        told = (self.due.warning,) if self.due is not None and self.due.warning else ()
        return Outcome(
            answer=restore(answer),
            finish_reason=finish_reason,
            metrics=self._metrics(),
            warnings=tuple(dict.fromkeys((*told, *warnings))),
        )

    def _without_action(self, reply: Reply) -> tuple[Step, Outcome | None]:
        """Act on a reply that neither calls nor marks a whole answer."""
        parsed = reply.parsed
        if reply.finish is ModelFinish.LENGTH or parsed.is_cut:
            return self._went_on(reply, words.CUT_OFF.format(tokens=self.context.config.max_tokens_per_step)), None
        if parsed.kind is TagKind.CONTINUE:
            return self._went_on(reply, words.GO_ON), None
        text = parsed.text.strip()
        if text and (not self.specs or self.transcript.is_native):
            return self._last(reply, text, FinishReason.ANSWERED_UNTAGGED, is_answered=True)
        return self._corrected(reply, words.NO_ACTION if text else words.NOTHING_WRITTEN), None

    def _answered(self, reply: Reply, answer: str, *, is_invented: bool) -> tuple[Step, Outcome]:
        warnings = ("The answer follows an observation that the model made up.",) if is_invented else ()
        return self._last(reply, answer, FinishReason.ANSWERED, *warnings, is_answered=True)

    def _forced(self, reply: Reply, answer: str) -> tuple[Step, Outcome]:
        """End with what the call that had to answer gave; calls in it are not made."""
        reason = self.due.finish_reason if self.due is not None else FinishReason.MAX_ITERATIONS
        if answer or reply.finish is ModelFinish.LENGTH:
            empty = () if answer or reply.parsed.text.strip() else (_empty_warning(reply),)
            return self._last(reply, answer or self.best, FinishReason.TRUNCATED, *empty)
        written = reply.parsed.text.strip()
        if not written and not reply.calls:
            return self._last(reply, self.best, FinishReason.TRUNCATED, _empty_warning(reply))
        text = written.partition("<action")[0].strip()
        flaw = "did not mark an answer" if text else "asked for a tool and did not answer"
        return self._last(reply, text or self.best, reason, f"The last call {flaw}.")

    def _last(
        self, reply: Reply, answer: str, reason: FinishReason, *warnings: str, is_answered: bool = False
    ) -> tuple[Step, Outcome]:
        """Make the last step and the outcome; calls in the reply are shown as refused."""
        if is_answered:
            self.answered_at = self.cycles
        thought = _thought(reply)
        if reason is FinishReason.ANSWERED_UNTAGGED:
            thought = reply.parsed.thinking.strip() or thought
        refused = [
            (self.calling.minted(call), "the run had to answer, and makes no more calls") for call in reply.calls
        ]
        step = self._step(
            thought, tuple((call, refusal(call, "not_called", why)) for call, why in refused), is_answered
        )
        return step, self.ended(answer, reason, *warnings)

    def _went_on(self, reply: Reply, said: str) -> Step:
        """Keep what was written, say `said`, and go on."""
        parsed = reply.parsed
        self.transcript.add(text=parsed.text + parsed.content, reasoning=parsed.thinking)
        self.transcript.say(said)
        return self._step(_thought(reply))

    def _corrected(self, reply: Reply, said: str, *, thought: str | None = None) -> Step:
        """Ask again for a reply that broke the protocol, or for the answer where that was done often enough."""
        text = reply.parsed.text if thought is None else thought
        self.transcript.add(text=text, reasoning=reply.parsed.thinking)
        if self.corrections < _MAX_CORRECTIONS:
            self.corrections += 1
            self.transcript.say(said)
        else:
            warning = "The model kept breaking the protocol of calls, and had to answer."
            self._demand(FinishReason.MAX_ITERATIONS, warning)
        return self._step(_thought(reply) if thought is None else thought)

    async def _acted_in_text(self, reply: Reply) -> Step:
        try:
            call = words.read_action(reply.parsed.content, call_id="")
        except words.UnreadableActionError as error:
            return self._corrected(reply, f"{error}. {words.NO_ACTION}")
        return await self._acted(reply, [(self.calling.minted(call), "")])

    async def _acted(self, reply: Reply, calls: Sequence[tuple[ToolCall, str]], *, text: str | None = None) -> Step:
        """Make the calls of a reply, one after the other, and keep what came of them; `text` replaces its own."""
        if not self.specs:
            return self._disallowed(reply, [call for call, _ in calls])
        wired = [(call, self.wire_ids.take(provider_id)) for call, provider_id in calls]
        kept = reply.parsed.text if text is None else text
        self.transcript.add(text=kept, reasoning=reply.parsed.thinking, calls=wired)
        made: list[tuple[ToolCall, ToolResult]] = []
        notes: list[str] = []
        for call, _ in calls:
            result, note = await self.calling.make(call)
            self.transcript.observe(call, result, handle=handle_of(call))
            made.append((call, result))
            notes.append(note)
        for note in filter(None, notes):
            self.transcript.say(note)
        if (stop := self.calling.stop) is not None:
            self._demand(stop.finish_reason, stop.warning)
        return self._step(_thought(reply), tuple(made))

    def _disallowed(self, reply: Reply, calls: Sequence[ToolCall]) -> Step:
        """Refuse the calls of a run that has no tools."""
        results = [refusal(call, "not_allowed", "tools may not be called in this run") for call in calls]
        step = self._corrected(reply, "There are no tools in this run. " + words.NOTHING_WRITTEN)
        detail = ReactStep(thought=_thought(reply), actions=tuple(calls), observations=tuple(results))
        return Step(detail=detail, answer_found=step.answer_found, metrics=step.metrics)

    def _demand(self, reason: FinishReason, warning: str = "") -> None:
        """Let the next call be the one that answers."""
        self.due = Due(finish_reason=reason, warning=warning)
        self.transcript.say(words.ANSWER_NOW)

    def _offered(self) -> Sequence[ToolSpec]:
        """Return the tools that go with the call; for an answer only because providers ask for them.

        A history with calls in it is refused by some where the list of tools is missing (anthropic-sdk-python #494),
        so it stays, and `tool_choice` forbids to use it.
        """
        if not self.transcript.is_native or (self.due is not None and not self.transcript.has_native_calls):
            return ()
        return self.specs

    async def _fitted(self) -> tuple[int | None, int]:
        """Return the tokens of the prompt, None where no window bounds it, and those that may be written."""
        window, wanted = self.context.model.context_window, self.context.config.max_tokens_per_step
        if window is None:
            self.transcript.bounded()
            return None, wanted
        prompt, room = await self.transcript.fitted(window=window, writing_tokens=wanted, least_tokens=LEAST_TOKENS)
        if room < LEAST_TOKENS:
            raise ContextExhaustedError(
                f"the conversation has {prompt} tokens, which leaves {max(room, 0)} of the model's context window of "
                f"{window}; at least {LEAST_TOKENS} are needed",
                remedy="Shorten query or material, lower max_iterations or max_tokens_per_step, or use the strategy "
                "'bounded_context', which reads long material in segments.",
                metadata={"prompt_tokens": str(prompt), "context_window": str(window)},
            )
        return prompt, room

    async def _is_budget_short(self, prompt: int | None, room: int) -> bool:
        """Return whether after this call the budget might not cover another, so that this one must answer."""
        budget = self.task.budget
        if budget.max_model_calls is not None and self.cycles >= budget.max_model_calls - 1:
            return True
        if budget.max_total_tokens is None:
            return False
        prompt = await self.transcript.tokens() if prompt is None else prompt
        reserved = prompt if self.context.model.counter.is_exact else prompt * _BYTES_PER_TOKEN
        return budget.max_total_tokens - self.used_tokens < 2 * reserved + 3 * room

    def _step(
        self,
        thought: str,
        made: Sequence[tuple[ToolCall, ToolResult]] = (),
        is_answered: bool = False,  # noqa: FBT001, FBT002 - private
    ) -> Step:
        self.cycles += 1
        detail = ReactStep(
            thought=thought, actions=tuple(call for call, _ in made), observations=tuple(result for _, result in made)
        )
        return Step(detail=detail, answer_found=is_answered, metrics=self._metrics())

    def _metrics(self) -> ReactMetrics:
        config = self.context.config
        metrics = ReactMetrics(
            total_iterations=self.cycles,
            answer_found_at_iteration=self.answered_at,
            temperature=config.temperature,
            max_iterations=config.max_iterations,
            tool_calls=self.calling.made,
            failed_tool_calls=self.calling.failed,
            corrections=self.corrections,
            masked_observations=self.transcript.masked,
        )
        # The end mostly has those of the last step: the same object is not checked again.
        if self._told is None or metrics != self._told:
            self._told = metrics
        return self._told


async def started(task: Task, context: RunContext[ReactConfig], offers: Offers) -> Run:
    """Return the run before its first call; `offers` are those of all runs of the server.

    Raises:
        ContextExhaustedError: the tools alone are too much for the window.
    """
    config, nonce = context.config, context.new_nonce()
    may_call = config.allow_tool_use and config.max_tool_calls > 0 and task.budget.max_tool_calls != 0
    offer = Offer()
    if may_call:
        told = offers.of(context.tools.specs)
        offer = fitting(told, counter=context.model.counter, window=context.model.context_window)
    specs = offer.specs
    is_native = bool(specs) and context.model.has_native_tools
    opening = await _opening(task, words.instructions(specs, is_native=is_native), nonce)
    transcript = Transcript(opening=opening, nonce=nonce, is_native=is_native, model=context.model, offer=offer)
    allowed = task.budget.max_tool_calls
    calling = Calling(
        tools=context.tools,
        most=config.max_tool_calls if allowed is None else min(config.max_tool_calls, allowed),
        is_budgets=allowed is not None and allowed < config.max_tool_calls,
    )
    return Run(task=task, context=context, transcript=transcript, specs=specs, calling=calling)


async def _opening(task: Task, instructions: str, nonce: str) -> Sequence[Message]:
    """Return system message and question; those that take long to build are built beside the event loop."""
    build = partial(build_prompt, instructions=instructions, question=task.query, nonce=nonce, material=task.material)
    if len(task.query) + len(task.material) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(build)
    return build()


def _thought(reply: Reply) -> str:
    """Return what the model thought, hidden reasoning first, without its action."""
    parsed = reply.parsed
    text = parsed.text + (parsed.content if parsed.kind is TagKind.CONTINUE else "")
    return "\n\n".join(part for part in (parsed.thinking.strip(), text.strip()) if part)


def _empty_warning(reply: Reply) -> str:
    tokens = reply.usage.reasoning_tokens
    if tokens:
        return f"The model wrote no answer: {tokens} tokens of hidden reasoning used max_tokens_per_step up."
    return "The model wrote nothing."
